"""A job by its recorded set alone: what `stepmem status|summary|compare --prometheus` make of it.

    recorded.py PODS_PROGRAM STEPMEM --work-dir DIR [--pods N] [--scrape-seconds S] [--prometheus PROGRAM]

Serves N pods; one Prometheus scrapes them, evaluates the rules, and writes what `write_relabel_configs` of docs/fleet.md keeps
to a second one, which stepmem then asks. Ends with a message when

- the second Prometheus holds anything but the recorded set;
- a figure differs from what the first Prometheus scraped, or a verdict from the planted fault;
- launches that share a name are not listed, or a query takes more points than engines give;
- the token, the user or the tenant is not sent.
"""

import argparse
import base64
import collections
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.parse

import yaml

import run as fleet
from child import Failure, end_on_sigterm, start_listening, wait_until

POINTS_MAX = 11_000
RECORDED_SECONDS_MAX = 180
RECORDED_MIN = 3
RULE_SECONDS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pods_program", type=pathlib.Path)
    parser.add_argument("stepmem", type=pathlib.Path)
    parser.add_argument("--pods", type=int, default=40)
    parser.add_argument("--scrape-seconds", type=float, default=2)
    fleet.add_prometheus(parser)
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    args = parser.parse_args()
    end_on_sigterm()
    try:
        check(args)
    except Failure as failure:
        sys.exit(f"error: {failure}")


def check(args):
    args.work_dir = args.work_dir.resolve()
    for name in ("scraping", "recorded"):
        (args.work_dir / name).mkdir(parents=True)
    with fleet.Pods(args.pods_program, args.pods, args.work_dir) as pods:
        with Engine(args, "recorded", {}, ["--web.enable-remote-write-receiver"]) as recorded:
            with Engine(args, "scraping", scraping(args, pods, recorded), []) as scraped:
                wait_until(lambda: is_recorded(recorded), RECORDED_SECONDS_MAX, lambda: "the rules record nothing")
                jobs = Jobs(args.stepmem, recorded)
                holds_recorded_set_only(recorded)
                figures_are_those_scraped(jobs, scraped)
                verdicts_are_of_the_faults(jobs)
                launches_are_told_apart(jobs)
                large_run(jobs, pods)
                comparisons(jobs)
                credentials_are_sent(jobs, recorded, args.work_dir)


def scraping(args, pods, recorded):
    """The configuration of the Prometheus that scrapes."""
    targets = args.work_dir / "targets.json"
    targets.write_text(json.dumps(pods.targets()))
    rules = args.work_dir / "rules.yaml"
    groups = fleet.Bundle("now", lambda path: (fleet.ROOT / path).read_text()).groups
    rules.write_text(json.dumps({"groups": groups}))
    interval = f"{args.scrape_seconds:g}s"
    [write] = documented_remote_write()
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": f"{RULE_SECONDS}s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "stepmem", "file_sd_configs": [{"files": [str(targets)]}]}],
        "remote_write": [{**write, "url": f"http://127.0.0.1:{recorded.port}/api/v1/write"}],
    }


def documented_remote_write():
    """`remote_write` as docs/fleet.md has it."""
    document = (fleet.ROOT / "docs/fleet.md").read_text()
    block = re.search(r"```yaml\n(remote_write:.*?)```", document, re.DOTALL)
    return yaml.safe_load(block[1])["remote_write"]


class Engine(fleet.Api):
    """A Prometheus."""

    def __init__(self, args, name, config, options):
        folder = args.work_dir / name
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.child, [port] = start_listening(
            lambda port: [
                args.prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *options,
            ],
            1,
            str(folder / "log"),
            is_ready=lambda port: fleet.answers(f"http://127.0.0.1:{port}/-/ready"),
        )
        super().__init__(port)
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stop()

    def values(self, name, labels, seconds=600):
        """Every value of a series so far."""
        selector = ",".join(f'{label}="{value}"' for label, value in labels.items())
        result = self.get("query", query=f"{name}{{{selector}}}[{seconds}s]")["result"]
        return {float(value) for each in result for _, value in each["values"]}


