"""A fleet on one machine: many exporters served by one process, a real Prometheus with the rules, and what they cost.

    run.py PODS_PROGRAM --work-dir DIR [--pods N] [--seconds S] [--scrape-seconds S] [--since COMMIT] [--only-read] [--prometheus PROGRAM]

Serves N pods of 8 ranks, of which some leak, fail, are silent, restart or change their run, waits, and prints a table: series,
samples read by one evaluation of all rules and by one load of each dashboard (`stats=all` of the query API), seconds next to
them. With `--since` the rules and dashboards of that commit read the same Prometheus, and the ratios are printed. With
`--only-read` Prometheus keeps the families that rules and the Fleet dashboard read, so that a large fleet fits into memory.
Ends with a message when

- a scrape fails or a rule is evaluated with an error;
- a planted fault is not found by its alert, or any other alert fires;
- a figure that does not depend on the machine misses its target.

The rules run as they are, except that `for` and `keep_firing_for` are divided by 60.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/peers"))
from child import Child, Failure, end_on_sigterm, start_listening, wait_until  # noqa: E402

# The chart has the files; alerts/ and dashboards/ link to them.
RULES = "helm/stepmem/files/stepmem.rules.yaml"
DASHBOARDS = ["stepmem-fleet", "stepmem-run"]
RANKS_OF_POD = 8
FASTER = 60
ANSWER_SECONDS_MAX = 120
ALERT_SECONDS_MAX = 120
NAMESPACE = "ml"
# As many ranks as the Run dashboard draws as lines.
WORST = "|".join(map(str, range(16)))
WORST_DEVICES = "GPU-.-(9|10)"

Fault = collections.namedtuple("Fault", "name alert subject says")

# Each planted fault: its alert, the run, device or pod that this names, and words of the alert's text.
FAULTS = [
    Fault("leaking rank", "StepmemMemoryCreep", "leak", "Memory creep on rank 3 of run leak"),
    Fault("missing pod", "StepmemRanksMissing", "missing", "Missing ranks of run missing: 8"),
    Fault("out of memory", "StepmemOutOfMemory", "oom", "An allocation of rank 3 of run oom, pod oom-0, found no GPU memory"),
    Fault("killed for memory", "StepmemOutOfMemory", "killed", "The kernel killed a process for lack of host memory where rank 3 of run killed"),
    Fault("silent run", "StepmemRankSilent", "silent", "All ranks of run silent are silent"),
    Fault("silent rank", "StepmemRankSilent", "rank-silent", "Rank 3 of run rank-silent is silent while other ranks train"),
    Fault("lost GPU", "StepmemGpuLost", "GPU-3-5", "of pod gpu-lost-0 reports device GPU-3-5 as lost"),
    Fault("residue", "StepmemMemoryResidue", "GPU-3-6", "by process 1003. The next job"),
]

SERIES_OF_HEALTHY_MAX = 36
SERIES_OF_FINDING_MAX = 44
RATIO_MAX = 1 / 3
# Of one evaluation of all rules, and of one load of the Fleet dashboard.
RULE_SAMPLES_OF_RANK_MAX = 100
FLEET_SAMPLES_OF_RANK_MAX = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pods_program", type=pathlib.Path)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=40, help="how long Prometheus scrapes before it is measured")
    parser.add_argument("--scrape-seconds", type=float, default=2)
    parser.add_argument("--since", metavar="COMMIT", help="compare with the rules and dashboards of this commit")
    parser.add_argument("--only-read", action="store_true", help="keep only what rules read")
    add_prometheus(parser)
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    args = parser.parse_args()
    end_on_sigterm()
    try:
        measure(args)
    except Failure as failure:
        sys.exit(f"error: {failure}")


def add_prometheus(parser):
    parser.add_argument("--prometheus", default="prometheus", metavar="PROGRAM", help="the Prometheus to run, by default Debian's")


def measure(args):
    args.work_dir = args.work_dir.resolve()  # Prometheus reads paths as relative to its file
    args.work_dir.mkdir(parents=True, exist_ok=True)
    with Pods(args.pods_program, args.pods, args.work_dir) as pods:
        new = Bundle("now", lambda path: (ROOT / path).read_text())
        old = Bundle("start", lambda path: git(args.since, path)) if args.since else None
        with Prometheus(args, pods, new, old) as prometheus:
            say(f"scraping for {args.seconds:g} s")
            time.sleep(args.seconds)
            # Ranges have as many scrapes then, however long the alerts take.
            prometheus.read_at = time.time()
            prometheus.check_scrapes(args.pods)
            say("waiting for the alerts of the faults")
            alerts = awaited_alerts(prometheus)
            say("reading as rules and dashboards do")
            report(args, pods, prometheus, [each for each in (old, new) if each], alerts)


def say(what):
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def git(commit, path):
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failure(done.stderr)
    return done.stdout


class Bundle:
    """Rules and dashboards of one commit; those of `start` record under names of their own, and alert nobody."""

    def __init__(self, name, read):
        self.name = name
        self.groups = yaml.safe_load(self.own(read(RULES)))["groups"]
        self.dashboards = {stem: json.loads(self.own(read(f"helm/stepmem/files/dashboards/{stem}.json"))) for stem in DASHBOARDS}

    def own(self, text):
        return text if self.name == "now" else re.sub(r"\b(rank|run|process|device|pod|cluster):stepmem", r"start_\1:stepmem", text)

    def live_groups(self):
        """The groups as Prometheus evaluates them here."""
        for group in self.groups:
            rules = [faster(rule) for rule in group["rules"] if self.name == "now" or "record" in rule]
            if rules:
                yield {"name": f"{self.name}.{group['name']}", "rules": rules}

    def expressions(self):
        return [rule["expr"] for group in self.groups for rule in group["rules"]]

    def families(self):
        """The exported families that rules read, and the one by which an alert's text names a kill."""
        return sorted({"stepmem_oom_kills_total"} | {name for expr in self.expressions() for name in re.findall(r"(?<![:\w])stepmem_\w+", expr)})

    def queries(self, stem):
        """Expression, and whether it is instant, of every query of a dashboard."""
        for panel in self.dashboards[stem]["panels"]:
            for target in panel.get("targets", []):
                yield filled(target["expr"]), target["instant"]


