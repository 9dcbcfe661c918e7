"""Programs that run a model and no optimizer: what counts as a call, and what the client leaves as it was. Modules stand in for PyTorch's."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from typing import Any, List, Tuple

import pytest
from conftest import STUB

from stepmem._calls import CALL, Calls, application_of
from stepmem._holders.allowance import CALL_SLICE_SECONDS, SLICE_SECONDS
from stepmem._holders.requests import HeapScanRequests
from stepmem._holders.search import Search
from stepmem._malloc import Malloc
from stepmem._process import CALLS, Process
from stepmem._readers import NO_PARTS, MemorySample
from stepmem._wire import UNKNOWN, HeapScanRequest

MODULES = """
    import asyncio, sys, threading, time
    import torch, torch.optim.optimizer
    from torch._modules import Module
    class Part(Module):
        def forward(self, seconds): time.sleep(seconds)
    class Model(Module):
        def __init__(self): self.parts = [Part(), Part()]
        def forward(self, seconds):
            for part in self.parts: part(seconds / 2)
    model, optimizer = Model(), torch.optim.Optimizer()
"""
"""A model of two parts: only its own calls are the program's."""

RUN = ("-m", "stepmem")


def calls_of(exporter):
    """Returns the records of calls, after checking that each stands for all calls since the one before."""
    records = [record for record in exporter.records if record.get("unit") == "calls"]
    assert [record["step"] for record in records] == [sum(r.get("steps", 1) for r in records[: n + 1]) for n in range(len(records))]
    assert all("phase" not in record and "marks" not in record and record["allocated_bytes"] >= 0 for record in records)
    return records


def test_calls_of_a_model_are_counted_not_those_of_its_parts(fake, train):
    exporter = fake(200)
    code = """
    for _ in range(60): model(0.01)
    print("ran")
    """
    ended = train(MODULES + code.lstrip("\n"), exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "ran\n", "")
    records = calls_of(exporter)
    assert 1 < len(records) and 20 < records[-1]["step"] <= 60  # the first runs show that the model is called again and again
    assert [end["step"] for end in exporter.ends] == [records[-1]["step"]]


def test_steps_follow_calls_from_one_on_and_all_is_as_it_was(fake, train):
    exporter = fake(200)
    code = """
    for _ in range(80): model(0.01)
    print("_compiled_call_impl" in vars(Model))
    for _ in range(30):
        model(0.001)
        optimizer.step()
    print("_compiled_call_impl" in vars(Model))
    """
    ended = train(MODULES + code.lstrip("\n"), exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "True\nFalse\n", "")
    assert calls_of(exporter)
    steps = [record["step"] for record in exporter.records if "phase" not in record and "unit" not in record]
    assert steps == list(range(1, 31))


def test_evaluation_and_generation_of_a_program_that_trains_make_no_calls(fake, train):
    exporter = fake(200)
    code = """
    for _ in range(20): model(0.001); optimizer.step()
    for _ in range(150): model(0.01)
    for _ in range(20): model(0.001); optimizer.step()
    """
    ended = train(MODULES + code.lstrip("\n"), exporter.url, through=RUN, PATHS=STUB).ended()
    assert ended.code == 0 and not calls_of(exporter)
    assert exporter.records[-1]["step"] == 40


def test_exporter_that_knows_no_unit_gets_the_records_without_it(fake, train):
    from conftest import Reply

    exporter = fake(Reply(400, refuses=("unit",)), 200)
    ended = train(MODULES + "    for _ in range(100): model(0.01)", exporter.url, through=RUN, PATHS=STUB).ended()
    assert ended.code == 0
    assert exporter.records and not any("unit" in record for record in exporter.records)


