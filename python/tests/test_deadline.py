"""The exporter's ask to checkpoint before memory runs out: what a program gets of it that opted in, and that no other gets anything."""

from __future__ import annotations

import signal

import pytest
from conftest import STUB, Reply

LOOP = """
    import signal, sys, time, stepmem
    calls = []
    def save(deadline):
        calls.append((stepmem._client.CLIENT.process.step, deadline.reason, deadline.seconds_left, deadline.steps_left))
    PROGRAM
    for step in range(1, 31):
        stepmem.step_end(step)
        assert stepmem.flush(60)
    print(calls)
"""

OPTED_IN = LOOP.replace("PROGRAM", "stepmem.on_memory_deadline(save)")


def ask(**fields: object) -> "dict[str, object]":
    usual = {"id": "1", "run": "job", "rank": 0, "reason": "rank 0: it grows", "seconds_left": 540.5, "steps_left": 100, "every_seconds": 600}
    return {"type": "checkpoint", **usual, **fields}


def run(fake, train, code: str = OPTED_IN, *actions: "dict[str, object]", **variables: str):
    """Returns how a program ended whose every push is answered with these actions, and the records."""
    exporter = fake(200)
    exporter.actions = list(actions) or [ask()]
    ended = train(code, exporter.url, **variables).ended()
    return ended, exporter.records


def test_function_runs_once_at_the_end_of_a_step_however_often_it_is_asked(fake, train):
    ended, records = run(fake, train, OPTED_IN, ask(), ask(id="2"), ask(id="3"))
    assert (ended.code, ended.err) == (0, "")
    ((step, *what),) = eval(ended.out)
    assert what == ["rank 0: it grows", 540.5, 100.0]
    assert [(record.get("phase"), record["step"]) for record in records if "phase" in record] == [("checkpoint", step)]
    assert {record["on_deadline"] for record in records} == {"checkpoint"}
    assert any(f"[step {step}] memory may run out soon: rank 0: it grows" in line for line in ended.information)


@pytest.mark.parametrize("program", ["pass", "stepmem.on_memory_deadline(save); stepmem.on_memory_deadline(None)"])
def test_program_that_did_not_opt_in_gets_nothing_whatever_the_exporter_answers(fake, train, program):
    ended, records = run(fake, train, LOOP.replace("PROGRAM", program))
    assert (ended.code, ended.err, ended.out) == (0, "", "[]\n")
    assert not any("on_deadline" in record or "phase" in record for record in records)


@pytest.mark.parametrize("value", ["5", "'save'", "object()"])
def test_what_is_no_function_is_reported_and_nothing_else(fake, train, value):
    ended, records = run(fake, train, LOOP.replace("PROGRAM", f"stepmem.on_memory_deadline({value})"))
    assert (ended.code, ended.out) == (0, "[]\n")
    assert ended.err.count("on_memory_deadline was not given a function") == 1
    assert not any("on_deadline" in record for record in records)


@pytest.mark.parametrize(
    "action",
    [
        {"rank": 1},
        {"type": "checkpoints"},
        {"type": "stop"},
    ],
)
def test_ask_of_another_rank_or_kind_is_ignored(fake, train, action):
    ended, _ = run(fake, train, OPTED_IN, ask(**action))
    assert (ended.code, ended.err, ended.out) == (0, "", "[]\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds_left": "soon", "steps_left": None, "every_seconds": -1},
        {"seconds_left": float("inf"), "steps_left": [], "every_seconds": "never", "reason": {"a": "\x1b[2J" * 200}},
        {"id": None, "reason": None, "seconds_left": True, "steps_left": -3, "every_seconds": 0},
    ],
)
def test_ask_with_wrong_figures_is_followed_once_and_without_them(fake, train, fields):
    more = [ask(**{**fields, "id": str(n)}) for n in range(20)]
    ended, _ = run(fake, train, OPTED_IN, ask(**fields), *more)
    assert ended.code == 0 and "\x1b" not in ended.err + "".join(ended.information)
    ((_, reason, *left),) = eval(ended.out)
    assert left == [None, None] and len(reason) <= 512


def test_error_of_the_function_is_reported_and_training_goes_on(fake, train):
    ended, records = run(fake, train, LOOP.replace("PROGRAM", "stepmem.on_memory_deadline(lambda deadline: 1 / 0)"))
    assert ended.code == 0
    assert ended.err.count("training goes on: ZeroDivisionError") == 1, ended.err
    assert max(record["step"] for record in records) == 30


@pytest.mark.parametrize(("error", "code"), [("sys.exit(7)", 7), ("(_ for _ in ()).throw(KeyboardInterrupt)", -signal.SIGINT)])
def test_function_may_end_the_program(fake, train, error, code):
    ended, records = run(fake, train, LOOP.replace("PROGRAM", f"stepmem.on_memory_deadline(lambda deadline: {error})"))
    assert ended.code in (code, 128 + signal.SIGINT if code < 0 else code), ended.err
    assert max(record["step"] for record in records) < 30


def test_function_that_takes_steps_of_its_own_is_not_called_inside_itself(fake, train):
    program = "stepmem.on_memory_deadline(lambda deadline: (save(deadline), stepmem.step_end(), stepmem.step_end()))"
    ended, _ = run(fake, train, LOOP.replace("PROGRAM", program))
    assert (ended.code, ended.err) == (0, "")
    assert len(eval(ended.out)) == 1


