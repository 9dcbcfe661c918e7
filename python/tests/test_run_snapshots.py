"""`stepmem run --snapshots`: snapshots on growth and on out-of-memory errors, the lines that they name, and where they lie."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import textwrap
from typing import Any, Callable, List

import pytest
from conftest import STUB
from test_run import Run, python, run, script  # noqa: F401

LEAK = """
    import os, time
    from torch._recorded import malloc, free
    from torch.optim.optimizer import Optimizer

    kept = []

    def evaluate():
        kept.append(malloc())  # the line that leaks

    def train():
        activations = [malloc() for _ in range(5)]
        for each in activations:
            free(each)

    optimizer = Optimizer()
    for _ in range(5000):
        train()
        evaluate()
        optimizer.step()
        time.sleep(0.002)
        if os.path.exists("stop"):
            break
"""

OOM = """
    import time
    import torch
    from torch._recorded import malloc
    from torch.optim.optimizer import Optimizer
    torch._C.TOTAL = 1 << 30

    def build():
        return malloc()  # the line that holds

    optimizer, kept = Optimizer(), []
    for step in range(20):
        optimizer.step()
        time.sleep(0.01)
    while True:
        kept.append(build())
"""


def line_with(path: str, words: str) -> int:
    lines = pathlib.Path(path).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


def words(card: str) -> str:
    """The card without its line breaks."""
    return " ".join(card.split())


def await_line(started: Run, pattern: str) -> "List[str]":
    """Reads standard error up to the line that matches."""
    assert started.process.stderr is not None
    lines: List[str] = []
    for line in started.process.stderr:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError("".join(lines))


def launch_folder(cwd: pathlib.Path) -> pathlib.Path:
    (folder,) = {path.parent for path in cwd.glob("logs/*/2*/final_summary.json")}
    return folder


def check_snapshot(cwd: pathlib.Path, card: str, reason: str) -> "Any":
    """Checks that the only snapshot lies beside the summary and is named there. Returns the summary."""
    folder = launch_folder(cwd)
    (snapshot,) = folder.glob("*.pickle")
    assert f"_{reason}_rank0_step" in snapshot.name
    summary = json.loads((folder / "final_summary.json").read_text())
    (listed,) = summary["snapshots"]
    assert (listed["path"], listed["analysis"]) == (snapshot.name, "analysed")
    assert f"({reason}): {snapshot.name}" in words(card), card
    assert f"stepmem snapshot show {folder.relative_to(cwd)}/{snapshot.name}" in card
    assert not list(cwd.glob("logs/.snapshots-*")), "nothing is left beside it"
    return summary


def test_line_that_leaks_is_named_on_standard_error_and_in_the_card(run, script, tmp_path):
    path = script(LEAK)
    started = python(run, path, options=("--snapshots", "--summary-json=out.json"))
    at = rf"allocated at [\w./-]*script0\.py:{line_with(path, 'the line that leaks')} in evaluate"
    said = await_line(started, at)
    assert re.match(r"stepmem: MEMORY (CREEP|RISING) \((warning|critical)\), rank 0 of script0-\S+: live memory grows by", said[-1]), said
    (tmp_path / "stop").touch()
    ended = started.ended()
    assert ended.code == 0, ended.err
    assert re.search(at, words(ended.err)), ended.err
    summary = check_snapshot(tmp_path, ended.err, "creep")
    (issue,) = [each for each in summary["issues"] if each["kind"].startswith("CREEP")]
    assert issue["evidence"]["site"]["at"]["function"] == "evaluate"
    assert json.loads((tmp_path / "out.json").read_text()) == summary


def test_line_that_holds_the_memory_of_an_oom_is_named_after_the_program_died_of_it(run, script, tmp_path):
    path = script(OOM)
    ended = python(run, path, options=("--snapshots",)).ended()
    assert ended.code == 1 and "OutOfMemoryError" in ended.err
    at = rf"script0\.py:{line_with(path, 'the line that holds')} in build"
    named = [line for line in ended.err.splitlines() if line.startswith("stepmem: OUT OF MEMORY") and re.search(at, line)]
    assert len(named) == 1, ended.err
    summary = check_snapshot(tmp_path, ended.err, "oom")
    (issue,) = [each for each in summary["issues"] if each["kind"] == "OUT_OF_MEMORY"]
    assert issue["evidence"]["site"]["at"]["function"] == "build"
    assert re.search(at, words(ended.err).split("OUT OF MEMORY (critical) on rank 0")[1]), ended.err


def test_directory_that_the_user_named_is_where_snapshots_stay(run, script, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    ended = python(run, script(OOM), options=("--snapshots",), STEPMEM_SNAPSHOT_DIRECTORY=str(own)).ended()
    (snapshot,) = own.glob("*.pickle")
    assert " in build" in words(ended.err) and str(snapshot) in ended.err.replace("\n  ", "")
    assert not list(tmp_path.glob("logs/**/*.pickle"))


def test_without_the_option_no_snapshot_is_written(run, script, tmp_path):
    code = "import os; print([name for name in os.environ if 'SNAPSHOT' in name])\n" + textwrap.dedent(OOM)
    ended = python(run, script(code)).ended()
    assert (ended.code, ended.out) == (1, "[]\n")
    assert not list(tmp_path.glob("**/*.pickle"))


@pytest.mark.parametrize("options", [("--summary.dir=",), ("--summary.dir=/dev/full/logs",)])
def test_command_runs_where_snapshots_have_no_place(run, options):
    ended = run("sh", "-c", "exit 7", options=("--snapshots", *options)).ended()
    assert ended.code == 7 and "stepmem: no memory snapshots: " in ended.err
