"""The step with which training ends: named by the program or a callback, found in a trainer's state, and a deadline of Slurm."""

from __future__ import annotations

import pytest
from conftest import STUB

TRAINER = """
    import textwrap, types, torch
    from torch.optim.optimizer import Optimizer

    SOURCE = '''
    class State:
        def __getattr__(self, name):
            raise AssertionError(f"the client asks for {name}")
    class Trainer(State):
        def _inner_training_loop(self, n, step):
            for _ in range(n):
                step()
                self.state.global_step += COUNTED
    '''

    def trainer(max_steps, global_step=0, counted=1, module="transformers.trainer"):
        place = types.ModuleType(module)
        exec(compile(textwrap.dedent(SOURCE).replace("COUNTED", str(counted)), "trainer.py", "exec"), place.__dict__)
        one = place.Trainer()
        one.state = place.State()
        one.state.max_steps, one.state.global_step = max_steps, global_step
        return one

    optimizer = Optimizer()
    PROGRAM
"""


def totals(fake, train, program: str, *, code: str = TRAINER, through=("-m", "stepmem")) -> "list[object]":
    """Returns the totals of the records that a program pushes. A record has what is known when it is pushed."""
    exporter = fake(200)
    ended = train(code.replace("PROGRAM", program), exporter.url, through=through, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    return [record.get("total_steps") for record in exporter.records]


NAMED = """
    import stepmem
    for step in range(1, 11):
        stepmem.step_end(step)
        stepmem.flush(60)
        PROGRAM
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("stepmem.total_steps(500)", [None] + 9 * [500]),
        ("stepmem.total_steps(500 if step < 5 else None)", [None] + 4 * [500] + 5 * [None]),
        ("stepmem.total_steps(True)", [None] + 9 * [1]),
    ],
)
def test_total_that_the_program_names_is_in_each_record_from_then_on(fake, train, program, expected):
    assert totals(fake, train, program, code=NAMED, through=()) == expected


@pytest.mark.parametrize("value", ["0", "-1", "2**53 + 1", "float('inf')", "'many'", "object()", "1.5"])
def test_total_that_is_no_number_of_steps_is_reported_once_and_not_pushed(fake, train, value):
    exporter = fake(200)
    ended = train(NAMED.replace("PROGRAM", f"stepmem.total_steps({value})"), exporter.url).ended()
    assert ended.code == 0
    assert ended.err.count("a number of steps from 1 to 2^53") == 1, ended.err
    assert not any("total_steps" in record for record in exporter.records)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("trainer(100)._inner_training_loop(20, optimizer.step)", 100),
        ("trainer(5100, 5000)._inner_training_loop(20, optimizer.step)", 100),
        ("[optimizer.step() for _ in range(3)]; trainer(100)._inner_training_loop(20, optimizer.step)", 103),
        ("trainer(0)._inner_training_loop(20, optimizer.step)", None),
        ("trainer('100')._inner_training_loop(20, optimizer.step)", None),
        ("trainer(100, module='mine')._inner_training_loop(20, optimizer.step)", None),
        # It counts two steps for one, or none.
        ("trainer(100, counted=2)._inner_training_loop(30, optimizer.step)", None),
        ("trainer(100, counted=0)._inner_training_loop(30, optimizer.step)", None),
        # Another training in the same process.
        ("[trainer(40)._inner_training_loop(40, optimizer.step) for _ in range(3)]", None),
    ],
)
def test_total_of_a_trainer_without_a_callback_is_found_in_its_state(fake, train, program, expected):
    assert totals(fake, train, program)[-1] == expected


def test_total_of_a_trainer_whose_gradients_overflow_stays_the_same(fake, train):
    program = "one = trainer(1000); one._inner_training_loop(3, optimizer.step); one.state.global_step += 4; one._inner_training_loop(200, optimizer.step)"
    assert totals(fake, train, program)[-1] == 1000


def test_program_that_names_a_total_is_not_looked_at(fake, train):
    program = "import stepmem; stepmem.total_steps(70); trainer(100)._inner_training_loop(20, optimizer.step)"
    assert set(totals(fake, train, program)) == {70}


def test_totals_reach_the_exporter(exporter, train):
    program = "trainer(100)._inner_training_loop(20, optimizer.step); import stepmem; stepmem.flush(60)"
    ended = train(TRAINER.replace("PROGRAM", program), exporter.url, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert exporter.metric('stepmem_run_end_step{run="script.py"}') is None  # it has ended
    assert exporter.rank()["total_steps"] == 100


@pytest.mark.parametrize(("value", "expected"), [("1764002000", 1764002000), ("", None), ("Unknown", None), ("0", None), ("9" * 15, 253402300799)])
def test_time_limit_of_a_job_of_slurm_is_the_deadline(fake, train, value, expected):
    exporter = fake(200)
    ended = train("import stepmem; stepmem.step_end(1)", exporter.url, SLURM_JOB_END_TIME=value).ended()
    assert (ended.code, ended.err) == (0, "")
    assert [record.get("deadline") for record in exporter.records] == [expected]
