"""The end that a process reports when it exits: against a fake exporter that knows the later fields, and one that does not."""

from __future__ import annotations

import time

import pytest
from conftest import STUB, Reply, await_true

TRAIN = """
    import os, sys, stepmem
    for step in range(1, 4):
        stepmem.step_end(step)
    ENDING
"""
UNKNOWN = (None, None, None)


def end_of(exporter):
    """Returns outcome, type, message and requested bytes of the only end."""
    (end,) = exporter.ends
    return tuple(end.get(name) for name in ("outcome", "error_type", "error_message", "requested_bytes"))


@pytest.mark.parametrize("through", [(), ("-m", "stepmem")], ids=["python", "python -m stepmem"])
@pytest.mark.parametrize(
    "ending, code, end",
    [
        ("pass", 0, ("completed", *UNKNOWN)),
        ("sys.exit()", 0, ("completed", *UNKNOWN)),
        ("sys.exit(0)", 0, ("completed", *UNKNOWN)),
        ("sys.exit(3)", 3, ("failed", "SystemExit", "3", None)),
        ("sys.exit('no data')", 1, ("failed", "SystemExit", "no data", None)),
        ("raise ValueError('first\\nsecond')", 1, ("failed", "ValueError", "first", None)),
        ("import json; json.loads('x')", 1, ("failed", "json.decoder.JSONDecodeError", "Expecting value: line 1 column 1 (char 0)", None)),
        ("raise KeyError", 1, ("failed", "KeyError", None, None)),
        ("raise KeyboardInterrupt", -2, ("failed", "KeyboardInterrupt", None, None)),
        ("raise MemoryError('Unable to allocate 1.50 GiB for an array')", 1, ("oom", "MemoryError", "Unable to allocate 1.50 GiB for an array", 3 << 29)),
        ("try: bytes(1 << 62)\n    except MemoryError: sys.exit(4)", 4, ("oom", "MemoryError", None, None)),
        ("raise RuntimeError('x' * 1000)", 1, ("failed", "RuntimeError", "x" * 256, None)),
    ],
)
def test_end_is_how_the_program_ended(fake, train, through, ending, code, end):
    plain = train(TRAIN.replace("ENDING", ending), None, STEPMEM_DISABLED="1").ended()
    exporter = fake(200)
    ended = train(TRAIN.replace("ENDING", ending), exporter.url, through=through, STEPMEM_RUN="llm", RANK="2").ended()
    assert ended.code == plain.code == code
    assert (ended.out, ended.err.splitlines()[-1:]) == (plain.out, plain.err.splitlines()[-1:])
    assert end_of(exporter) == end
    (sent,) = exporter.ends
    assert (sent["run"], sent["rank"], sent["step"]) == ("llm", 2, 3)
    assert sent["instance"] == exporter.records[0]["instance"] and abs(sent["time"] - time.time()) < 60
    assert exporter.accepted[-1][0] == "/v1/runs/%6C%6C%6D/end", "after all records"


def test_out_of_memory_error_of_the_allocator_is_an_oom_also_as_a_cause(fake, train):
    code = """
        import torch, stepmem
        stepmem.step_end(1)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of")
        except RuntimeError as error:
            raise ValueError("training failed") from error
    """
    exporter = fake(200)
    assert train(code, exporter.url, PATHS=STUB).ended().code == 1
    message = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of"
    assert end_of(exporter) == ("oom", "torch.OutOfMemoryError", message, 20 << 20)


CAUGHT = """
    import sys, torch, stepmem
    stepmem.step_end(1)
    try:
        torch.malloc(2 << 30)
    except torch.OutOfMemoryError:
        ENDING
"""


@pytest.mark.parametrize(
    "ending, code, outcome",
    [("pass", 0, "completed"), ("sys.exit(0)", 0, "completed"), ("raise SystemExit(1)", 1, "completed"), ("sys.exit(1)", 1, "oom")],
)
def test_out_of_memory_error_that_the_program_catches_after_its_last_step_is_counted_in_the_end(fake, train, ending, code, outcome):
    exporter = fake(200)
    ended = train(CAUGHT.replace("ENDING", ending), exporter.url, PATHS=STUB).ended()
    assert ended.code == code, ended.err
    (end,) = exporter.ends
    assert (end["outcome"], end["ooms"]) == (outcome, 1)


