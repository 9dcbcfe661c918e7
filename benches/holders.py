"""Measures the pause of the training thread while the Python client looks for what holds the memory.

Each row is the pauses of several processes of its own, that train a small model, leak a tensor a step into an attribute and
keep a heap of some shape; a search runs at the ends of their steps as if the exporter had asked. `in all` is the sum of all
slices of one search, `in one piece` the longest of them. Processor time beside wall time: on a busy machine, only the former
is the client's. The last column counts the searches that named the leak.

Needs PyTorch, as `python/tests/install.sh torch` installs it:

    target/tools/torch-venv/bin/python benches/holders.py [--processes 20]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

IN_ALL_SECONDS_MAX = 50e-3
IN_ONE_PIECE_SECONDS_MAX = 5e-3

HEAPS = {
    "a small model": "None",
    "a model of 800 modules": "torch.nn.Sequential(*[torch.nn.TransformerEncoderLayer(16, 2, 32) for _ in range(100)])",
    "3 million lists in 3,000 lists": "[[[n] for n in range(1000)] for _ in range(3000)]",
    "3 million tuples and lists in one list": "[(n, []) for n in range(1_500_000)]",
    "2 million dictionaries and lists in one dictionary": "{n: {'a': [n]} for n in range(1_000_000)}",
    "a million instances in 3,000 dictionaries": "[{str(n): Sample(n) for n in range(333)} for _ in range(3000)]",
}

CHILD = """
import json, sys, time
import torch
from stepmem._holders import Search

class Sample:
    def __init__(self, n):
        self.n, self.tags = n, [n]

class Trainer:
    def __init__(self):
        self.history = []

def main():
    heap = {heap}
    torch.set_num_threads(1)
    trainer, model = Trainer(), torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    search, works = Search(20), []
    for step in range(600):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trainer.history.append(loss.detach())
        if step >= 60 and search.outcome is None:
            worked = time.thread_time()
            search.at_step_end(step)
            works.append(time.thread_time() - worked)
    names = [holder.name.text for holder in search.holders]
    print(json.dumps([sum(works), max(works), sum(search.pauses), max(search.pauses), "`Trainer.history`" in names]))

main()
"""


def measure(heap: str) -> "list[float]":
    """Runs one process and returns its four times, in seconds, and whether it named the leak."""
    arguments = [sys.executable, "-W", "ignore", "-c", CHILD.format(heap=heap)]
    environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    answer: "list[float]" = json.loads(subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="measures the pause of a search for holders")
    parser.add_argument("--processes", type=int, default=20, help="processes of each row")
    n_processes = parser.parse_args().processes
    print(f"{n_processes} processes a row; the p99 of them in milliseconds of processor time (wall time)")
    print(f"{'heap':52} {'in all':>16} {'in one piece':>16} {'named':>8}")
    has_missed = False
    for name, heap in HEAPS.items():
        rows = [measure(heap) for _ in range(n_processes)]
        in_all, piece, wall, wall_piece = (sorted(row[i] for row in rows)[(n_processes - 1) * 99 // 100] for i in range(4))
        verdict = "PASS" if in_all <= IN_ALL_SECONDS_MAX and piece <= IN_ONE_PIECE_SECONDS_MAX else "MISS"
        has_missed |= verdict == "MISS"
        n_named = sum(bool(row[4]) for row in rows)
        print(
            f"{name:52} {in_all * 1e3:6.1f} ({wall * 1e3:6.1f}) {piece * 1e3:7.2f} ({wall_piece * 1e3:5.1f}) "
            f"{n_named:4}/{n_processes} {verdict}",
            flush=True,
        )
    sys.exit(has_missed)


if __name__ == "__main__":
    main()
