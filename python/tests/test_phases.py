"""Phases that a program names: as they are pushed, to an exporter that takes their names and to one that does not, and with what the driver lists then."""

from __future__ import annotations

import pytest
from conftest import Reply
from test_process_memory import GIB, NEW, driver, library, pushed  # noqa: F401

ITERATIONS = """
    import stepmem
    for iteration in range(1, 4):
        stepmem.step_end(iteration)
        with stepmem.phase("sleep"): pass
        with stepmem.phase("eval"): pass
    assert stepmem.flush(60)
"""


def phases(exporter):
    return [(record["step"], record.get("phase", "train")) for record in exporter.records]


def test_names_are_pushed_as_the_program_gives_them(fake, train):
    exporter = fake(200)
    ended = train(ITERATIONS, exporter.url).ended()
    assert (ended.code, ended.err) == (0, "")
    assert phases(exporter) == [(step, phase) for step in (1, 2, 3) for phase in ("train", "sleep", "eval")]


def test_exporter_that_refuses_a_name_gets_an_evaluation_and_nothing_is_judged_as_a_step(fake, train):
    known = "train, eval, checkpoint, sample, idle"
    exporter = fake(Reply(400, detail=f'record 1: phase: "sleep" is not one of {known}'), 200)
    ended = train(ITERATIONS, exporter.url).ended()
    assert ended.code == 0, ended.err
    assert phases(exporter) == [(step, phase) for step in (1, 2, 3) for phase in ("train", "eval", "eval")]


def test_names_beyond_the_bound_count_as_evaluations_and_others_are_told(fake, train):
    code = """
        import stepmem
        for number in range(18):
            with stepmem.phase(f"phase.{number}"): pass
        with stepmem.phase("phase.3"): pass
        for name in ("train", "two words", "x" * 33, "", None, 7):
            with stepmem.phase(name): pass
        assert stepmem.flush(60)
    """
    exporter = fake(200)
    ended = train(code, exporter.url).ended()
    assert ended.code == 0, ended.err
    named = [f"phase.{number}" for number in range(16)]
    assert [phase for _, phase in phases(exporter)] == [*named, "eval", "eval", "phase.3"]
    assert "phase 'phase.16' counts as 'eval'" in ended.err and "phase 'two words' is not recorded" in ended.err


def test_real_exporter_takes_the_names(exporter, train):
    ended = train(ITERATIONS, exporter.url).ended()
    assert (ended.code, ended.err) == (0, "")
    assert exporter.rank()["steps_total"] == 3


def test_decorated_functions_are_phases_and_stay_what_they_are(fake, train):
    code = """
        import asyncio, inspect, stepmem

        class Engine:
            def sleep(self, level=1):
                "Offloads."
                return level

            async def asleep(self, level):
                await asyncio.sleep(0)
                raise ValueError(level)

        Engine.sleep = stepmem.phase("sleep")(Engine.sleep)
        Engine.asleep = stepmem.phase("asleep")(Engine.asleep)
        stepmem.step_end(1)
        assert Engine().sleep(level=2) == 2 and (Engine.sleep.__name__, Engine.sleep.__doc__) == ("sleep", "Offloads.")
        assert inspect.iscoroutinefunction(Engine.asleep)
        pending = Engine().asleep(3)
        stepmem.step_end(2)
        try:
            asyncio.run(pending)
        except ValueError as error:
            assert error.args == (3,)
        else:
            raise SystemExit("it did not raise")
        assert stepmem.flush(60)
    """
    exporter = fake(200)
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.err) == (0, "")
    assert phases(exporter) == [(1, "train"), (1, "sleep"), (2, "train"), (2, "asleep")]


@pytest.mark.usefixtures("library")
def test_record_of_a_phase_has_what_the_driver_lists_after_it(pushed, driver):  # noqa: F811
    body = """
stepmem.step_end(1)
while not os.path.exists("over"):
    with stepmem.phase("sleep"): pass
    time.sleep(0.05)
stepmem.flush(5)
"""
    assert pushed(driver(NEW, [(1, 3 * GIB)]), body) == 3 * GIB
    assert {record.get("phase") for record in pushed.records if "process_used_bytes" in record} == {"sleep"}