@pytest.mark.parametrize("code, n_ooms", [("sys.exit(0)", 1), ("pass", None)])
def test_error_of_the_host_is_counted_where_the_program_exits_while_it_handles_it(fake, train, code, n_ooms):
    exporter = fake(200)
    ending = f"try: bytes(1 << 62)\n    except MemoryError: {code}"
    assert train(TRAIN.replace("ENDING", ending), exporter.url).ended().code == 0
    (end,) = exporter.ends
    assert (end["outcome"], end.get("ooms")) == ("completed", n_ooms)


def test_exporter_that_does_not_know_the_count_gets_the_rest_of_the_end(fake, train):
    exporter = fake(200, Reply(400, refuses=("ooms",)))
    assert train(CAUGHT.replace("ENDING", "raise ValueError"), exporter.url, PATHS=STUB).ended().code == 1
    (end,) = exporter.ends
    assert end["outcome"] == "oom" and end["error_type"] == "torch.OutOfMemoryError" and "ooms" not in end
    assert end["instance"] == exporter.records[0]["instance"]


def test_end_follows_the_steps_that_were_taken_during_a_push(fake, train):
    code = """
        import stepmem
        stepmem.step_end(1)
        input()  # the step is being pushed
        stepmem.step_end(2)
        stepmem.end("oom")
        print("ended", flush=True)
    """
    exporter = fake(200)
    exporter.may_answer.clear()
    training = train(code, exporter.url)
    await_true("the first push", lambda: exporter.received)
    training.write_line("")
    assert training.read_line() == "ended"
    exporter.may_answer.set()
    assert training.ended().code == 0
    assert [record["step"] for record in exporter.records] == [1, 2]
    assert exporter.accepted[-1][0].endswith("/end"), exporter.received


def test_leak_that_fills_the_device_ends_as_an_oom_with_its_request(fake, train):
    code = """
        import torch, stepmem
        for step in range(1, 100):
            with stepmem.step(step):
                torch.malloc(100 << 20)
    """
    exporter = fake(200)
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert ended.code == 1 and ended.err.splitlines()[-1].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    message = "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has 1.00 GiB"
    assert end_of(exporter) == ("oom", "torch.OutOfMemoryError", message, 100 << 20)
    assert exporter.ends[0]["step"] == 10 == exporter.records[-1]["step"], "the step that failed was not recorded"


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)"])
def test_process_that_is_cut_off_reports_no_end(fake, train, ending):
    exporter = fake(200)
    train(TRAIN.replace("ENDING", "assert stepmem.flush(60); " + ending), exporter.url).ended()
    assert len(exporter.records) == 3 and exporter.ends == []


def test_end_that_the_program_reports_is_the_only_one(fake, train):
    exporter = fake(200)
    assert train(TRAIN.replace("ENDING", "stepmem.end('oom')"), exporter.url).ended().code == 0
    assert end_of(exporter)[0] == "oom"


def test_program_that_steps_after_an_end_ends_again(fake, train):
    exporter = fake(200)
    code = TRAIN.replace("ENDING", "stepmem.end('failed'); stepmem.step_end(4)")
    assert train(code, exporter.url).ended().code == 0
    assert [end["outcome"] for end in exporter.ends] == ["failed", "completed"]


def test_exit_that_the_program_catches_is_not_the_end(fake, train):
    code = "try:\n        sys.exit(2)\n    except SystemExit:\n        stepmem.step_end(4)"
    exporter = fake(200)
    assert train(TRAIN.replace("ENDING", code), exporter.url).ended().code == 0
    assert end_of(exporter)[0] == "completed"


@pytest.mark.parametrize("when", ["before", "after"])
def test_hook_of_the_program_still_runs(fake, train, when):
    hook = "sys.excepthook = lambda kind, error, trace: print('mine', error)"
    code = TRAIN.replace("ENDING", (hook if when == "after" else "pass") + "\n    raise ValueError('x')")
    if when == "before":
        code = code.replace("import os, sys, stepmem", "import os, sys, stepmem\n    " + hook)
    exporter = fake(200)
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.out) == (1, "mine x\n")
    assert end_of(exporter) == ("failed", "ValueError", "x", None)


