"""Out of memory below `stepmem run`: errors that the program catches, and processes that the kernel kills."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import textwrap
from typing import Iterator, Optional

import pytest
from conftest import STUB, await_true
from test_run import python, run, script  # noqa: F401

STEPS = """
    import os, sys, time
    import torch
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for _ in range(30):
        optimizer.step()
        time.sleep(0.01)
"""

EAT = """
kept = []
while True:
    kept.append(b"x" * (8 << 20))
"""

PUSHED = """
import stepmem
assert stepmem.flush(60)
open(f"pushed{os.environ['RANK']}", "w").close()
def await_rank_0():
    while not os.path.exists("pushed0"):
        time.sleep(0.01)
"""

LIMIT_BYTES = 192 << 20
"""What the command's control group may take: Python with the stub needs a few MiB."""


def memory_group() -> Optional[pathlib.Path]:
    """This process's control group with a counter of kills, where one can be made below it; None elsewhere."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group = pathlib.Path("/sys/fs/cgroup" + path)
            is_ready = "memory" in _text(group / "cgroup.subtree_control")
        elif "memory" in controllers.split(","):
            group = pathlib.Path("/sys/fs/cgroup/memory" + path)
            is_ready = "oom_kill " in _text(group / "memory.oom_control")
        else:
            continue
        if is_ready and os.access(group, os.W_OK):
            return group
    return None


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
def group(request) -> Iterator[pathlib.Path]:
    """A control group with a limit, for the command."""
    above = memory_group()
    if above is None:
        pytest.skip("no control group with a limit can be made here; kills by the kernel are not tried")
    path = above / f"stepmem-test-{os.getpid()}-{abs(hash(request.node.name)) % 10**6}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error}); kills by the kernel are not tried")
    limit = path / ("memory.max" if (path / "memory.max").exists() else "memory.limit_in_bytes")
    limit.write_text(str(LIMIT_BYTES))
    swap = path / "memory.swap.max"
    if swap.exists():
        swap.write_text("0")
    yield path
    for pid in _text(path / "cgroup.procs").split():
        os.kill(int(pid), signal.SIGKILL)
    path.rmdir()


def card(tmp_path: pathlib.Path) -> str:
    return (tmp_path / "logs/latest/final_summary.txt").read_text()


def inside(group: pathlib.Path, command: str) -> "list[str]":
    """A command that moves into a control group first."""
    return ["sh", "-c", f"echo $$ > {group}/cgroup.procs; {command}"]


def test_rank_that_the_kernel_kills_is_out_of_memory(run, script, tmp_path, group):  # noqa: F811
    path = script(textwrap.dedent(STEPS) + EAT)
    ended = run(*inside(group, f"exec {sys.executable} {path}"), PYTHONPATH=STUB).ended()
    assert ended.code == 137, ended.err
    assert "stepmem: OUT OF MEMORY (critical), rank 0 of " in ended.err, ended.err
    assert "the kernel killed its process for lack of memory after step " in card(tmp_path), card(tmp_path)
    assert "stepmem: the command was killed (SIGKILL)" in ended.err, ended.err


def test_only_the_rank_that_the_kernel_kills_is_out_of_memory(run, script, tmp_path, group):  # noqa: F811
    path = script(textwrap.dedent(STEPS) + PUSHED + "if os.environ['RANK'] == '1':\n    await_rank_0()\n" + textwrap.indent(EAT, "    ") + "\ntime.sleep(600)\n")
    # As a launcher does: it ends the others once one has died.
    both = f"RANK=0 {sys.executable} {path} & other=$!; RANK=1 {sys.executable} {path} & wait $!; kill -KILL $other; wait; exit 1"
    ended = run(*inside(group, both), PYTHONPATH=STUB, STEPMEM_RUN="job", WORLD_SIZE="2").ended()
    assert ended.code == 1, ended.err
    assert "OUT OF MEMORY (critical) on rank 1" in card(tmp_path), card(tmp_path)
    assert "Ended without a word, as by a signal: rank 0, last heard of at step " in card(tmp_path), card(tmp_path)


def test_kill_of_a_process_that_is_no_rank_is_said_and_no_finding(run, script, tmp_path, group):  # noqa: F811
    worker = f"import subprocess, sys\nassert subprocess.run([sys.executable, '-c', {EAT!r}]).returncode == -9\n"
    path = script(textwrap.dedent(STEPS) + worker)
    ended = run(*inside(group, f"exec {sys.executable} {path}"), PYTHONPATH=STUB).ended()
    assert ended.code == 0, ended.err
    assert "stepmem: the kernel killed a process of the command for lack of memory (oom_kill of the control group rose)" in ended.err, ended.err
    assert "OUT OF MEMORY" not in ended.err, ended.err


def test_kill_by_a_person_is_not_out_of_memory(run, script, tmp_path):  # noqa: F811
    ended = python(run, script(textwrap.dedent(STEPS) + "os.kill(os.getpid(), 9)")).ended()
    assert ended.code == 137, ended.err
    assert "stepmem: the command was killed (SIGKILL)" in ended.err, ended.err
    for words in ("the kernel killed", "of memory in"):
        assert words not in ended.notes, ended.err
    assert "OUT OF MEMORY" not in card(tmp_path)


@pytest.mark.parametrize(
    "ending, code, words",
    [
        ("", 0, "caught an out-of-memory error after step 30 and ended without another step"),
        ("raise SystemExit(1)", 1, "ended out of memory at step 30"),
        ("sys.exit(1)", 1, "ended out of memory at step 30"),
        ("for _ in range(5): optimizer.step()", 0, "ran out of memory before step 31 and went on (1 so far)"),
        (
            "for _ in range(5): optimizer.step()\nraise ValueError('later') from None",
            1,
            "ran out of memory before step 31 and went on (1 so far); it ended with another error later",
        ),
    ],
)
def test_error_that_the_program_catches_is_on_the_card(run, script, tmp_path, ending, code, words):  # noqa: F811
    steps = textwrap.dedent(STEPS)
    caught = "try:\n    torch.malloc(2 << 30)\nexcept torch.OutOfMemoryError:\n    error = 1\n"
    if "exit" in ending.lower():
        caught, ending = caught.replace("error = 1", ending), ""
    ended = python(run, script(steps + caught + ending + "\n"), STEPMEM_EVERY_STEP="1").ended()
    assert ended.code == code, ended.err
    text = " ".join(card(tmp_path).split())
    assert "OUT OF MEMORY" in text and words in text, text
    if code:
        assert f"stepmem: the command ended with exit code {code}" in ended.err, ended.err
    rank = json.loads((tmp_path / "logs/latest/final_summary.json").read_text())["ranks"][0]
    assert rank["ooms"] == 1


def test_exit_code_that_another_rank_explains_makes_no_out_of_memory(run, script, tmp_path):  # noqa: F811
    path = script(textwrap.dedent(STEPS) + "if os.environ['RANK'] == '1':\n    sys.exit(3)\ntry:\n    torch.malloc(2 << 30)\nexcept torch.OutOfMemoryError:\n    pass\n")
    both = f"RANK=0 {sys.executable} {path} & RANK=1 {sys.executable} {path}; code=$?; wait; exit $code"
    ended = run("sh", "-c", both, PYTHONPATH=STUB, STEPMEM_RUN="job", WORLD_SIZE="2", STEPMEM_EVERY_STEP="1").ended()
    assert ended.code == 3, ended.err
    text = " ".join(card(tmp_path).split())
    assert "OUT OF MEMORY (warning) on rank 0" in text and "Ended with an error: rank 1" in text, text


CAUGHT = "try:\n    torch.malloc(2 << 30)\nexcept torch.OutOfMemoryError:\n    pass\n"


def test_second_run_of_a_command_that_fails_leaves_the_end_of_the_first(run, script, tmp_path):  # noqa: F811
    first, second = script(textwrap.dedent(STEPS) + CAUGHT), script(textwrap.dedent(STEPS) + "sys.exit(3)\n")
    both = f"STEPMEM_RUN=first {sys.executable} {first} && STEPMEM_RUN=second {sys.executable} {second}"
    ended = run("sh", "-c", both, PYTHONPATH=STUB, STEPMEM_EVERY_STEP="1").ended()
    assert ended.code == 3, ended.err
    text = " ".join((tmp_path / "logs/first/latest/final_summary.txt").read_text().split())
    assert "OUT OF MEMORY (warning) on rank 0" in text, text
    assert "OUT OF MEMORY" not in (tmp_path / "logs/second/latest/final_summary.txt").read_text()


def test_each_of_two_commands_that_push_one_run_corrects_its_own_ranks(run, script, tmp_path):  # noqa: F811
    """As on two machines, or in two terminals: the exit code of one says nothing of the other's rank, which caught an error too."""
    path = script(textwrap.dedent(STEPS) + CAUGHT + "open('caught' + os.environ['RANK'], 'w').close()\nwhile not os.path.exists('over'): time.sleep(0.02)\nsys.exit(int(os.environ['RANK']))\n")
    started = [python(run, path, RANK=str(rank), WORLD_SIZE="2", STEPMEM_RUN="job", STEPMEM_EVERY_STEP="1") for rank in (0, 1)]
    await_true("both caught it", lambda: all((tmp_path / f"caught{rank}").exists() for rank in (0, 1)))
    (tmp_path / "over").touch()
    codes = [each.ended() for each in started]
    assert [ended.code for ended in codes] == [0, 1], codes[1].err
    cards = [" ".join(path.read_text().split()) for path in sorted(tmp_path.glob("logs/job/*/final_summary*.txt"))]
    of = {rank: [text for text in cards if f" on rank {rank}" in text] for rank in (0, 1)}
    assert len(set(of[0])) == len(set(of[1])) == 1, cards
    assert "OUT OF MEMORY (warning) on rank 0" in of[0][0] and "OUT OF MEMORY (critical) on rank 1" in of[1][0], cards
