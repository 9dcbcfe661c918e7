"""Measures what watching adds to the processor time of a training thread, a step, inside one process.

Blocks of 200 steps take turns: with the client's optimizer hook, and with the hook set aside. So both are of the same process, the same caches
and the same hour, and what a busy machine adds is in both. A figure is the difference of two blocks that follow each other, the median of
all pairs, with the 5 % and 95 % quantile of that median by bootstrap; in brackets the same between halves of the blocks without the hook:
the noise. The thread works for the whole of a step, in Python, as one that launches kernels does.

The cases: `run`, where the client reads as many steps as it finds cheap enough; every step read; and `--snapshots`. What a search for
holders takes is measured by benches/holders.py. `--torch` takes the real PyTorch, on its GPU if it has one, instead of the stub of python/tests/stub.
The last row is the shortest of the steps measured here from which on `run` holds its promise.

    python3 benches/step.py target/dist/stepmem [--torch] [--python target/tools/torch-venv/bin/python] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

SHARE_MAX = 0.001
STEPS_OF_BLOCK = 200
PAIRS = {0.001: 40, 0.005: 16, 0.010: 8, 0.025: 6}
"""Pairs of blocks by the seconds of a step."""

LOOP = """
import json, sys, time, torch
from torch.optim import optimizer as optimizers
seconds, n_pairs, n_steps = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
hooks = getattr(optimizers, "_global_optimizer_post_hooks", None)
hooks = optimizers._hooks if hooks is None else hooks
if hasattr(torch, "malloc"):
    optimizer = optimizers.Optimizer()
    torch.cuda.is_up = True
    torch.malloc(1 << 20)
else:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(8, device=device))
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
chain = [{"next": i * 7919 % 4096} for i in range(4096)]

def block(n):
    began = time.thread_time()
    for _ in range(n):
        until, place = time.thread_time() + seconds, 0
        while time.thread_time() < until:
            for _ in range(10):
                place = chain[place]["next"]
        optimizer.step()
    return (time.thread_time() - began) / n

def bare(n):
    aside = hooks.copy()
    hooks.clear()
    try:
        return block(n)
    finally:
        hooks.update(aside) if hasattr(hooks, "update") else hooks.extend(aside)

block(400)  # of which 256 are all read; a second after them the client has chosen which are
pairs = []
for at in range(n_pairs):
    parts = [bare, block, bare] if at % 2 == 0 else [bare, bare, block]
    lengths = {bare: n_steps // 2, block: n_steps}
    took = [(part, part(lengths[part])) for part in parts]
    without = [of for part, of in took if part is bare]
    (with_hook,) = [of for part, of in took if part is block]
    pairs.append([with_hook - sum(without) / 2, without[0] - without[1]])
client = sys.modules.get("stepmem._client")
print(json.dumps([pairs, (1 << 32) // client.CLIENT.process.read_below]))
"""

CASES = {
    "run": ([], {}),
    "every step read": ([], {"STEPMEM_EVERY_STEP": "1"}),
    "--snapshots": (["--snapshots"], {}),
}
"""Options of `run` and settings, by case."""


def measured(options, seconds, n_pairs, case, folder):
    """Differences of pairs with those of bare halves, and steps for each that was read."""
    more, settings = CASES[case]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
    stub = {} if options.torch else {"PYTHONPATH": str(ROOT / "python/tests/stub")}
    command = [options.python, "-c", LOOP, str(seconds), str(n_pairs), str(STEPS_OF_BLOCK)]
    line = [options.binary, "run", "--no-nvml", "--web.listen-address=127.0.0.1:0", *more, "--", *command]
    ended = subprocess.run(line, env={**kept, **stub, **settings}, cwd=folder, capture_output=True, text=True, timeout=600)
    if ended.returncode != 0 or not ended.stdout:
        raise SystemExit(f"{line}: {ended.returncode}\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1])


def median_with_bounds(values):
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(1000))
    return statistics.median(values), medians[50], medians[950]


def row(what, value, target="", verdict=""):
    print(f"{what:<36} {value:>64} {target:>10} {verdict}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    arguments.add_argument("--python", default=sys.executable, type=lambda path: str(pathlib.Path(path).absolute()))
    arguments.add_argument("--torch", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    row(f"a step, on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", "processor time, bounds of the median, noise, share", "target")
    holds_from, has_missed = None, False
    with tempfile.TemporaryDirectory() as folder:
        for seconds, n_pairs in sorted(PAIRS.items(), reverse=True):
            for case in CASES:
                pairs, stride = measured(options, seconds, max(4, n_pairs // (4 if options.quick else 1)), case, folder)
                middle, low, high = median_with_bounds([more for more, _ in pairs])
                noise = statistics.median(abs(noise) for _, noise in pairs)
                target = ()
                if case == "run":
                    holds = middle <= SHARE_MAX * seconds
                    has_missed = has_missed or not holds
                    holds_from = holds_from if has_missed else seconds
                    target = ("<= 0.1 %", "PASS" if holds else "MISS")
                read = f", 1 in {stride}" if stride > 1 else ""
                figures = f"{middle * 1e6:+.1f} us ({low * 1e6:+.1f} to {high * 1e6:+.1f}) [{noise * 1e6:.1f}], {middle / seconds:+.3%}"
                row(f"{seconds * 1e3:g} ms, {case}{read}", figures, *target)
    row("0.1 % holds from", f"{holds_from * 1e3:g} ms" if holds_from else "none of these")


if __name__ == "__main__":
    main()