class Level:
    """Readings that a test chooses."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self) -> MemorySample:
        return MemorySample((self.bytes, *(UNKNOWN,) * 8), NO_PARTS)


class Module:
    _compiled_call_impl: Any = None

    def __call__(self, *arguments: Any) -> Any:
        call = self._compiled_call_impl
        return (self._call_impl if call is None else call)(*arguments)

    def _call_impl(self, function: Any) -> Any:
        return function()


class Model(Module):
    pass


class Other(Module):
    pass


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> "Any":
    """Returns what counts, with its readings and its records: number of calls and bytes."""
    clock, level, records = types.SimpleNamespace(now=100.0), Level(), []  # type: Any, Level, List[Tuple[int, int]]
    monkeypatch.setattr("stepmem._calls.monotonic", lambda: clock.now)
    calls = Calls(Process(), level, lambda n, sample: records.append((n, sample.allocated)))
    yield types.SimpleNamespace(calls=calls, level=level, records=records, clock=clock)
    calls.end()


def test_outermost_call_counts_whatever_models_it_calls(counted: Any) -> None:
    counted.calls.begin(Model, None)
    counted.calls.begin(Other, None)
    model, other = Model(), Other()
    assert model(lambda: other(lambda: model(lambda: "answer"))) == "answer"
    counted.clock.now += 1
    other(lambda: None)
    assert [n for n, _ in counted.records] == [1, 2]


def test_readings_are_a_fifth_of_a_second_apart_however_many_calls_end(counted: Any) -> None:
    counted.calls.begin(Model, None)
    model = Model()
    for _ in range(2000):
        counted.clock.now += 0.0005
        model(lambda: None)
    assert 4 <= len(counted.records) <= 6 and counted.records[-1][0] > 1500
    counted.calls.finish()
    assert counted.records[-1][0] == 2000


def test_clock_is_looked_at_for_few_of_many_calls_and_again_once_they_are_rare(counted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: List[float] = []
    monkeypatch.setattr("stepmem._calls.monotonic", lambda: looks.append(counted.clock.now) or counted.clock.now)
    counted.calls.begin(Model, None)
    model = Model()
    for _ in range(4000):
        counted.clock.now += 0.0005
        model(lambda: None)
    assert 8 <= len(counted.records) <= 11 and len(looks) < 0.4 * 4000
    for _ in range(5):
        n_records = len(counted.records)
        counted.clock.now += 5
        counted.calls.look()  # as the thread does that samples by time
        model(lambda: None)
        assert len(counted.records) == n_records + 1
    before = len(counted.records)
    for _ in range(20):
        counted.clock.now += 5
        model(lambda: None)
    assert len(counted.records) == before + 20


def test_level_is_that_while_no_call_runs_else_the_least_of_a_window(counted: Any) -> None:
    counted.calls.begin(Model, None)
    model = Model()
    begun, ends = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: model(lambda: (begun.set(), ends.wait())))
    counted.level.bytes = 50
    model(lambda: None)
    other.start()
    begun.wait()
    for n in range(30):  # one call always runs
        counted.clock.now += 0.1
        counted.level.bytes = 1000 - 10 * n if n < 15 else 900
        model(lambda: None)
    ends.set()
    other.join()
    levels = [level for _, level in counted.records]
    assert levels[0] == 50 and 2 <= len(levels[1:]) <= 3 and levels[1] < 920 and min(levels[1:]) == 860
    counted.clock.now += 1
    counted.level.bytes = 60
    model(lambda: None)
    assert counted.records[-1] == (33, 60)


def test_error_of_a_call_is_the_programs_and_the_call_counts(counted: Any) -> None:
    counted.calls.begin(Model, None)
    with pytest.raises(ZeroDivisionError):
        Model()(lambda: 1 / 0)
    counted.clock.now += 1
    Model()(lambda: None)
    assert [n for n, _ in counted.records] == [1, 2] and not counted.calls.is_running


def test_function_of_a_library_is_a_call_and_the_models_in_it_are_none(counted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("transformers.generation.utils")
    exec(
        "class GenerationMixin:\n    def generate(self, function):\n        'Writes.'\n        return [function() for _ in range(5)]\n",
        library.__dict__,
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    before = vars(library.GenerationMixin)["generate"]
    counted.calls.begin(Model, None)

    class Writer(library.GenerationMixin, Model):  # type: ignore[name-defined, misc]
        pass

    writer = Writer()
    assert writer.generate(lambda: writer(lambda: 7)) == [7] * 5
    counted.clock.now += 1
    writer(lambda: None)
    assert [n for n, _ in counted.records] == [1, 2]
    function = vars(library.GenerationMixin)["generate"]
    assert (function.__name__, function.__doc__, function.__wrapped__) == ("generate", "Writes.", before)
    counted.calls.end()
    assert vars(library.GenerationMixin)["generate"] is before and CALL not in vars(Model)


def test_what_the_program_has_replaced_itself_stays(counted: Any) -> None:
    counted.calls.begin(Model, None)
    mine = Model._compiled_call_impl = lambda self, function: function()
    counted.calls.end()
    try:
        assert vars(Model)[CALL] is mine
    finally:
        del Model._compiled_call_impl


class Application:
    """By the protocol of ASGI; calls the model while other requests wait."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            return
        await asyncio.sleep(0)
        self.model(lambda: None)
        await send({"type": "http.response.start", "status": 200})