class Jobs:
    """stepmem, asking an engine."""

    def __init__(self, program, engine):
        self.program, self.url = program, engine.url

    def run(self, command, *arguments, url=None):
        words = [str(self.program), command, "--prometheus", url or self.url, *arguments]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("STEPMEM_")}
        return subprocess.run(words, capture_output=True, text=True, env=clean)

    def text(self, command, *arguments, url=None):
        done = self.run(command, *arguments, url=url)
        if done.returncode:
            raise Failure(f"{command} {arguments}: {done.returncode}: {done.stderr}")
        return done.stdout

    def job(self, run, *arguments, url=None):
        return json.loads(self.text("summary", "--run", run, "--json", *arguments, url=url))


def holds(condition, what):
    if not condition:
        raise Failure(what)


def is_recorded(recorded):
    """Whether the rules have recorded every run a few times."""
    counts = recorded.get("query", query="count_over_time(run:stepmem_peak_allocated_bytes:max[10m])")["result"]
    of_run = {each["metric"]["run"]: int(each["value"][1]) for each in counts}
    return all(of_run.get(run, 0) >= RECORDED_MIN for run in ("leak", "large"))


def holds_recorded_set_only(recorded):
    [write] = documented_remote_write()
    keep = re.compile(write["write_relabel_configs"][0]["regex"])
    others = [name for name in recorded.get("label/__name__/values") if not keep.fullmatch(name)]
    holds(not others, f"beyond the recorded set: {others}")


def figures_are_those_scraped(jobs, scraped):
    """Each figure of the leaking rank is one that was scraped: exact, not interpolated."""
    job = jobs.job("leak")
    rank = job["ranks"][3]
    labels = {"run": "leak", "rank": 3}
    [finding] = [each for each in rank["findings"] if each["kind"] == "CREEP_CONFIRMED"]
    growth = finding["growth"]
    for name, value, more in [
        ("stepmem_rank_step", rank["sampled"]["step"], {}),
        ("stepmem_rank_memory_allocated_bytes", rank["sampled"]["allocated_bytes"], {}),
        ("stepmem_rank_memory_reserved_bytes", rank["sampled"]["reserved_bytes"], {}),
        ("stepmem_diagnosis_since_timestamp_seconds", finding["since"], {"kind": "CREEP_CONFIRMED"}),
        ("stepmem_creep_slope_bytes_per_step", growth["bytes_per_step"], {"signal": "allocated"}),
        ("stepmem_creep_growth_bytes", growth["growth_bytes"], {"signal": "allocated"}),
        ("stepmem_creep_onset_step", growth["onset_step"], {"signal": "allocated"}),
        ("stepmem_creep_confidence_ratio", growth["confidence_ratio"], {"signal": "allocated"}),
    ]:
        values = scraped.values(name, {**labels, **more})
        holds(value in values, f"{name} is {value}, scraped {sorted(values)[-3:]}")
    peaks = scraped.values("rank:stepmem_peak_allocated_bytes:last5m", labels)
    # What was recorded later than the answer is higher.
    holds(rank["peak_allocated_bytes"] in peaks, f"peak {rank['peak_allocated_bytes']}, recorded {sorted(peaks)[-3:]}")
    raw = scraped.values("stepmem_rank_interval_peak_allocated_bytes", labels)
    holds(rank["peak_allocated_bytes"] in raw, "the peak is none that was scraped")
    holds("capacity_bytes" not in rank and "host" not in rank, "figures that are not recorded")
    holds((job["ranks_expected"], len(job["ranks"]), job["is_over"]) == (8, 8, False), f"{job['ranks_expected']}")


