"""Has a real Prometheus hold series, and prints what `stepmem judge` says of them.

    judged.py --work-dir DIR --metrics FILE STEPMEM ARGUMENTS…

FILE has samples with their times in OpenMetrics' text. Each list of ARGUMENTS, separated by `--and`, runs on its own with the
address in place of URL. Prints a list of [exit code, output, errors] as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

from child import Failure, end_on_sigterm, start_listening

SECONDS_MAX = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit status: 0, or 1 and why.")
    parser.add_argument("--work-dir", required=True, type=pathlib.Path)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    end_on_sigterm()
    try:
        print(json.dumps(said(args)))
    except Failure as failure:
        sys.exit(f"error: {failure}")


def said(args):
    args.work_dir.mkdir(parents=True, exist_ok=True)
    data = args.work_dir / "data"
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", args.metrics, str(data)]
    made = subprocess.run(blocks, capture_output=True, text=True, timeout=SECONDS_MAX)
    if made.returncode:
        raise Failure(f"promtool: {made.stderr}")
    (args.work_dir / "prometheus.yml").write_text("{}")
    prometheus, [port] = start_listening(
        lambda port: [
            "prometheus",
            f"--config.file={args.work_dir}/prometheus.yml",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        1,
        str(args.work_dir / "log"),
        is_ready=is_ready,
    )
    with prometheus:
        return [run(args.command[0], words, port) for words in commands(args.command[1:])]


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=SECONDS_MAX) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def commands(words):
    groups = itertools.groupby(words, lambda word: word == "--and")
    return [list(group) for is_between, group in groups if not is_between]


def run(program, words, port):
    words = [f"http://127.0.0.1:{port}" if word == "URL" else word for word in words]
    ended = subprocess.run([program, "judge", *words], capture_output=True, text=True, timeout=SECONDS_MAX)
    return [ended.returncode, ended.stdout, ended.stderr]


if __name__ == "__main__":
    main()