async def serve(application: Any, n: int) -> List[Any]:
    sent: List[Any] = []

    async def nothing() -> None:
        return None

    async def send(message: Any) -> None:
        sent.append(message)

    await application({"type": "lifespan"}, nothing, send)
    await asyncio.gather(*(application({"type": "http"}, nothing, send) for _ in range(n)))
    return sent


def test_requests_to_an_asgi_application_are_the_calls(counted: Any) -> None:
    counted.calls.begin(Model, None)
    counted.calls.begin(Model, Application)
    assert CALL not in vars(Model)
    sent = asyncio.run(serve(Application(Model()), 7))
    assert len(sent) == 7
    counted.calls.finish()
    assert counted.records[-1][0] == 7 and not counted.calls.is_running


def test_application_is_known_by_its_running_code() -> None:
    seen: List[Any] = []

    class Below(Application):
        pass

    class Looking:
        def __call__(self, function: Any) -> None:
            frame = sys._getframe(1)
            while frame is not None and not seen:
                found = application_of(frame)
                if found is not None:
                    seen.append(found)
                frame = frame.f_back  # type: ignore[assignment]

    asyncio.run(serve(Below(Looking()), 1))
    assert seen == [Application]


def test_moment_without_a_call_is_read_however_rare_among_ends(counted: Any) -> None:
    """Of four calls that run at once, the last to end leaves none."""
    counted.calls.begin(Model, None)
    model = Model()
    n_threads = 4
    for _ in range(5):
        counted.clock.now += 0.3
        together = threading.Barrier(n_threads)
        threads = [threading.Thread(target=lambda: model(together.wait)) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Two may end in the same moment, of which the first is told.
    assert [-(-n // n_threads) for n, _ in counted.records] == [1, 2, 3, 4, 5]


def test_slices_of_a_search_are_shorter_at_the_ends_of_short_calls(counted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: List[float] = []
    process = counted.calls._process
    requests = HeapScanRequests(process, lambda result: None, Malloc(), lambda is_on_host: None)
    monkeypatch.setattr(Search, "at_step_end", lambda search, step: lengths.append(search.next_seconds))
    requests.on_request(HeapScanRequest({"id": "1", "rank": process.identity().rank}))
    counted.calls.begin(Model, None)
    model = Model()
    for seconds in (0.06, 0.0005, 0.06):
        for _ in range(300):
            counted.clock.now += seconds
            model(lambda: None)
            process.n_recorded = counted.records[-1][0] if counted.records else 0
        process.unit = CALLS
        requests.at_step_end(process.step)
    assert lengths == [SLICE_SECONDS, CALL_SLICE_SECONDS, SLICE_SECONDS]