def test_exporter_that_does_not_know_the_field_gets_the_records_without_it(fake, train):
    exporter = fake(Reply(400, refuses=("on_deadline",)))
    ended = train(OPTED_IN, exporter.url).ended()
    assert (ended.code, ended.err, ended.out) == (0, "", "[]\n")
    assert [record["step"] for record in exporter.records] == list(range(1, 31))


def test_short_steps_that_the_hook_counts_are_served_too(fake, train):
    code = """
        import stepmem, time
        from torch.optim.optimizer import Optimizer
        optimizer, calls = Optimizer(), []
        stepmem.on_memory_deadline(lambda deadline: calls.append(deadline))
        began = time.monotonic()
        while not calls and time.monotonic() - began < 60:
            for _ in range(1000):
                optimizer.step()
        print(len(calls))
    """
    exporter = fake(200)
    exporter.actions = [ask()]
    ended = train(code, exporter.url, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert (ended.code, ended.err, ended.out) == (0, "", "1\n")


@pytest.mark.parametrize(
    "variables", [{"WORLD_SIZE": "2", "RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}]
)
def test_one_of_several_ranks_that_cannot_agree_does_nothing_and_says_so_once(fake, train, variables):
    ended, _ = run(fake, train, OPTED_IN, ask(), ask(id="2"), **variables)
    assert (ended.code, ended.out) == (0, "[]\n")
    assert ended.err.count("the ranks cannot agree on a step") == 1, ended.err


def test_rank_above_0_without_a_number_of_ranks_does_nothing(fake, train):
    ended, _ = run(fake, train, OPTED_IN, ask(rank=3), STEPMEM_RANK="3")
    assert (ended.code, ended.out) == (0, "[]\n")
    assert ended.err.count("the ranks cannot agree on a step") == 1, ended.err


def test_child_of_a_fork_does_not_inherit_the_function(fake, train):
    code = """
        import os, sys, stepmem
        stepmem.on_memory_deadline(lambda deadline: print("called", os.getpid() == parent, flush=True))
        parent = os.getpid()
        if os.fork() == 0:
            for step in range(1, 20):
                stepmem.step_end(step)
                stepmem.flush(60)
            os._exit(0)
        os.wait()
    """
    ended, records = run(fake, train, code)
    assert (ended.code, ended.err, ended.out) == (0, "", "")
    assert records and not any("on_deadline" in record for record in records)



def signaled(fake, train, program: str, **variables: str):
    named = {"STEPMEM_DEADLINE_SIGNAL": "USR1", **variables}
    return run(fake, train, LOOP.replace("PROGRAM", program), ask(), ask(id="2"), **named)


def test_handler_of_the_program_gets_the_signal_once(fake, train):
    ended, records = signaled(fake, train, "signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))")
    assert (ended.code, ended.err, ended.out) == (0, "", f"[{int(signal.SIGUSR1)}]\n")
    assert records[0]["on_deadline"] == "checkpoint" or records[-1]["on_deadline"] == "checkpoint"


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "signal.signal(signal.SIGUSR1, lambda *_: calls.append(1)); signal.signal(signal.SIGUSR1, signal.SIG_DFL)",
        # Python believes that there is a handler, and the kernel would end the process.
        "import ctypes; signal.signal(signal.SIGUSR1, lambda *_: calls.append(1)); ctypes.CDLL(None).signal(signal.SIGUSR1.value, None)",
    ],
)
def test_program_without_a_handler_gets_no_signal_and_one_warning(fake, train, program):
    ended, _ = signaled(fake, train, program)
    assert (ended.code, ended.out) == (0, "[]\n")
    assert ended.err.count("the program has no handler for it") == 1, ended.err


def test_error_of_the_handler_is_the_programs(fake, train):
    ended, _ = signaled(fake, train, "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))")
    assert ended.code == 5
    ended, _ = signaled(fake, train, "signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)")
    assert ended.code == 1 and "ZeroDivisionError" in ended.err


def test_one_of_several_ranks_gets_no_signal(fake, train):
    handler = "signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))"
    ended, records = signaled(fake, train, handler, WORLD_SIZE="2", RANK="0")
    assert (ended.code, ended.out) == (0, "[]\n")
    assert ended.err.count("STEPMEM_DEADLINE_SIGNAL is for programs of one rank") == 1, ended.err
    assert not any("on_deadline" in record for record in records)


def test_function_of_the_program_has_priority_over_the_signal(fake, train):
    handler = "signal.signal(signal.SIGUSR1, lambda *_: calls.append(1)); stepmem.on_memory_deadline(save)"
    ended, _ = signaled(fake, train, handler)
    assert (ended.code, ended.err) == (0, "")
    assert [call[1] for call in eval(ended.out)] == ["rank 0: it grows"]


@pytest.mark.parametrize("value", ["KILL", "SIGSTOP", "SEGV", "10", "NONE", "SIG_IGN", "RTMIN+1"])
def test_signal_that_no_program_handles_is_told_and_none_is_sent(fake, train, value):
    ended, records = run(fake, train, LOOP.replace("PROGRAM", "pass"), STEPMEM_DEADLINE_SIGNAL=value)
    assert ended.code == 0 and records
    assert not any("on_deadline" in record for record in records)
    assert f"STEPMEM_DEADLINE_SIGNAL: {value!r} is not a signal" in ended.err and "so no signal is sent" in ended.err
