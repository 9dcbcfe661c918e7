"""Measures whether a push with the number of live blocks takes longer than one without it: three exporters of one binary get the same steps
in turn, the third as the second, so that what the machine does hits all alike, and two that are the same say what is noise.

    python3 benches/push_pair.py target/dist/stepmem [--ranks 64] [--steps 3000]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

# Steps until every rank is judged in several windows: they are pushed, and not measured.
WARMUP_STEPS = 300
# A push with the number may take so much longer at the median: it misses that when the whole interval is above.
MORE_MAX = 0.02
SAMPLES = 1000
WITH, WITHOUT, AGAIN = "with live_blocks", "without", "without, again"


class Exporter:
    """An exporter of no devices, and a connection that is kept."""

    def __init__(self, binary):
        words = [binary, "serve", "--no-nvml", "--web.listen-address=127.0.0.1:0", "--push.listen-address=127.0.0.1:0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPMEM_")}
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
        port = None
        for line in self.process.stderr:
            found = re.search(r"address=127\.0\.0\.1:(\d+) what=.push", line)
            if found:
                port = int(found[1])
                break
        if port is None:
            raise SystemExit(f"{binary} says no address of its push port")
        # Nobody reads the rest; a full pipe would stop it.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def push_seconds(self, body):
        began = time.perf_counter()
        self.connection.request("POST", "/v1/steps", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        said = answer.read()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {said.decode(errors='replace')}")
        return seconds

    def stop(self):
        self.connection.close()
        self.process.kill()
        self.process.wait()


def bodies(n_ranks, step):
    """The records of a step, with the number and without it."""
    records = []
    for rank in range(n_ranks):
        live = 30_000_000_000 + 65_536 * step + (rank * 7_919 + step * 104_729) % 1_048_576
        records.append(
            {
                "run": "bench", "rank": rank, "world_size": n_ranks, "device": f"GPU-{rank}", "step": step, "time": 1_764_897_183 + step,
                "allocated_bytes": live, "peak_allocated_bytes": live + 12_000_000_000, "reserved_bytes": live + 12_500_000_000,
                "total_bytes": 85_520_809_984,
            }  # fmt: skip
        )
    without = json.dumps(records).encode()
    return json.dumps([{**record, "live_blocks": 2_000 + record["step"]} for record in records]).encode(), without


def interval(ratios):
    """The median of ratios, and its 95 % interval by drawing them again."""
    drawn = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    return statistics.median(ratios), drawn[int(0.025 * SAMPLES)], drawn[int(0.975 * SAMPLES)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--steps", type=int, default=3000)
    options = arguments.parse_args()
    random.seed(1)
    exporters = {name: Exporter(options.binary) for name in (WITH, WITHOUT, AGAIN)}
    taken = {name: [] for name in exporters}
    try:
        for step in range(1, WARMUP_STEPS + options.steps + 1):
            counted, plain = bodies(options.ranks, step)
            # Who goes first changes at random.
            for name in random.sample(sorted(exporters), k=len(exporters)):
                seconds = exporters[name].push_seconds(counted if name == WITH else plain)
                if step > WARMUP_STEPS:
                    taken[name].append(seconds)
    finally:
        for exporter in exporters.values():
            exporter.stop()
    print(f"{options.steps} pushes of {options.ranks} ranks each, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, seconds in taken.items():
        print(f"{name:<20} p50 {1e6 * statistics.median(seconds):7.0f} us   fastest {1e6 * min(seconds):7.0f} us")
    shares = {}
    for name in (WITH, AGAIN):
        pairs = [one / other for one, other in zip(taken[name], taken[WITHOUT])]
        shares[name] = interval(pairs)
        middle, low, high = shares[name]
        print(f"{name + ' / without':<30} {middle:.4f} (95 %: {low:.4f} to {high:.4f})")
    is_kept = shares[WITH][1] <= 1 + MORE_MAX
    print(f"at most {1 + MORE_MAX:.2f}: {'PASS' if is_kept else 'MISS'}")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
