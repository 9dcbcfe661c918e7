"""Planned restarts: `stepmem run --restart-on-deadline` starts a command again that ended, as agreed, after a checkpoint."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import pytest
from conftest import STUB
from test_run import Run, run, script  # noqa: F401  (fixtures)

from stepmem import _agreement, _restart

LEAKING = """
    import os, resource, signal, sys, time
    import torch, stepmem
    from torch.optim.optimizer import Optimizer
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    begun = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
    directory = os.environ.get("STEPMEM_RESTART_DIRECTORY")
    print("from", begun, os.environ.get("STEPMEM_ATTEMPT"), bool(directory) and not os.path.exists(directory + "/last"), flush=True)
    def save(deadline):
        with open("new", "w") as file:
            file.write(str(step))
        os.replace("new", "checkpoint")
        HOW
    if OPTS_IN:
        stepmem.on_memory_deadline(save)
    kept = []
    for step in range(begun + 1, 1801):
        kept.append(b"x" * (1 << 20))
        try:
            stepmem.step_end(step)
        except END:
            print("goes on", flush=True)
        time.sleep(0.003)
    print("finished", begun, flush=True)
"""
"""A program whose process grows by 1 MiB a step, and may take 1 GiB. It needs two attempts at least."""

SOON = ("--checkpoint.before", "5s")


@pytest.fixture
def leaking(run, script):  # noqa: F811
    def start(*options: str, opts_in: bool = True, how: str = "pass", end: str = "()", **variables: str) -> Run:
        code = LEAKING.replace("OPTS_IN", str(opts_in)).replace("HOW", how).replace("END", end)
        return run(sys.executable, script(code), options=(*SOON, *options), PYTHONPATH=STUB, **variables)

    return start


def begins(out: str) -> "list[tuple[int, str, bool]]":
    return [(int(step), attempt, directory == "True") for step, attempt, directory in re.findall(r"(?m)^from (\d+) (\S+) (\S+)$", out)]


def test_leaking_command_finishes_by_planned_restarts(leaking, tmp_path):
    ended = leaking("--restart-on-deadline", "--attempts", "attempts").ended()
    assert ended.code == 0, ended.err
    first, *others = begins(ended.out)
    assert first == (0, "None", True)
    assert others and [attempt for _, attempt, _ in others] == [str(n) for n in range(1, len(others) + 1)]
    assert f"finished {others[-1][0]}" in ended.out
    n = len(others)
    line = rf"(?m)^{n} planned restarts?, 0 steps lost; the leak costs [\d.]+% of the time\.$"
    assert re.search(line, ended.err), ended.err
    assert ended.err.count("stepmem: planned restart ") == n
    kept = [json.loads(attempt) for attempt in (tmp_path / "attempts").read_text().splitlines()]
    assert [attempt["last_step"] for attempt in kept] == [step for step, _, _ in others]
    assert [attempt["first_step"] for attempt in kept] == [step + 1 for step, _, _ in [first, *others[:-1]]]
    # All attempts are one run.
    (latest,) = (tmp_path / "logs").glob("*/latest/final_summary.json")
    summary = json.loads(latest.read_text())
    assert summary["attempt"] == n
    planned = summary["planned_restarts"]
    assert (planned["restarts"], planned["lost_steps"]) == (n, 0) and 0 < planned["lost_ratio"] < 1, planned


@pytest.mark.parametrize(("options", "opts_in"), [((), True), (("--restart-on-deadline",), False)])
def test_command_dies_without_the_option_or_without_opting_in(leaking, tmp_path, options, opts_in):
    ended = leaking(*options, opts_in=opts_in).ended()
    assert ended.code == 1 and "MemoryError" in ended.err, ended.err
    assert len(begins(ended.out)) == 1
    assert (tmp_path / "checkpoint").exists() == opts_in
    assert "planned restart" not in ended.err
    (latest,) = (tmp_path / "logs").glob("*/latest/final_summary.json")
    assert "planned_restarts" not in json.loads(latest.read_text())


def test_last_restart_goes_on_until_its_memory_ends(leaking):
    ended = leaking("--restart-on-deadline", "--max-restarts", "1", how="os.system('echo 0 > checkpoint')").ended()
    assert ended.code == 1 and "MemoryError" in ended.err, ended.err
    assert begins(ended.out) == [(0, "None", True), (0, "1", False)]
    assert "stepmem: no planned restart after that: --max-restarts 1\n" in ended.err
    assert re.search(r"(?m)^1 planned restart, \d\d+ steps lost; ", ended.err), ended.err


def test_command_that_does_not_go_on_from_its_checkpoint_is_not_started_again_and_again(leaking):
    ended = leaking("--restart-on-deadline", how="os.remove('checkpoint')").ended()
    assert ended.code == 1, ended.err
    starts = begins(ended.out)
    assert 2 <= len(starts) < 8 and not starts[-1][2], starts
    assert "stepmem: no planned restart after that: each attempt gains fewer steps\n" in ended.err


def test_attempts_of_an_earlier_run_count(leaking, tmp_path):
    attempt = {"first_step": 1, "first_time": 1e9, "is_counted": False, "last_step": 5, "asked_time": 1e9}
    (tmp_path / "attempts").write_text(f"{json.dumps(attempt)}\n")
    ended = leaking("--restart-on-deadline", "--max-restarts", "1", "--attempts", "attempts").ended()
    assert ended.code == 1, ended.err
    assert begins(ended.out) == [(0, "1", False)]
    assert re.search(r"(?m)^1 planned restart, 5 steps lost\.$", ended.err), ended.err


def test_attempts_that_cannot_be_read_are_said_and_nothing_is_restarted(leaking, tmp_path):
    (tmp_path / "attempts").write_text("no\n")
    ended = leaking("--restart-on-deadline", "--attempts", "attempts").ended()
    assert ended.code == 1, ended.err
    assert begins(ended.out) == [(0, "None", False)]
    assert "stepmem: no planned restarts: " in ended.err


def test_function_that_fails_ends_nothing(leaking):
    ended = leaking("--restart-on-deadline", how="1 / 0").ended()
    assert ended.code == 1 and "MemoryError" in ended.err, ended.err
    assert len(begins(ended.out)) == 1


def test_program_that_catches_its_end_goes_on_and_is_not_started_again(leaking):
    ended = leaking("--restart-on-deadline", end="SystemExit").ended()
    assert ended.code == 1 and "MemoryError" in ended.err, ended.err
    assert len(begins(ended.out)) == 1 and "goes on" in ended.out


def test_command_that_was_told_to_end_is_not_started_again(leaking):
    how = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGTERM)"
    ended = leaking("--restart-on-deadline", how=how).ended()
    assert ended.code == _restart.PLANNED_CODE, ended.err
    assert len(begins(ended.out)) == 1 and "stepmem: planned restart" not in ended.err


@pytest.mark.parametrize("options", [("--max-restarts", "3"), ("--attempts", "f"), ("--restart-on-deadline", "--max-restarts", "-1")])
def test_options_are_checked_before_anything_runs(leaking, options):
    ended = leaking(*options).ended()
    assert ended.code == 2 and ended.out == ""


class Store:
    """The store of `torch.distributed`, of ranks that call it one after the other."""

    def __init__(self) -> None:
        self.values: "dict[str, object]" = {}

    def check(self, keys):
        return all(key in self.values for key in keys)

    def add(self, key, n):
        self.values[key] = self.values.get(key, 0) + n
        return self.values[key]

    def compare_set(self, key, expected, desired):
        return str(self.values.setdefault(key, desired)).encode()


@pytest.fixture
def ranks(monkeypatch):
    """Two ranks that have agreed on a step, and a clock that goes on while one waits."""
    store, clock = Store(), SimpleNamespace(now=0.0, others=[])

    def sleep(seconds: float) -> None:
        clock.now += 10.0
        if clock.others:
            clock.others.pop(0)()

    monkeypatch.setattr(_agreement, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    return [_agreement.Agreement(0, lambda: store) for _ in range(2)], clock


def test_ranks_end_only_once_all_have_written(ranks):
    (one, other), clock = ranks
    answers = []
    clock.others = [lambda: None, lambda: answers.append(other.all_may(2, False, True))]
    answers.append(one.all_may(2, True, True))
    assert answers == [True, True] and clock.now >= 20.0


@pytest.mark.parametrize("is_first", [True, False])
def test_no_rank_ends_if_one_may_not(ranks, is_first):
    (one, other), clock = ranks
    answers = []
    clock.others = [lambda: answers.append(other.all_may(2, not is_first, False))]
    answers.append(one.all_may(2, is_first, True))
    assert answers == [False, False] and clock.now < 60.0


def test_rank_does_not_wait_for_ever_and_the_late_one_goes_on_too(ranks):
    (one, other), clock = ranks
    assert not one.all_may(2, True, True)
    assert _agreement.OTHERS_SECONDS <= clock.now < 2 * _agreement.OTHERS_SECONDS
    assert not other.all_may(2, False, True)


def test_nothing_is_left_without_the_directory(monkeypatch, tmp_path):
    process = SimpleNamespace(step=3, identity=lambda: SimpleNamespace(run="job", rank=1))
    monkeypatch.setenv(_restart.DIRECTORY, str(tmp_path / "gone"))
    restart = _restart.PlannedRestart(process)
    restart.at_step_end(False)
    restart.end(1.0)
    assert not restart.is_wanted and list(tmp_path.iterdir()) == []
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/last").touch()
    restart.end(1.0)
    assert not restart.is_wanted
    (tmp_path / "gone/last").unlink()
    with pytest.raises(SystemExit) as ended:
        restart.end(1.0)
    assert ended.value.code == _restart.PLANNED_CODE
    left = json.loads((tmp_path / "gone/ended-1.json").read_text())
    assert left == {"run": "job", "step": 3, "time": 1.0, "is_counted": False}
    restart.at_step_end(False)
    assert not (tmp_path / "gone/ended-1.json").exists()
