"""The last words of `stepmem run`: how the command's processes ended, and what could not be written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import BINARY, LEAK, STUB
from test_run import python, run, script  # noqa: F401

STEPS = """
    import os, signal, sys, time
    import torch
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for _ in range(300):
        optimizer.step()
        time.sleep(0.005)
"""


def rank_of(tmp_path):
    (path,) = (tmp_path / "logs").rglob("final_summary.json")
    (rank,) = json.loads(path.read_text())["ranks"]
    return rank


@pytest.mark.parametrize(
    "ending, code, words",
    [
        ("raise ValueError('bad batch')", 1, "Ended with an error: rank 0, at step 300: ValueError: bad batch."),
        ("sys.exit(5)", 5, "Ended with an error: rank 0, at step 300: SystemExit: 5."),
        ("raise KeyboardInterrupt", 130, "Stopped by Ctrl-C: rank 0, at step 300."),
        ("pass", 0, None),
    ],
)
def test_card_says_how_the_process_ended(run, script, tmp_path, ending, code, words):  # noqa: F811
    ended = python(run, script(textwrap.dedent(STEPS) + ending)).ended()
    assert ended.code == code, ended.err
    assert rank_of(tmp_path)["state"] == "ended"
    if words is None:
        assert "Ended" not in ended.err and "Stopped" not in ended.err, ended.err
    else:
        assert words in ended.err, ended.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_process_that_was_killed_is_not_called_pushing(run, script, tmp_path, number):  # noqa: F811
    ended = python(run, script(textwrap.dedent(STEPS) + f"os.kill(os.getpid(), {int(number)})")).ended()
    assert ended.code == 128 + number
    assert "Ended without a word, as by a signal: rank 0, last heard of at step " in ended.err, ended.err
    rank = rank_of(tmp_path)
    assert (rank["state"], rank.get("end")) == ("ended_unannounced", None)


def test_growth_of_a_process_that_was_killed_is_told_in_the_past(run, script, tmp_path):  # noqa: F811
    leak = STEPS.replace("optimizer.step()", "torch.malloc(1 << 20); optimizer.step()")
    ended = python(run, script(textwrap.dedent(leak) + "os.kill(os.getpid(), signal.SIGKILL)")).ended()
    card = next(path for path in (tmp_path / "logs").rglob("final_summary.txt")).read_text()
    assert "live memory grew by 1.00 MiB/step" in " ".join(card.split()), card
    assert " left" not in card and "out of memory in" not in card, card


def test_rank_that_was_killed_is_named_though_others_completed(run, script):  # noqa: F811
    going_on = script(textwrap.dedent(STEPS).replace("0.005", "0.002").replace("300", "2000"))
    killed = script(textwrap.dedent(STEPS) + "os.kill(os.getpid(), signal.SIGKILL)")
    both = f"RANK=1 {sys.executable} {killed} & RANK=0 {sys.executable} {going_on}; wait"
    ended = run("bash", "-c", both, PYTHONPATH=STUB, STEPMEM_RUN="job", WORLD_SIZE="2").ended()
    assert ended.code == 0, ended.err
    assert "2 of 2 ranks, steps 1 to 2,000" in ended.err, ended.err
    assert "Ended without a word, as by a signal: rank 1, last heard of at step " in ended.err, ended.err


def test_process_that_runs_on_is_not_called_gone(run, script, tmp_path):  # noqa: F811
    path = script(textwrap.dedent(STEPS) + "print('done', flush=True); time.sleep(60)")
    started = python(run, "-c", f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, {path!r}], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
print(left.stdout.readline().strip(), left.pid)
""")  # fmt: skip
    word, left = started.line().split()
    ended = started.ended()
    os.kill(int(left), signal.SIGKILL)
    assert (word, ended.code) == ("done", 0)
    assert "Ended without a word" not in ended.err and rank_of(tmp_path)["state"] == "pushing", ended.err


def test_verdict_counts_where_its_copy_cannot_be_written(run, script, without_cuda, tmp_path):  # noqa: F811
    options = ("--fail-on=creep:warning", "--summary-json=none\x1b[2J\u202e/out.json")
    folder = tmp_path / "none\x1b[2J\u202e"
    folder.mkdir()
    ended = python(run, script(f"import os; os.rmdir({str(folder)!r})\n" + textwrap.dedent(LEAK)), options=options, PYTHONPATH=without_cuda).ended()
    assert ended.code == 3, ended.err
    assert r"stepmem: --summary-json: none\u{1b}[2J\u{202e}/out.json is not written: No such file or directory" in ended.err
    assert "no summary" not in ended.err


def test_summary_that_is_not_written_is_said(run, script, tmp_path):  # noqa: F811
    (tmp_path / "logs").write_text("a file")
    ended = python(run, script(STEPS)).ended()
    assert ended.code == 0
    assert "steps 1 to 300" in ended.err and "Written to" not in ended.err
    assert ended.err.count("stepmem: summary.dir: logs: not a directory\n") == 1, ended.err


def test_user_without_a_home_has_that_of_the_list_of_users(run, script):  # noqa: F811
    code = "import os, pwd; print(os.environ['PYTHONPATH'].startswith(pwd.getpwuid(os.getuid()).pw_dir + '/.cache/stepmem/client-'))"
    assert python(run, "-c", code, HOME=None).ended().out == "True\n"


LEVELS_OFF = """
    import time
    import torch
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    for step in range(3000):
        if 200 < step < 700:
            torch.malloc(1 << 20)
        optimizer.step()
        time.sleep(0.003)
"""


def test_growth_that_has_ended_is_said_to_be_level(run, script):  # noqa: F811
    ended = python(run, script(LEVELS_OFF)).ended()
    assert ended.code == 0
    raised, level = (ended.err.find(f"stepmem: MEMORY CREEP ({word})") for word in ("critical", "info"))
    assert 0 < raised < level, ended.err
    assert re.search(r": live memory grew 4\d\d MiB until step [67]\d\d; level since\n", ended.err[level:]), ended.err
    assert "cleared" not in ended.err[level:], ended.err


def test_figures_of_a_summary_that_another_wrote_are_not_added_up_to_more_than_fits(run, script, tmp_path):  # noqa: F811
    python(run, script(STEPS), options=("--no-record",)).ended()
    (path,) = (tmp_path / "logs").rglob("final_summary.json")
    summary = json.loads(path.read_text())
    summary["ranks"][0].update(steps=2**64 - 1, unread_steps=2**64 - 1)
    path.write_text(json.dumps(summary))
    summary["ranks"][0]["rank"] = 1
    path.with_name("final_summary.other.rank1.json").write_text(json.dumps(summary))
    merged = subprocess.run([BINARY, "summary", str(path.parent)], capture_output=True, text=True)
    assert (merged.returncode, merged.stderr) == (0, ""), merged.stderr
    assert "2 ranks, steps 1 to 300" in merged.stdout and "read" not in merged.stdout
