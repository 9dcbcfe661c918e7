"""Proves that a real Prometheus scrapes the exporter: every target up, every expected family queryable.

Runs `promtool check metrics` on the text exposition of each target (it must not print anything), starts
Debian's `prometheus` on a free loopback port with one scrape a second, waits until `up` is 1 everywhere and
every expected family has been seen, and prints {FAMILY: number of series} as JSON. Always stops Prometheus.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

from child import Failure, end_on_sigterm, start_listening, wait_until

QUERYABLE_SECONDS_MAX = 300
"""Time in which Prometheus must have seen everything."""

ANSWER_SECONDS_MAX = 300
PROMTOOL_SECONDS_MAX = 300

CONFIG = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: peer
    metrics_path: {path}
    static_configs:
      - targets: {targets}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit status: 0, or 1 and why.")
    parser.add_argument("--targets", required=True, nargs="+", metavar="HOST:PORT", help="targets to scrape")
    parser.add_argument("--work-dir", required=True, help="folder for the configuration, the log and the storage")
    parser.add_argument(
        "--families",
        required=True,
        metavar="FILE",
        help="a metric name a line, as in docs/metrics.md; a histogram without its suffix; # begins a comment",
    )
    parser.add_argument("--metrics-path", default="/metrics", help="default: %(default)s")
    args = parser.parse_args()
    end_on_sigterm()
    try:
        expected = read_families(args.families)
        for target in args.targets:
            check_with_promtool(f"http://{target}{args.metrics_path}")
        n_series = check_with_prometheus(args, expected)
    except Failure as failure:
        sys.exit(f"error: {failure}")
    print(json.dumps(n_series, indent=1, sort_keys=True))


def read_families(path):
    """The expected names, in order."""
    with open(path) as lines:
        names = [line.split("#")[0].strip() for line in lines]
    names = [name for name in names if name]
    if not names:
        raise Failure(f"{path} does not name a family, so the check would be empty")
    return names


def check_with_promtool(url):
    """Lints the text exposition with promtool, which must not print anything."""
    request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            body = answer.read()
    except urllib.error.URLError as error:
        raise Failure(f"{url} does not answer: {error}") from None
    try:
        promtool = subprocess.run(
            ["promtool", "check", "metrics"],
            input=body,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROMTOOL_SECONDS_MAX,
        )
    except FileNotFoundError:
        raise Failure("no program promtool: tests/peers/install.sh installs it") from None
    if promtool.returncode != 0 or promtool.stdout:
        output = promtool.stdout.decode(errors="replace")
        raise Failure(f"promtool check metrics on {url}: status {promtool.returncode}\n{output}")


def check_with_prometheus(args, expected):
    """Starts Prometheus, waits until it has seen everything, and counts the series."""
    os.makedirs(args.work_dir, exist_ok=True)
    config = os.path.join(args.work_dir, "prometheus.yml")
    with open(config, "w") as out:
        out.write(CONFIG.format(path=json.dumps(args.metrics_path), targets=json.dumps(args.targets)))
    prometheus, ports = start_listening(
        lambda port: [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={os.path.join(args.work_dir, 'storage')}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        1,
        os.path.join(args.work_dir, "prometheus.log"),
        is_ready=lambda port: ask(port, "/-/ready") is not None,
    )
    with prometheus:
        seen = Seen(ports[0], args.targets, expected)
        wait_until(
            lambda: prometheus.has_ended() or seen.is_complete(), QUERYABLE_SECONDS_MAX, lambda: seen.explain()
        )
        if prometheus.has_ended():
            raise Failure(f"prometheus ended on the way:\n{prometheus.log_tail()}")
        return {name: seen.count(name) for name in expected}


class Seen:
    """The targets and families that Prometheus has scraped so far."""

    def __init__(self, port, targets, expected):
        self.port, self.targets, self.expected = port, targets, expected
        self.n_up = 0
        self.n_series = {}  # by metric name, as last seen: a series may end while others are waited for

    def is_complete(self):
        """Asks Prometheus again; returns whether every target is up and every family has been seen."""
        self.n_up = len(self.query('up{job="peer"} == 1'))
        for result in self.query('count by (__name__) ({job="peer"})'):
            self.n_series[result["metric"]["__name__"]] = int(result["value"][1])
        return self.n_up == len(self.targets) and not self.missing()

    def query(self, expression):
        answer = ask(self.port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return json.loads(answer)["data"]["result"] if answer else []

    def count(self, name):
        """Series of a family; a histogram or summary counts once per set of labels, not once per bucket."""
        return self.n_series.get(name) or self.n_series.get(f"{name}_count", 0)

    def missing(self):
        return [name for name in self.expected if not self.count(name)]

    def explain(self):
        """Reports what is missing at the deadline, and Prometheus' view of its targets."""
        answer = ask(self.port, "/api/v1/targets?state=active")
        targets = json.loads(answer)["data"]["activeTargets"] if answer else []
        errors = [f"{each['scrapeUrl']}: {each['health']} {each['lastError']}".rstrip() for each in targets]
        return (
            f"after {QUERYABLE_SECONDS_MAX:.0f} s {self.n_up} of {len(self.targets)} targets are up"
            f" and these families are missing: {', '.join(self.missing()) or 'none'}\n" + "\n".join(errors)
        )


def ask(port, path):
    """GET from Prometheus' API; None while it cannot answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_SECONDS_MAX) as answer:
            return answer.read()
    except OSError:
        return None


if __name__ == "__main__":
    main()
