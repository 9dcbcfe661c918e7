"""Measures the Python client's cost to the training thread, beside TraceML's `trace_step`, in one run on one machine.

Every figure comes from a process of its own that takes a step every millisecond, half of it asleep, as training waits for
its GPU, half of it running Python; only the call is timed. `step_end` is measured with the exporter up, absent and hanging
(stopped), over stubbed allocator counters (those of python/tests/stub) and over resident memory. TraceML's
`trace_step(model)` is measured around an empty block, on the CPU, where it does not read counters; its queues are emptied
between steps, outside the timed part, and none of its threads runs: all of that is in its favor.

The table shows processor time of the training thread beside wall time: on a busy machine, only the former is the client's.

Memory is the growth of a process since before the import, with the ring full: for a process that has imported PyTorch, and
for a bare interpreter, which has to load half of the standard library first.

Prints a table with the targets beside the figures; every row that has a target ends in PASS or MISS. Needs what
`python/tests/install.sh torch` installs; without it, the table reports that TraceML was not measured.

    python3 benches/client.py target/dist/stepmem [--python target/tools/torch-venv/bin/python] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "peers"))
from child import end_on_sigterm, free_ports, start_listening  # noqa: E402

P50_SECONDS_MAX = 10e-6
P99_SECONDS_MAX = 30e-6
SHARE_OF_10_MS_MAX = 0.001
MEMORY_BYTES_MAX = 2 << 20

STUB_UP = "step_end, stubbed counters, exporter up"
STUB_ABSENT = "step_end, stubbed counters, exporter absent"
STUB_HANGING = "step_end, stubbed counters, exporter hanging"
RESIDENT_UP = "step_end, resident memory, exporter up"
THEIRS = "TraceML trace_step, CPU"
NOTHING = "empty call: this machine's noise"

TIMED = """
import json, sys, time
n_steps = int(sys.argv[1])
{setup}
times, works = [], []
for n in range(1, n_steps + 1):
    {before}
    time.sleep(0.0005)
    until = time.perf_counter_ns() + 500_000
    while time.perf_counter_ns() < until:
        pass
    worked = time.thread_time_ns()
    began = time.perf_counter_ns()
    {step}
    times.append(time.perf_counter_ns() - began)
    works.append(time.thread_time_ns() - worked)