def faster(rule):
    """A rule whose minutes of duration are seconds; what it reads over minutes stays."""

    def shorter(duration):
        seconds = seconds_of(duration) / FASTER
        return f"{max(1, round(seconds)) if seconds else 0}s"

    def held(expr):
        expr = re.sub(r"\)\[([0-9]+m):([0-9]+m)\]\) >=", lambda of: f")[{shorter(of[1])}:{shorter(of[2])}]) >=", expr)
        return re.sub(r"(?<=\[5m\] offset )[0-9]+m", lambda of: shorter(of[0]), expr)

    def least(expr):
        """What was held all the time is released at once, not with the next whole minute."""
        return re.sub(r"(min_over_time\(\w+\[)([0-9]+m):([0-9]+m)\]", lambda of: f"{of[1]}{shorter(of[2])}:{shorter(of[3])}]", expr)

    faster = {key: shorter(value) if key in ("for", "keep_firing_for") else value for key, value in rule.items()}
    return faster | {"expr": held(rule["expr"]) if "alert" in rule else least(rule["expr"])}


def seconds_of(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def filled(expr):
    """A dashboard's query with every variable at its default, for the large run."""
    values = {"cluster": ".*", "namespace": ".*", "pod": ".*", "rank": ".*", "run": "large", "worst": WORST, "device": WORST_DEVICES, "__rate_interval": "1m", "__interval": "15s"}
    return re.sub(r"\$([a-z_]+)", lambda found: values[found[1]], expr)


class Pods:
    """The process that serves all exporters."""

    def __init__(self, program, n_pods, work):
        self.child = Child([program, n_pods], work / "pods.log", stdout=subprocess.PIPE)
        line = self.child.process.stdout.readline()
        if not line:
            raise Failure(f"{program} ended:\n{self.child.log_tail()}")
        answer = json.loads(line)
        self.port, self.pods = answer["port"], answer["pods"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stop()

    def targets(self):
        return [
            {
                "targets": [f"127.0.0.1:{self.port}"],
                "labels": {"__metrics_path__": f"/{pod['name']}/metrics", "namespace": NAMESPACE, "pod": pod["name"], "node": f"node-{i}"},
            }
            for i, pod in enumerate(self.pods)
        ]

    def page(self, pod):
        return ask(f"http://127.0.0.1:{self.port}/{pod}/metrics").decode()


class Api:
    """The query API of a Prometheus."""

    def __init__(self, port):
        self.port = port
        self.read_at = None

    def get(self, path, **parameters):
        return json.loads(ask(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def value(self, expr):
        return float(self.get("query", query=expr)["result"][0]["value"][1])

    def read(self, expr, is_instant=True):
        """Samples and seconds of one query."""
        at = self.read_at or time.time()
        if is_instant:
            data = self.get("query", query=expr, time=f"{at:.3f}", stats="all")
        else:
            data = self.get("query_range", query=expr, start=f"{at - 3600:.3f}", end=f"{at:.3f}", step=15, stats="all")
        return Read(data["stats"]["samples"]["totalQueryableSamples"], data["stats"]["timings"]["evalTotalTime"], len(data["result"]))

    def check_rules(self):
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
        for rule in rules:
            if rule["health"] != "ok":
                raise Failure(f"rule {rule['name']}: {rule['health']} {rule.get('lastError')}")
        return len(rules)

    def firing(self):
        """The texts of the firing alerts, by name and subject."""
        alerts = collections.defaultdict(list)
        for alert in self.get("alerts")["alerts"]:
            labels = alert["labels"]
            if alert["state"] == "firing":
                subject = labels.get("run") or labels.get("uuid") or labels.get("pod")
                alerts[labels["alertname"], subject].append(" ".join(alert["annotations"].values()))
        return alerts


class Prometheus(Api):
    def __init__(self, args, pods, new, old):
        folder = args.work_dir / "prometheus"
        folder.mkdir()
        (folder / "targets.json").write_text(json.dumps(pods.targets()))
        groups = [group for bundle in (new, old) if bundle for group in bundle.live_groups()]
        (folder / "rules.yaml").write_text(json.dumps({"groups": groups}))
        interval = f"{args.scrape_seconds:g}s"
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "stepmem", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}],
        }
        if args.only_read:
            [scrape] = config["scrape_configs"]
            scrape["metric_relabel_configs"] = [{"source_labels": ["__name__"], "regex": "|".join(new.families()), "action": "keep"}]
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.child, [port] = start_listening(
            lambda port: [
                args.prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--query.max-samples=200000000",
            ],
            1,
            str(folder / "log"),
            is_ready=lambda port: answers(f"http://127.0.0.1:{port}/-/ready"),
        )
        super().__init__(port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.stop()

    def check_scrapes(self, n_pods):
        targets = self.get("targets", state="active")["activeTargets"]
        if not targets:
            raise Failure(f"none of {n_pods} pods is scraped")
        failed = [each for each in targets if each["health"] != "up"]
        if failed:
            raise Failure(f"{len(failed)} of {n_pods} pods are not scraped: {failed[0]['labels']}: {failed[0]['lastError']}")


Read = collections.namedtuple("Read", "samples seconds n_series")


def total(reads):
    reads = list(reads)
    return Read(sum(each.samples for each in reads), sum(each.seconds for each in reads), sum(each.n_series for each in reads))


def answers(url):
    try:
        return ask(url) is not None
    except OSError:
        return False


def ask(url):
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
        return answer.read()


def awaited_alerts(prometheus):
    """Waits until every planted fault is found; any other alert is a failure."""

    def missing(alerts):
        return [fault.name for fault in FAULTS if not any(fault.says in text for text in alerts.get((fault.alert, fault.subject), []))]

    def explain():
        alerts = prometheus.firing()
        return f"not found after {ALERT_SECONDS_MAX} s: {missing(alerts)}, of {dict(alerts)}"

    wait_until(lambda: not missing(prometheus.firing()), ALERT_SECONDS_MAX, explain)
    alerts = prometheus.firing()
    invented = [f"{name} {subject}: {len(texts)}" for (name, subject), texts in alerts.items() if len(texts) > 1 or not is_planted(name, subject)]
    if invented:
        raise Failure(f"alerts without a fault: {sorted(invented)}")
    return alerts


def is_planted(alert, subject):
    return any((fault.alert, fault.subject) == (alert, subject) for fault in FAULTS)


def series_of_ranks(page):
    """Number of series of each rank: those with its labels, and those of its device."""
    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
    devices, counts = {}, collections.Counter()
    for each in series:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', each))
        if labels.get("rank") and labels.get("uuid"):
            devices[labels["uuid"]] = labels["rank"]
    for each in series:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', each))
        rank = labels.get("rank") or devices.get(labels.get("uuid"))
        if rank:
            counts[rank] += 1
    return counts, len(series)


def report(args, pods, prometheus, bundles, alerts):
    healthy, n_of_pod = series_of_ranks(pods.page("run-0-0"))
    leaking, _ = series_of_ranks(pods.page("leak-0"))
    rows = [
        ("series of a healthy rank and its device", max(healthy.values()), SERIES_OF_HEALTHY_MAX),
        ("series of a rank with one finding", leaking["3"], SERIES_OF_FINDING_MAX),
        ("series of a pod of 8 ranks", n_of_pod, None),
        ("series in Prometheus", prometheus.get("status/tsdb")["headStats"]["numSeries"], None),
        ("of them recorded", recorded(prometheus), None),
        ("scrapes", int(prometheus.value("max(count_over_time(stepmem_up[1h]))")), None),
        ("rules", prometheus.check_rules(), None),
        ("planted faults found", len(alerts), len(FAULTS)),
    ]
    reads = {}
    for bundle in bundles:
        reads["one evaluation of all rules", bundle.name] = total(prometheus.read(expr) for expr in bundle.expressions())
        for stem in DASHBOARDS:
            reads[f"one load of {stem}", bundle.name] = total(prometheus.read(*query) for query in bundle.queries(stem))
    print(f"{args.pods} pods, {args.pods * RANKS_OF_POD} ranks, scraped every {args.scrape_seconds:g} s\n")
    for name, value, target in rows:
        print(f"{name:42} {value:>12,} {'' if target is None else f'target {target}'}")
    print(f"\n{'reads':34} {'samples':>12} {'seconds':>8} {'series':>8}")
    for (what, name), read in reads.items():
        print(f"{what + ', ' + name:34} {read.samples:>12,} {read.seconds:>8.2f} {read.n_series:>8,}")
    n_ranks = args.pods * RANKS_OF_POD
    for what, target in [("one evaluation of all rules", RULE_SAMPLES_OF_RANK_MAX), ("one load of stepmem-fleet", FLEET_SAMPLES_OF_RANK_MAX)]:
        rows.append((f"{what}, samples of a rank", round(reads[what, "now"].samples / n_ranks, 1), target))
        print(f"{rows[-1][0]:56} {rows[-1][1]:>12} target {target}")
    missed = [f"{name}: {value}, not {target}" for name, value, target in rows if target is not None and value > target]
    if args.since:
        missed += ratios(reads)
    print("found: " + ", ".join(fault.name for fault in FAULTS))
    cost(prometheus, args)
    if missed:
        raise Failure("; ".join(missed))


def ratios(reads):
    """Prints the share of the start commit's samples that is read; yields what misses the target."""
    for what in dict.fromkeys(what for what, _ in reads):
        ratio = reads[what, "now"].samples / reads[what, "start"].samples
        print(f"{what + ', ratio of samples':42} {ratio:>12.3f} target {RATIO_MAX:.3f}")
        if ratio > RATIO_MAX:
            yield f"{what}: {ratio:.3f} of the samples"


def recorded(prometheus):
    return sum(int(each["value"][1]) for each in prometheus.get("query", query='count({__name__=~"(rank|run|process|device|pod|cluster):stepmem.*"})')["result"])


def cost(prometheus, args):
    """Prints what depends on the machine."""
    for group in prometheus.get("rules")["groups"]:
        print(f"group {group['name']:30} {len(group['rules']):>4} rules {group['evaluationTime']:>8.3f} s")
    stat = pathlib.Path(f"/proc/{prometheus.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    status = pathlib.Path(f"/proc/{prometheus.child.pid}/status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    print(f"Prometheus: {seconds:.0f} s of CPU time, {int(peak) / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
