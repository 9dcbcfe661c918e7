"""`stepmem run --fail-on`: which exit code, and why."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap

import pytest
from conftest import LEAK, STUB
from test_run import python, run, script  # noqa: F401

STEPS = """
    import sys, time
    import torch
    from torch.optim.optimizer import Optimizer
    optimizer = Optimizer()
    kept = torch.malloc(100 << 20)
    for _ in range(int(sys.argv[1])):
        optimizer.step()
        time.sleep(0.001)
"""
"""A script on the stub of a GPU, whose allocator has 100 MiB and what it caches."""


def test_changed_exit_code_is_explained(run, script, without_cuda):  # noqa: F811
    ended = python(run, script(LEAK), options=("--fail-on=creep:warning",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 3, ended.err
    line = ended.err.splitlines()[-1]
    assert re.match(r"stepmem: exit code 3: MEMORY CREEP \((warning|critical)\) on rank 0: host memory grew by .* \(--fail-on creep:warning\)$", line), ended.err


@pytest.mark.parametrize("condition, code", [("rising", 3), ("creep", 0), ("any:warning", 0), ("pressure", 0)])
def test_growth_that_is_not_yet_creep_fails_on_rising_and_is_named_where_creep_is_asked_for(run, script, without_cuda, condition, code):  # noqa: F811
    short = script(LEAK.replace("range(700)", "range(110)"))
    ended = python(run, short, options=(f"--fail-on={condition}",), PYTHONPATH=without_cuda).ended()
    assert ended.code == code, ended.err
    last = ended.err.splitlines()[-1]
    growth = r"MEMORY RISING \(info\) on rank 0: host memory grew by .*"
    passed = rf"stepmem: {growth} \(passes --fail-on {condition}; --fail-on rising fails\)$"
    failed = rf"stepmem: exit code 3: {growth} \(--fail-on rising\)$"
    if condition == "pressure":
        assert "fail-on" not in last, ended.err
    else:
        assert re.match(failed if code else passed, last), ended.err


def test_creep_fails_on_rising_too(run, script, without_cuda):  # noqa: F811
    ended = python(run, script(LEAK), options=("--fail-on=rising",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 3 and "MEMORY CREEP" in ended.err.splitlines()[-1], ended.err


def test_growth_on_the_host_next_to_a_gpu_fails_too(run, script):  # noqa: F811
    ended = python(run, script(LEAK), options=("--fail-on=creep:warning",)).ended()
    assert ended.code == 3, ended.err
    assert "MEMORY CREEP (host)" in ended.err.splitlines()[-1], ended.err


def test_exit_code_of_a_command_that_failed_is_its_own_and_not_explained(run, script, without_cuda):  # noqa: F811
    failing = script(textwrap.dedent(LEAK) + "raise SystemExit(9)\n")
    ended = python(run, failing, options=("--fail-on=any:warning,peak:1MiB",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 9 and "stepmem: exit code" not in ended.err, ended.err
    assert "stepmem: the command ended with exit code 9" in ended.err, ended.err


@pytest.mark.parametrize(
    "arguments, condition, reason",
    [
        (("-c", "pass"), "creep", "nothing was watched"),
        (("-c", "pass"), "peak:20GiB", "nothing was watched"),
        ((STEPS, "20"), "creep", "too few steps to judge creep"),
        ((STEPS, "20"), "any:warning", "too few steps to judge creep"),
    ],
)
def test_command_that_was_not_watched_or_judged_fails_unless_that_is_allowed(run, script, arguments, condition, reason):  # noqa: F811
    first, *others = arguments
    command = [first, *others] if first == "-c" else [script(first), *others]
    ended = python(run, *command, options=(f"--fail-on={condition}",)).ended()
    assert ended.code == 4, ended.err
    assert f"stepmem: exit code 4: {reason} (--fail-on {condition}; with ,unwatched-ok that is no failure)" in ended.err, ended.err
    assert python(run, *command, options=(f"--fail-on={condition},unwatched-ok",)).ended().code == 0
    assert python(run, *command, options=(f"--fail-on={condition}", "--fail-on=unwatched-ok")).ended().code == 0


def test_condition_that_needs_few_steps_is_judged_by_few(run, script):  # noqa: F811
    for condition in ("pressure:warning", "imbalance", "peak:1GiB"):
        ended = python(run, script(STEPS), "20", options=(f"--fail-on={condition}",)).ended()
        assert ended.code == 0 and "exit code" not in ended.err, ended.err


def test_killed_exporter_has_judged_nothing(run):  # noqa: F811
    for options, code in (((), 0), (("--fail-on=creep",), 4), (("--fail-on=creep,unwatched-ok",), 0)):
        started = run("sh", "-c", "echo started; read line; exit 0", options=options)
        assert started.line() == "started"
        os.kill(started.child("stepmem"), signal.SIGKILL)
        assert started.process.stdin is not None
        started.process.stdin.close()
        started.process.stdin = None
        ended = started.ended()
        assert ended.code == code, ended.err
        assert ("stepmem: exit code 4: there is no summary to judge by (--fail-on)" in ended.err) == (code == 4), ended.err


def test_peak_has_a_budget(run, script, tmp_path):  # noqa: F811
    ended = python(run, script(STEPS), "20", options=("--fail-on=peak:50MiB", "--summary-json=base.json")).ended()
    assert ended.code == 3, ended.err
    assert "stepmem: exit code 3: the peak of reserved memory of rank 0 is 100 MiB; the limit is 50.0 MiB (--fail-on peak:50MiB)" in ended.err, ended.err
    baseline = json.loads((tmp_path / "base.json").read_text())
    smaller = json.loads(json.dumps(baseline).replace(str(baseline["ranks"][0]["peak_reserved"]["max_bytes"]), str(90 << 20)))
    (tmp_path / "smaller.json").write_text(json.dumps(smaller))
    directory = next(path for path in (tmp_path / "logs").iterdir() if path.is_dir() and not path.is_symlink())
    for condition, code in (
        ("peak:1GiB", 0),
        ("peak:+5%:base.json", 0),
        ("peak:+5%:logs/latest", 0),
        (f"peak:+5%:{directory}", 0),
        ("peak:+50%:smaller.json", 0),
        ("peak:+5%:smaller.json", 3),
        ("peak:1GiB,peak:+5%:smaller.json", 3),
        ("creep,unwatched-ok,peak:+5%:smaller.json", 3),
    ):
        ended = python(run, script(STEPS), "20", options=(f"--fail-on={condition}",)).ended()
        assert ended.code == code, (condition, ended.err)
        if code:
            assert "; the limit is 94.5 MiB, 5% above the 90.0 MiB of smaller.json (--fail-on peak:+5%:smaller.json)" in ended.err, ended.err


def test_peak_of_a_process_without_a_gpu_is_what_was_resident(run, script, without_cuda):  # noqa: F811
    code = LEAK.replace("range(700)", "range(100)")
    for condition, exit_code in (("peak:50MiB", 3), ("peak:10GiB", 0)):
        ended = python(run, script(code), options=(f"--fail-on={condition}",), PYTHONPATH=without_cuda).ended()
        assert ended.code == exit_code, ended.err
        is_said = "stepmem: exit code 3: the peak of resident host memory of rank 0 is " in ended.err
        assert is_said == (exit_code == 3), ended.err


def test_peak_of_a_gpu_is_not_judged_by_that_of_a_host_nor_the_other_way_round(run, script, without_cuda):  # noqa: F811
    steps = script(STEPS.replace("kept = torch.malloc(100 << 20)", ""))
    for stub, name in ((STUB, "gpu.json"), (without_cuda, "host.json")):
        python(run, steps, "5", options=(f"--summary-json={name}",), PYTHONPATH=stub).ended()
    reserved, resident = "reserved memory", "resident host memory"
    for stub, name, baseline, own in ((STUB, "host.json", resident, reserved), (without_cuda, "gpu.json", reserved, resident)):
        ended = python(run, steps, "5", options=(f"--fail-on=peak:+1000%:{name}",), PYTHONPATH=stub).ended()
        assert ended.code == 4, ended.err
        assert f"stepmem: exit code 4: the baseline has a peak of {baseline}, this run of {own} (--fail-on peak:+1000%:{name})" in ended.err, ended.err


@pytest.mark.parametrize(
    "change, environment, command, reason",
    [
        (None, {}, [], "base.json: No such file or directory"),
        (lambda summary: {}, {}, [], "base.json: not a summary of this version of stepmem"),
        ("no peak", {}, [], "base.json: it has no peak of reserved memory"),
        ("eight", {"WORLD_SIZE": "4"}, [], "base.json: the baseline has a world size of 8, this run of 4"),
        ("eight", {}, ["torchrun", "--nproc-per-node", "2"], "base.json: the baseline has a world size of 8, this run of 2"),
    ],
)
def test_baseline_that_is_not_one_is_an_error_before_the_command_starts(run, script, tmp_path, change, environment, command, reason):  # noqa: F811
    python(run, script(STEPS), "5", options=("--summary-json=base.json",)).ended()
    path = tmp_path / "base.json"
    summary = json.loads(path.read_text())
    if change == "no peak":
        summary["ranks"][0].update(peak_reserved=None, reserved=None)
    elif change == "eight":
        summary["coverage"]["ranks_expected"] = 8
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(change(summary) if callable(change) else summary))
    ended = run(*(command or ["touch", "ran"]), options=("--fail-on=peak:+5%:base.json",), **environment).ended()
    assert ended.code == 2 and not (tmp_path / "ran").exists(), ended.err
    assert "the command was not started: --fail-on peak:+5%:base.json: " in ended.err and reason in ended.err, ended.err


def test_baseline_of_another_world_size_that_shows_at_the_end_is_not_judged(run, script, tmp_path):  # noqa: F811
    python(run, script(STEPS), "5", options=("--summary-json=base.json",)).ended()
    path = tmp_path / "base.json"
    summary = json.loads(path.read_text())
    summary["coverage"]["ranks_expected"] = 8
    path.write_text(json.dumps(summary))
    ended = python(run, script(STEPS), "5", options=("--fail-on=peak:+5%:base.json,unwatched-ok",)).ended()
    assert ended.code == 4, ended.err
    assert "stepmem: exit code 4: the baseline has a world size of 8, this run of 1 (--fail-on peak:+5%:base.json)" in ended.err, ended.err


@pytest.mark.parametrize("condition", ["memory", "creep:info", "peak:", "peak:+5%:", "peak:lots", "creep,", "unwatched-ok"])
def test_condition_that_is_wrong_is_an_error_before_the_command_starts(run, tmp_path, condition):  # noqa: F811
    ended = run("touch", "ran", options=(f"--fail-on={condition}",)).ended()
    # Of a size that is none, what a size is; else every condition that there is.
    helps = "is not a size with its unit, such as 20GiB" if condition in ("peak:", "peak:lots") else "unwatched-ok"
    assert ended.code in (1, 2) and helps in ended.err and not (tmp_path / "ran").exists(), ended.err


def test_latest_leads_to_the_last_summary_of_any_run(run, script, tmp_path):  # noqa: F811
    for n in ("1", "2"):
        assert python(run, script(STEPS), n).ended().code == 0
    card = (tmp_path / "logs/latest/final_summary.txt").read_text()
    assert "steps 1 to 2" in card, card


def test_latest_that_is_a_directory_stays_with_a_note(run, script, tmp_path):  # noqa: F811
    (tmp_path / "logs/latest").mkdir(parents=True)
    ended = python(run, script(STEPS), "5").ended()
    assert ended.code == 0 and "Written to logs/" in ended.err, ended.err
    assert "Note: logs/latest is not a link to a launch, and stays as it is." in ended.err, ended.err


def test_declared_workload_is_in_the_summary(run, script, tmp_path):  # noqa: F811
    python(run, script(STEPS), "5", options=("--workload=7b, batch 8",)).ended()
    assert json.loads((tmp_path / "logs/latest/final_summary.json").read_text())["workload"] == "7b, batch 8"
    python(run, script(STEPS), "5", STEPMEM_WORKLOAD="13b").ended()
    assert json.loads((tmp_path / "logs/latest/final_summary.json").read_text())["workload"] == "13b"


def test_summary_goes_into_a_pipe_and_one_that_nobody_reads_holds_up_no_end(run, script, tmp_path):  # noqa: F811
    os.mkfifo(tmp_path / "pipe")
    gate = ("--summary-json=pipe", "--fail-on=peak:50MiB")
    ended = python(run, script(STEPS), "20", options=gate).ended()
    assert ended.code == 3, ended.err
    assert "stepmem: --summary-json: pipe is not written: nobody reads the pipe" in ended.err, ended.err
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert python(run, script(STEPS), "20", options=gate).ended().code == 3
        assert json.loads(os.read(reader, 1 << 16))["ranks"]
    finally:
        os.close(reader)


def test_copy_of_the_summary_has_the_verdict_and_what_it_states(run, script, without_cuda, tmp_path):  # noqa: F811
    copy = tmp_path / "copy.json"
    options = ("--fail-on=creep:warning", f"--summary-json={copy}")
    ended = python(run, script(LEAK), options=options, PYTHONPATH=without_cuda).ended()
    gate = json.loads(copy.read_text())["gate"]
    assert (gate["verdict"], gate["exit_code"]) == ("failed", ended.code) == ("failed", 3)
    assert gate["sentences"][0] in ended.err
    claims = [each["claim"] for each in gate["statements"]]
    assert claims[0] == "gate_finding" and claims[-1] == "gate_condition"
    assert all(each["words"] in gate["sentences"][0] for each in gate["statements"])
