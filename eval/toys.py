#!/usr/bin/env python3
"""Runs small training programs under `stepmem run`, as newcomers try it first: 24 that leak and 12 that do not.

Each trains with the real PyTorch on the CPU, for 400 steps of 3 to 16 ms. A leak keeps 100 to 250 KiB a step, of the machine's free memory,
from step 0 or 50 on. It counts as named where the summary's finding names what keeps the tensors; a healthy program counts as
flagged where the summary has a finding beyond info, or names anything. `make eval-toys` calls it:

    target/tools/torch-venv/bin/python eval/toys.py target/debug/stepmem [--only NAME] [--keep DIRECTORY]

Exit code: 0 where both bars are kept, 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from typing import Any, Dict, Iterator, List, NamedTuple

NAMED_MIN = 20
"""Leaks that have to be named, of 24."""

FLAGGED_MAX = 0
"""Healthy programs that may be flagged, of 12."""

N_LEAKS, N_HEALTHY = 24, 12

STEPS = 400
KIB = (100, 130, 160, 200, 250)
MILLISECONDS = (3, 5, 8, 12, 16)
STARTS = (0, 50, 0)
"""Steps before the first that leaks."""

PROGRAM = """
    import functools, time
    from collections import deque
    import numpy as np
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    N = {n_floats}
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    began = time.perf_counter()

    def pace():
        global began
        began = max(began + {seconds}, time.perf_counter())
        time.sleep(max(0.0, began - time.perf_counter()))