def verdicts_are_of_the_faults(jobs):
    for run, status, ranks in [("leak", "MEMORY CREEP", [3]), ("oom", "OUT OF MEMORY", [3]), ("run-0", "BALANCED", [])]:
        job = jobs.job(run)
        holds(job["diagnosis"]["status"] == status, f"{run}: {job['diagnosis']}")
        holds(job["diagnosis"]["ranks"] == ranks, f"{run}: {job['diagnosis']}")
    card = jobs.text("summary", "--run", "leak")
    holds(re.search(r"MEMORY CREEP \(\w+\) on rank 3\n  Why: live memory grows by [\d.]+ MiB/step", card), card)
    table = jobs.text("status", "--run", "leak")
    holds("~ALLOCATED" in table and "~ sampled" in table, table)
    missing = jobs.job("missing")
    holds(missing["ranks_missing"] == list(range(8, 16)), f"{missing['ranks_missing']}")


def launches_are_told_apart(jobs):
    for launch, other in [("first", "second"), ("second", "first")]:
        job = jobs.job("twice", "--launch", launch)
        pods = {rank["pod"] for rank in job["ranks"]}
        holds(pods == {f"twice-{['first', 'second'].index(launch)}"}, f"{launch}: {pods}")
        holds([each["launch"] for each in job["other_launches"]] == [other], f"{job['other_launches']}")
        holds(job["overlaps"] and job["ranks"][0]["peak_allocated_bytes"] is None, "what is of both launches")
    done = jobs.run("summary", "--run", "twice", "--launch", "third")
    holds(done.returncode == 2 and "no launch third" in done.stderr, done.stderr)
    done = jobs.run("summary", "--run", "nobody's")
    holds(done.returncode == 2 and "no series of this run" in done.stderr, done.stderr)


def large_run(jobs, pods):
    n_ranks = fleet.RANKS_OF_POD * sum(pod["run"] == "large" for pod in pods.pods)
    began = time.monotonic()
    job = jobs.job("large")
    fleet.say(f"{n_ranks} ranks in {time.monotonic() - began:.1f} s")
    holds(len(job["ranks"]) == job["ranks_expected"] == n_ranks, f"{len(job['ranks'])} of {n_ranks} ranks")
    holds(all(rank["peak_allocated_bytes"] for rank in job["ranks"]), "a peak is missing")


def comparisons(jobs):
    for old, new, code, verdict in [("restarts", "leak", 1, "REGRESSION"), ("leak", "restarts", 0, "IMPROVEMENT")]:
        done = jobs.run("compare", "--run", old, "--run", new)
        holds((done.returncode, verdict in done.stdout) == (code, True), f"{old}, {new}: {done}")


def credentials_are_sent(jobs, recorded, work):
    """Through a server that repeats the requests and keeps their headers."""
    seen = []

    class Repeats(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.headers, urllib.parse.urlsplit(self.path)))
            body = fleet.ask(recorded.url + self.path.removeprefix("/prometheus"))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Repeats)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/prometheus"
    secret = work / "secret"
    secret.write_text("open sesame\n")
    jobs.job("leak", "--token-file", str(secret), "--tenant", "ml", "--since", "30d", url=url)
    jobs.job("leak", "--user", "ann", "--password-file", str(secret), url=url)
    server.shutdown()
    sent = collections.Counter((headers.get("Authorization"), headers.get("X-Scope-OrgID")) for headers, _ in seen)
    basic = "Basic " + base64.b64encode(b"ann:open sesame").decode()
    holds(set(sent) == {("Bearer open sesame", "ml"), (basic, None)}, f"{sent}")
    for _, address in seen:
        parameters = {key: float(value) for key, value in urllib.parse.parse_qsl(address.query) if key != "query"}
        if address.path.endswith("query_range"):
            n_points = (parameters["end"] - parameters["start"]) / parameters["step"] + 1
            holds(n_points < POINTS_MAX, f"{n_points} points")


if __name__ == "__main__":
    main()