def test_process_that_took_no_step_reports_no_end(fake, train):
    exporter = fake(200)
    assert train("import stepmem\nraise SystemExit(0)", exporter.url).ended().code == 0
    assert exporter.accepted == []


CHILDREN = """
    import multiprocessing, os, sys, stepmem
    def work(rank):
        os.environ["RANK"] = str(rank)
        for step in range(1, 4):
            stepmem.step_end(step)
        ENDING
    if __name__ == "__main__":
        processes = [multiprocessing.get_context("METHOD").Process(target=work, args=(rank,)) for rank in range(N)]
        START
        for process in processes:
            process.join()
        print(*[process.exitcode for process in processes])
"""
START = """for process in processes:
            process.start()"""
START_IN_HANDLER = """try:
            raise ValueError("of the parent")
        except ValueError:
            processes[0].start()"""


def children(method, ending, start=START, n=1):
    return CHILDREN.replace("METHOD", method).replace("ENDING", ending).replace("START", start).replace("(N)", f"({n})")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    "ending, code, outcome",
    [
        ("pass", 0, "completed"),
        ("sys.exit(0)", 0, "completed"),
        ("sys.exit(3)", 3, "failed"),
        ("raise SystemExit(3)", 3, "failed"),
        ("raise ValueError('x')", 1, "failed"),
    ],
)
def test_end_of_a_process_of_multiprocessing_is_reported(fake, train, method, ending, code, outcome):
    exporter = fake(200)
    assert train(children(method, ending), exporter.url).ended().out == f"{code}\n"
    assert [record["step"] for record in exporter.records] == [1, 2, 3]
    (end,) = exporter.ends
    assert (end["outcome"], end["step"], end["instance"]) == (outcome, 3, exporter.records[0]["instance"])
    assert (end.get("error_type") is None) == (outcome == "completed")


def test_ends_of_forked_ranks_are_reported(fake, train):
    exporter = fake(200)
    assert train(children("fork", "if rank: raise KeyError(rank)", n=2), exporter.url).ended().out == "0 1\n"
    assert sorted((end["rank"], end["outcome"]) for end in exporter.ends) == [(0, "completed"), (1, "failed")]


def test_child_that_is_forked_while_an_error_is_handled_ends_by_its_own(fake, train):
    exporter = fake(200)
    assert train(children("fork", "pass", START_IN_HANDLER), exporter.url).ended().out == "0\n"
    assert end_of(exporter) == ("completed", *UNKNOWN)


def test_exit_that_a_forked_child_catches_is_not_its_end(fake, train):
    exporter = fake(200)
    ending = "try: sys.exit(2)\n        except SystemExit: pass"
    assert train(children("fork", ending), exporter.url).ended().out == "0\n"
    assert end_of(exporter) == ("completed", *UNKNOWN)


def test_rank_that_trained_before_it_forked_another_ends_on_its_own(fake, train):
    exporter = fake(200)
    start = "stepmem.step_end(9); " + START_IN_HANDLER.replace("try:", "\n        try:")
    assert train(children("fork", "pass", start).replace("str(rank)", "'1'"), exporter.url).ended().out == "0\n"
    assert sorted((end["rank"], end["step"], end["outcome"]) for end in exporter.ends) == [(0, 9, "completed"), (1, 3, "completed")]


def test_forked_child_that_is_cut_off_reports_no_end(fake, train):
    exporter = fake(200)
    train(children("fork", "assert stepmem.flush(60); os._exit(0)"), exporter.url).ended()
    assert len(exporter.records) == 3 and exporter.ends == []


def test_training_that_fails_ends_while_the_exporter_hangs(fake, train):
    code = TRAIN.replace("ENDING", "raise ValueError('x')")
    ended = train(code, fake(None).url).ended()
    assert ended.code == 1 and "ValueError: x" in ended.err