cold = len(times) // 10
print(json.dumps([sorted(each[cold:])[(len(each) - cold) * share // 100] * 1e-9 for each in (times, works) for share in (50, 99)]))
"""

STUBBED = TIMED.format(setup="import torch, stepmem; torch.malloc(1 << 20)", before="torch.malloc(64)", step="stepmem.step_end(n)")
EMPTY = TIMED.format(setup="def nothing(): pass", before="", step="nothing()")
RESIDENT = TIMED.format(setup="import stepmem", before="", step="stepmem.step_end(n)")
TRACEML = TIMED.format(
    setup="""
import torch
import traceml_ai
from traceml_ai.instrumentation import step_events
model = torch.nn.Linear(1, 1)
drains = [getattr(step_events, name) for name in dir(step_events) if name.startswith("drain_")]
assert len(drains) >= 2, drains
""",
    before="n % 256 or [drain() for drain in drains]",
    step="with traceml_ai.trace_step(model): pass",
)
MEMORY = """
import os
def anonymous():
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
import sys, time
if sys.argv[1] == "1":
    import torch
before = anonymous()
import stepmem
for n in range(20000):
    stepmem.step_end(n)
time.sleep(2)
print(anonymous() - before)
"""


def run(python, code, n_steps, url, stub):
    """Runs one measurement and returns its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON", "TRACEML_"))}
    paths = [str(ROOT / "python"), *([str(ROOT / "python/tests/stub")] if stub else [])]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), "STEPMEM_PUSH_URL": url}
    arguments = [python, "-c", code, str(n_steps)]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        raise SystemExit(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


def row(what, value, target=None, verdict=None):
    print(f"{what:<50} {value:>40} {target or '':>16} {'' if verdict is None else 'PASS' if verdict else 'MISS'}")


def both(p50, p99, worked_p50, worked_p99):
    return f"{p50 * 1e6:.1f} / {p99 * 1e6:.1f} us, cpu {worked_p50 * 1e6:.1f} / {worked_p99 * 1e6:.1f} us"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binary")
    arguments.add_argument("--python", default=sys.executable)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    effort = (1000, 1) if options.quick else (6000, 3)
    end_on_sigterm()
    (absent,) = free_ports(1)

    def serve(web, push):
        quiet = [options.binary, "serve", "--no-nvml", "--log.level", "error"]
        return [*quiet, "--web.listen-address", f"127.0.0.1:{web}", "--push.listen-address", f"127.0.0.1:{push}"]

    has_traceml = subprocess.run([options.python, "-c", "import torch, traceml_ai"], capture_output=True).returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        exporter, (_, push) = start_listening(serve, 2, os.path.join(folder, "log"))
        with exporter:
            figures = measure(options.python, exporter, (f"http://127.0.0.1:{push}", f"http://127.0.0.1:{absent}"), has_traceml, effort)
    absent_url = f"http://127.0.0.1:{absent}"
    memory = {
        what: statistics.median(run(options.python, MEMORY, with_torch, absent_url, False) for _ in range(effort[1]))
        for what, with_torch in (("in a bare interpreter", 0), *([("beside PyTorch", 1)] if has_traceml else []))
    }
    report(figures, memory, effort)


def measure(python, exporter, urls, has_traceml, effort):
    """The p50 and p99 of each case in seconds, the median of the rounds, the cases in turn."""
    (up, down), (n_steps, n_rounds) = urls, effort
    cases = [
        (NOTHING, EMPTY, down, False),
        (STUB_UP, STUBBED, up, True),
        (STUB_ABSENT, STUBBED, down, True),
        (RESIDENT_UP, RESIDENT, up, False),
        *([(THEIRS, TRACEML, down, False)] if has_traceml else []),
    ]
    rounds = {name: [] for name, *_ in cases}
    for _ in range(n_rounds):
        for name, code, url, stub in cases:
            rounds[name].append(run(python, code, n_steps, url, stub))
    os.kill(exporter.pid, signal.SIGSTOP)
    try:
        rounds[STUB_HANGING] = [run(python, STUBBED, n_steps, up, True) for _ in range(n_rounds)]
    finally:
        os.kill(exporter.pid, signal.SIGCONT)
    return {name: [statistics.median(each) for each in zip(*found)] for name, found in rounds.items()}


def report(figures, memory, effort):
    """Prints the table."""
    row(f"a step a ms, {effort[0]} steps, median of {effort[1]}", "p50 / p99", "target")
    row(NOTHING, both(*figures[NOTHING]))
    for name in (STUB_UP, STUB_ABSENT, STUB_HANGING):
        p50, p99, *_ = figures[name]
        row(name, both(*figures[name]), "<= 10 / 30 us", p50 <= P50_SECONDS_MAX and p99 <= P99_SECONDS_MAX)
    row(RESIDENT_UP, both(*figures[RESIDENT_UP]))
    share = figures[STUB_UP][0] / 10e-3
    row("share of a 10 ms step", f"{share:.3%}", "<= 0.1 %", share <= SHARE_OF_10_MS_MAX)
    for what, n_bytes in memory.items():
        target = ("<= 2 MiB", n_bytes <= MEMORY_BYTES_MAX) if what == "beside PyTorch" else ()
        row(f"memory, ring full, {what}", f"{n_bytes / (1 << 20):.2f} MiB", *target)
    if THEIRS not in figures:
        row(THEIRS, "not measured: python/tests/install.sh torch")
        return
    theirs = figures[THEIRS]
    row(THEIRS, both(*theirs))
    for what, name in (("resident memory", RESIDENT_UP), ("stubbed counters", STUB_UP)):
        ratios = [their / our for their, our in zip(theirs, figures[name])]
        row(f"TraceML's by ours, {what}", f"{ratios[0]:.1f} / {ratios[1]:.1f} x, cpu {ratios[2]:.1f} / {ratios[3]:.1f} x")


if __name__ == "__main__":
    main()
