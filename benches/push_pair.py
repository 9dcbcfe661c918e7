"""Measures whether a push with the number of live blocks takes longer than one without it: one exporter gets the same steps for three runs in
turn, for the third as for the second, so that what the machine and the process do hits all alike, and two that are the same say what is noise.

    python3 benches/push_pair.py target/dist/stepmem [--ranks 64] [--steps 3000] [--before BINARY]

With --before, another binary of the same profile gets the steps without the number, in turn: it is the exporter that did not know it.
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
# Two processes of one binary differ by some percent, as their memory lies: so many pairs of processes.
PAIRS = 7
SAMPLES = 1000
WITH, WITHOUT, AGAIN = "with live_blocks", "without number", "without again"


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
        self.connection.request("POST", "/v1/steps", body, {"Content-Type": "application/x-ndjson"})
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


def body(name, n_ranks, step, kept):
    """The records of a step in which each rank of a run keeps so many blocks of 64 KiB, with the number of blocks or without it, as clients write them."""
    records = []
    for rank in range(n_ranks):
        live = 30_000_000_000 + 65_536 * kept * step + (rank * 7_919 + step * 104_729) % 1_048_576
        counted = {"live_blocks": 2_000 + kept * step + (1 - kept) * ((rank + step) % 7)} if name == WITH else {}
        records.append(
            {
                "run": name, "rank": rank, "world_size": n_ranks, "device": f"GPU-{rank}", "step": step, "time": 1_764_897_183 + step,
                "allocated_bytes": live, "peak_allocated_bytes": live + 12_000_000_000, "reserved_bytes": live + 12_500_000_000,
                "total_bytes": 85_520_809_984, **counted,
            }  # fmt: skip
        )
    return "\n".join(json.dumps(record, separators=(",", ":")) for record in records).encode()


def interval(ratios):
    """The median of ratios, and its 95 % interval by drawing them again."""
    drawn = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    return statistics.median(ratios), drawn[int(0.025 * SAMPLES)], drawn[int(0.975 * SAMPLES)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--before", type=lambda path: str(pathlib.Path(path).resolve()))
    options = arguments.parse_args()
    random.seed(1)
    if options.before:
        return max(measure_before(options, what, kept) for what, kept in (("level", 0), ("leaking", 1)))
    # Ranks that are level, and ranks that leak: a finding of the number costs something, too.
    return max(measure(options, what, kept) for what, kept in (("level", 0), ("leaking", 1)))


def measure_before(options, what, kept):
    """Pushes the number to one binary, and the same without it to the other, in pairs of processes; returns 1 if the first takes longer."""
    ratios = []
    for _ in range(PAIRS):
        exporters = {WITH: Exporter(options.binary), WITHOUT: Exporter(options.before)}
        taken = {name: [] for name in exporters}
        try:
            for step in range(1, WARMUP_STEPS + options.steps // PAIRS + 1):
                for name in random.sample(sorted(exporters), k=len(exporters)):
                    seconds = exporters[name].push_seconds(body(name, options.ranks, step, kept))
                    if step > WARMUP_STEPS:
                        taken[name].append(seconds)
        finally:
            for exporter in exporters.values():
                exporter.stop()
        ratios.append(statistics.median(one / other for one, other in zip(taken[WITH], taken[WITHOUT])))
    print(f"{PAIRS} pairs of exporters, {options.steps // PAIRS} pushes of {options.ranks} {what} ranks each, load {os.getloadavg()[0]:.1f}")
    middle, low, high = interval(ratios)
    print("with live_blocks / before, without: " + " ".join(f"{each:.3f}" for each in sorted(ratios)))
    print(f"median {middle:.4f} (95 %: {low:.4f} to {high:.4f}); at most {1 + MORE_MAX:.2f}: {'PASS' if low <= 1 + MORE_MAX else 'MISS'}")
    return 0 if low <= 1 + MORE_MAX else 1


def measure(options, what, kept):
    """Pushes and prints; returns 1 if the push with the number takes longer."""
    exporter = Exporter(options.binary)
    taken = {name: [] for name in (WITH, WITHOUT, AGAIN)}
    try:
        for step in range(1, WARMUP_STEPS + options.steps + 1):
            # Who goes first changes at random.
            for name in random.sample(sorted(taken), k=len(taken)):
                seconds = exporter.push_seconds(body(name, options.ranks, step, kept))
                if step > WARMUP_STEPS:
                    taken[name].append(seconds)
    finally:
        exporter.stop()
    print(f"{options.steps} pushes of {options.ranks} {what} ranks each, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
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