"""

LOOP = """
    for step in range({steps}):
        loss = model(torch.randn(4, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= {start}:
            {each}
        pace()
"""


class Family(NamedTuple):
    """One way to keep memory, or to use it without keeping it."""

    name: str
    each: str
    """What a step does, after `once` was done before the first."""
    once: str = ""
    holder: str = ""
    """A part of the holder's name, as the finding should have it."""


LEAKS = (
    Family("list of losses with their graphs", "losses.append((model(torch.randn(N // 56, 16)) ** 2).sum())", "losses = []", "`losses"),
    Family("list of tensors", "outputs.append(torch.randn(N))", "outputs = []", "outputs"),
    Family("cache by step", "cache[step] = torch.randn(N)", "cache = {}", "cache"),
    Family(
        "closure",
        "remember(torch.randn(N))",
        "def recorder():\n    seen = []\n    def remember(x):\n        seen.append(x)\n    return remember\nremember = recorder()",
        "remember",
    ),
    Family(
        "hook that keeps activations",
        "model(torch.randn(N // 32, 16))",
        "activations = []\nmodel[1].register_forward_hook(lambda module, inputs, output: activations.append(output.detach()))",
        "activations",
    ),
    Family("list of NumPy arrays", "arrays.append(np.random.rand(N // 2))", "arrays = []", "arrays"),
    Family("attribute of a module", "model.history.append(torch.randn(N))", "model.history = []", "history"),
    Family(
        "logger that keeps tensors",
        "logger.log('sample', torch.randn(N))",
        "class Logger:\n    def __init__(self):\n        self.rows = []\n    def log(self, key, value):\n        self.rows.append({'step': len(self.rows), key: value})\nlogger = Logger()",
        "rows",
    ),
    Family(
        "metric without a reset",
        "metric.update(torch.randn(N))",
        "class Metric:\n    def __init__(self):\n        self.predictions = []\n    def update(self, predictions):\n        self.predictions.append(predictions)\nmetric = Metric()",
        "predictions",
    ),
    Family("default argument", "collect(torch.randn(N))", "def collect(x, kept=[]):\n    kept.append(x)\n    return len(kept)", "collect"),
    Family("sum of losses with its graph", "total = total + (weight * torch.randn(N)).sum()", "weight = torch.ones(N, requires_grad=True)\ntotal = torch.zeros(())", "total"),
    Family(
        "generator",
        "next(source)",
        "def batches():\n    window = []\n    while True:\n        window.append(torch.randn(N))\n        yield window[-1]\nsource = batches()",
        "window",
    ),
    Family("deque without a limit", "replay.append((torch.randn(N // 2), torch.randn(N // 2)))", "replay = deque()", "replay"),
    Family(
        "cache on a function",
        "embedding(step)",
        "@functools.lru_cache(maxsize=None)\ndef embedding(n):\n    return torch.randn(N)",
        "embedding",
    ),
    Family("tensor that is concatenated", "history = torch.cat([history, torch.randn(N)])", "history = torch.zeros(0)", "history"),
    Family(
        "class attribute",
        "Trainer.outputs.append(torch.randn(N))",
        "class Trainer:\n    outputs = []",
        "outputs",
    ),
)

HEALTHY = (
    Family("nothing kept", "x = torch.randn(N)"),
    Family("deque that fills by step 60", "replay.append(torch.randn(N))", "replay = deque(maxlen=60)"),
    Family("cache with a maximum", "embedding(step)", "@functools.lru_cache(maxsize=48)\ndef embedding(n):\n    return torch.randn(N)"),
    Family("garbage in cycles", "node = {'x': torch.randn(N)}; node['self'] = node"),
    Family("gradient accumulation", "(model(torch.randn(N // 32, 16)).pow(2).mean() / 4).backward()"),
    Family(
        "evaluation every 50 steps",
        "evaluate() if step % 50 == 49 else None",
        "def evaluate():\n    model.eval()\n    with torch.no_grad():\n        scores = [model(torch.randn(N // 32, 16)) for _ in range(20)]\n    model.train()\n    return len(scores)",
    ),
    Family("larger inputs at first", "model(torch.randn(N * min(step + 1, 40) // 640, 16))"),
    Family(
        "data loader",
        "batch = next(batches, None)\n        if batch is None:\n            batches = iter(loader)",
        "data = torch.utils.data.TensorDataset(torch.randn(512, 64))\nloader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)\nbatches = iter(loader)",
    ),
    Family("small constant cache", "cache[step % 40] = torch.randn(N)", "cache = {}"),
    Family("metrics as numbers", "metrics.append({'step': step, 'loss': loss.item()})", "metrics = []"),
    Family("best checkpoint", "best = {k: v.clone() for k, v in model.state_dict().items()} if step % 20 == 0 else best", "best = None"),
    Family("moving average", "average = 0.99 * average + 0.01 * torch.randn(N)", "average = torch.zeros(N)"),
)


class Toy(NamedTuple):
    """One program."""

    name: str
    code: str
    holder: str


def toys() -> Iterator[Toy]:
    """Generates the programs: families, each with another size, pace and start, in the module or in a function."""
    for families, n_toys in ((LEAKS, N_LEAKS), (HEALTHY, N_HEALTHY)):
        for n in range(n_toys):
            family = families[n % len(families)]
            kib, ms, start = KIB[n % len(KIB)], MILLISECONDS[(n * 2 + n // 5) % len(MILLISECONDS)], STARTS[n % len(STARTS)]
            in_function = n // len(families) % 2 == n % 2
            name = f"{family.name}, {kib} KiB of {ms} ms from step {start}{', in a function' if in_function else ''}"
            yield Toy(name, _code(family, kib, ms, start, in_function), family.holder)


def _code(family: Family, kib: int, ms: int, start: int, in_function: bool) -> str:
    program = textwrap.dedent(PROGRAM).format(n_floats=kib * 256, seconds=ms / 1e3)
    loop = textwrap.dedent(LOOP).format(steps=STEPS, start=start, each=family.each)
    if not in_function:
        return f"{program}\n{family.once}\n{loop}"
    return f"{program}\ndef main():\n{textwrap.indent(f'{family.once}{loop}', '    ')}\nmain()\n"


class Result(NamedTuple):
    """What the summary of one program says."""

    status: str
    is_beyond_info: bool
    holders: List[str]


def run(stepmem: pathlib.Path, toy: Toy, directory: pathlib.Path) -> Result:
    """Runs one program and reads its summary."""
    (directory / "toy.py").write_text(toy.code)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
    command = [stepmem, "run", "--web.listen-address=127.0.0.1:0", "--", sys.executable, "toy.py"]
    ended = subprocess.run(command, cwd=directory, env=kept, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        raise SystemExit(f"{toy.name}: exit code {ended.returncode}\n{ended.stderr}")
    (directory / "stderr.txt").write_text(ended.stderr)
    (path,) = directory.glob("logs/*/2*/final_summary.json")
    summary: Dict[str, Any] = json.loads(path.read_text())
    issues = summary["issues"]
    holders = [each["evidence"]["holder"]["name"] for each in issues if each["evidence"].get("holder")]
    return Result(issues[0]["status"], any(each["severity"] != "info" for each in issues), holders)


def main() -> None:
    parser = argparse.ArgumentParser(description="runs small training programs under `stepmem run`")
    parser.add_argument("stepmem", type=pathlib.Path, help="the binary")
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--keep", type=pathlib.Path, help="a directory for programs and summaries")
    arguments = parser.parse_args()
    stepmem = arguments.stepmem.resolve()
    chosen = [toy for toy in toys() if arguments.only in toy.name]
    n_named = n_flagged = 0
    with tempfile.TemporaryDirectory() as temporary:
        for n, toy in enumerate(chosen):
            directory = (arguments.keep or pathlib.Path(temporary)).resolve() / f"{n:02}"
            directory.mkdir(parents=True)
            result = run(stepmem, toy, directory)
            is_named = any(toy.holder in each for each in result.holders)
            is_flagged = result.is_beyond_info or bool(result.holders)
            if toy.holder:
                n_named += is_named
                verdict = "named" if is_named else "MISSED"
            else:
                n_flagged += is_flagged
                verdict = "FLAGGED" if is_flagged else "silent"
            print(f"{verdict:8} {toy.name}: {result.status}{''.join(f', held by {each}' for each in result.holders)}", flush=True)
    n_leaks = sum(bool(toy.holder) for toy in chosen)
    is_kept = n_leaks - n_named <= N_LEAKS - NAMED_MIN and n_flagged <= FLAGGED_MAX
    print(f"{n_named} of {n_leaks} leaks named (at least {NAMED_MIN} of {N_LEAKS})")
    print(f"{n_flagged} of {len(chosen) - n_leaks} healthy programs flagged (at most {FLAGGED_MAX} of {N_HEALTHY})")
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
