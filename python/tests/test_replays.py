"""Programs that replay CUDA graphs: what of it is an iteration, and what the client leaves as it was. A stub stands in for PyTorch."""

from __future__ import annotations

import re
import sys
import types
from textwrap import dedent
from typing import Any, List, Optional

import pytest
from conftest import STUB
from test_run import python, run, script  # noqa: F401
from test_run_snapshots import await_line, line_with, words

from stepmem import _captures
from stepmem._process import Process
from stepmem._replays import Loop, Replays

RUN = ("-m", "stepmem")

GRAPHS = """
    import threading, time, torch, torch.optim.optimizer
    from torch.cuda.graphs import CUDAGraph, broken, launch, lengths, reduce_overhead
    from torch.optim import Optimizer
    optimizer = Optimizer()
    def work(): launch(lambda: None)
    def step(of=optimizer): work(); of.step()
    def captured(*functions):
        graph = CUDAGraph()
        with torch.cuda.graph(graph):
            for function in functions: function()
        return graph
"""


def records_of(exporter: Any, unit: str) -> List[Any]:
    """Returns the records of training in a unit."""
    return [each for each in exporter.records if each.get("unit", "steps") == unit and "phase" not in each]


def numbers(exporter: Any, unit: str) -> List[int]:
    return [each["step"] for each in records_of(exporter, unit)]


def ran(train: Any, exporter: Any, code: str) -> str:
    """Runs a program. Returns what it wrote."""
    ended = train(dedent(GRAPHS) + dedent(code), exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    return str(ended.out)


def test_whole_steps_in_a_graph_are_counted_as_replays_after_the_steps_that_warm_up(fake, train):
    exporter = fake(200)
    code = """
    for _ in range(3): step()
    graph = captured(work, step)
    for _ in range(600): graph.replay(); torch.malloc(1000); time.sleep(0.002)
    """
    ran(train, exporter, code)
    assert numbers(exporter, "steps") == [1, 2, 3]
    (end,) = exporter.ends
    assert end["step"] == 600  # of steps so short not each is read
    assert sum(each.get("steps", 1) for each in records_of(exporter, "replays")) + end.get("unread_steps", 0) == 600
    assert all(each["free_bytes"] >= 0 for each in records_of(exporter, "replays")[-10:])


@pytest.mark.parametrize(
    "code",
    [
        # 64 graphs a step, the last of which has the optimizer's.
        """
    parts = [captured(work) for _ in range(63)] + [captured(step)]
    for _ in range(200):
        for each in parts: each.replay()
    """,
        # Shapes that are drawn.
        """
    import random
    shapes = [captured(work, step) for _ in range(7)]
    for _ in range(200): random.choice(shapes).replay()
    """,
        # A new shape has steps that warm up, which are iterations as the replays are.
        """
    shapes = {}
    for n in range(196):
        if n % 40 == 0:
            if n: step()
            shapes[n // 40] = captured(step)
        shapes[n // 40].replay()
    """,
        # Evaluations by a graph of their own between.
        """
    training, evaluation = captured(work, step), captured(work)
    for n in range(200):
        training.replay()
        if n % 20 == 0:
            for _ in range(50): evaluation.replay()
    """,
        # Two optimizers, whose graphs alternate.
        """
    first, second = captured(step), captured(lambda other=Optimizer(): step(other))
    for _ in range(200): first.replay(); second.replay()
    """,
        # Only the optimizer's step is in a graph.
        """
    graph = captured(step)
    for _ in range(200): work(); graph.replay()
    """,
        # The program drops the optimizer.
        """
    graph = captured(step)
    del optimizer, step
    for _ in range(200): graph.replay()
    """,
    ],
    ids=["many graphs", "drawn shapes", "warm-up between", "evaluation", "two optimizers", "optimizer alone", "optimizer dropped"],
)
def test_iterations_of_graphs_with_steps_are_exact(code, fake, train):
    exporter = fake(200)
    ran(train, exporter, "\n    for _ in range(3): step()" + code)
    assert numbers(exporter, "steps") == [1, 2, 3]
    assert numbers(exporter, "replays")[-1] == 200
    assert exporter.records[-1]["step"] == 200


@pytest.mark.parametrize(
    "code",
    [
        """
    graphed = torch.cuda.make_graphed_callables((work, work), ((), ()))
    for _ in range(200):
        for each in graphed: each().backward()
        optimizer.step()
    """,
        """
    forward, backward = reduce_overhead(work), reduce_overhead(work)
    for n in range(200):
        forward(n % 3); backward(n % 3)
        optimizer.step()
    """,
        """
    evaluation = [captured(work) for _ in range(4)]
    for n in range(200):
        step()
        if n % 20 == 0:
            for _ in range(20):
                for each in evaluation: each.replay()
    for _ in range(200): evaluation[0].replay(); time.sleep(0.005)
    """,
        """
    import stepmem
    graph = captured(step)
    for _ in range(200):
        with stepmem.step(): graph.replay()
    """,
    ],
    ids=["make_graphed_callables", "reduce-overhead", "evaluation", "the program's own steps"],
)
def test_graphs_beside_steps_that_the_program_takes_count_nothing(code, fake, train):
    exporter = fake(200)
    out = ran(train, exporter, code + "time.sleep(0.3)\n    print(CUDAGraph.replay.__qualname__, hasattr(CUDAGraph.replay, '__wrapped__'))\n")
    assert numbers(exporter, "replays") == [] and numbers(exporter, "steps")[-1] == 200
    assert exporter.records[-1]["step"] == 200
    assert out.startswith("CUDAGraph.replay ")


def test_replays_of_a_program_that_never_steps_are_counted(fake, train):
    exporter = fake(200)
    code = """
    parts = [captured(work) for _ in range(8)]
    for _ in range(400):
        for each in parts: each.replay()
        time.sleep(0.005)
    """
    ran(train, exporter, code)
    steps = numbers(exporter, "replays")
    assert numbers(exporter, "steps") == [] and 100 < steps[-1] <= 400 and steps[0] == 1


def test_steps_follow_replays_from_one_on_and_all_is_as_it_was(fake, train):
    exporter = fake(200)
    code = """
    rollout = captured(work)
    for _ in range(200): rollout.replay(); time.sleep(0.005)
    print(hasattr(CUDAGraph.replay, "__wrapped__"))
    for _ in range(30): rollout.replay(); step(); time.sleep(0.001)
    print(hasattr(CUDAGraph.replay, "__wrapped__"))
    """
    assert ran(train, exporter, code) == "True\nFalse\n"
    assert numbers(exporter, "replays")
    assert numbers(exporter, "steps") == list(range(1, 31))


CAPTURES = """
    from stepmem import _process_memory, _readers, _recorder
    _recorder.CAPACITY_EVERY = _readers.PINNED_EVERY = 0.001  # each step would read both
    _process_memory.READ_EVERY = _process_memory.READ_MOVING_EVERY = 0.001
    class Driver:
        call_seconds = 0.0
        def memory_kind(self, device): torch._C.forbid("NVML")
        def used_by(self, process, device): asked.append(process); return 1
    asked, _process_memory.Driver = [], Driver
    torch._C.pinned = 1
    ended = threading.Event()
    def other():
        optimizer = Optimizer()
        while not ended.is_set(): TURN; time.sleep(0.0005)
    from torch._modules import Module
    class Model(Module):
        def __init__(self): self._parameters, self._modules = {"weight": 1}, {}
        def forward(self, seconds): time.sleep(seconds)
    model, rollout = Model(), captured(work)
    thread = threading.Thread(target=other); thread.start()
    while not asked: time.sleep(0.001)
    for _ in range(6):
        graph = CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5): PART(); time.sleep(0.06)
        graph.replay()
    ended.set(); thread.join()
    # One call of NVML may have begun before each capture.
    print(lengths, sorted(set(broken) - {"NVML"}), broken.count("NVML") <= 6)
"""


@pytest.mark.parametrize(
    "turn, part, unit",
    [("step(optimizer)", "step", "steps"), ("rollout.replay()", "work", "replays"), ("model(0.002)", "work", "calls")],
    ids=["steps", "replays", "calls"],
)
def test_capture_records_what_it_does_without_stepmem_and_nothing_calls_cuda_or_nvml_meanwhile(turn, part, unit, fake, train):
    exporter = fake(200)
    assert ran(train, exporter, CAPTURES.replace("TURN", turn).replace("PART", part)) == f"{[1] + [5] * 6} [] True\n"
    assert records_of(exporter, unit)


def test_capture_that_fails_is_over(fake, train):
    exporter = fake(200)
    code = """
    graph = CUDAGraph()
    try:
        with torch.cuda.graph(graph): 1 / 0
    except ZeroDivisionError: pass
    inner = CUDAGraph()
    with torch.cuda.graph(graph):
        try: inner.capture_begin()
        except AssertionError: pass
    for _ in range(30): step()
    print(torch.cuda.graphs.capturing)
    """
    assert ran(train, exporter, code) == "set()\n"
    assert numbers(exporter, "steps")[-1] == 30


def iterations(*places: "tuple[str, str]") -> List[int]:
    """Returns after which replays an iteration had begun: each a graph, and the place that replays it."""
    loop = Loop()
    return [n for n, (graph, place) in enumerate(places) if loop.begins(ord(graph), (ord(place), 0))]


def test_graphs_that_a_loop_within_the_loop_replays_are_one_iteration() -> None:
    assert iterations(*[(graph, "A") for graph in "abcd" * 5]) == [0, 4, 8, 12, 16]


def test_graphs_in_no_fixed_order_are_one_iteration_each() -> None:
    begun = iterations(*[(graph, "A") for graph in "abbacabcbcaab"])
    assert begun == [0, *range(2, 13)]


def test_graphs_of_other_places_belong_to_the_iteration() -> None:
    assert iterations(*[("a", "A"), *[("b", "B")] * 3, ("c", "C")] * 4) == [0, 5, 10, 15]


def test_another_loop_takes_over() -> None:
    begun = iterations(*[("a", "A")] * 10, *[("b", "B")] * 30)
    assert begun[:10] == list(range(10)) and begun[-10:] == list(range(30, 40))


class Graph:
    def replay(self) -> str:
        return "replayed"


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a class of graphs where PyTorch has its own."""
    module: Any = types.ModuleType(_captures.GRAPH[0])
    module.CUDAGraph = type("CUDAGraph", (Graph,), {"replay": lambda self: Graph.replay(self)})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.CUDAGraph


def test_graph_that_is_gone_and_an_optimizer_that_is_gone_are_not_kept(graphs: Any) -> None:
    class Optimizer:
        pass

    steps: List[Any] = []
    replays = Replays(Process(), lambda: True)
    replays.step = lambda optimizer, _arguments, _named: steps.append(type(optimizer).__name__)
    graph, optimizer = graphs(), Optimizer()  # type: Any, Optional[Any]
    replays.captured(graph, [optimizer])
    assert graph.replay() == "replayed" and steps == ["Optimizer"]
    optimizer = None
    graph.replay()
    assert steps == ["Optimizer", "Captured"]
    del graph
    graphs().replay()
    assert len(steps) == 2
    replays.rest()
    assert not hasattr(graphs.replay, "__wrapped__")


LEAK = """
    import os, time, torch
    from torch._recorded import malloc, free
    from torch.cuda.graphs import CUDAGraph, launch
    from torch.optim.optimizer import Optimizer

    optimizer, kept = Optimizer(), []

    def train():
        launch(lambda: None)
        optimizer.step()

    for _ in range(3):
        train()
    graph = CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    for _ in range(5000):
        graph.replay()
        kept.append(malloc())  # the line that leaks
        time.sleep(0.02)
        if os.path.exists("stop"):
            break
"""
"""A whole step in a graph; each replay's output is kept outside of it."""


def test_line_that_keeps_outputs_of_replays_is_named(run, script, tmp_path):
    path = script(LEAK)
    started = python(run, path, options=("--snapshots",))
    at = rf"allocated at [\w./-]*script0\.py:{line_with(path, 'the line that leaks')}\b"
    await_line(started, rf"^stepmem: MEMORY CREEP \((warning|critical)\), rank 0 of script0-\S+: live memory grows by 8\.00 MiB/replay.*{at}")
    (tmp_path / "stop").touch()
    ended = started.ended()
    assert ended.code == 0, ended.err
    assert re.search(r"1 rank, replays 1 to [\d,]+ in ", words(ended.err)), ended.err
    assert "TOO FEW" not in ended.err


def test_holder_of_outputs_of_replays_is_named(run, script, tmp_path):
    code = LEAK.replace("kept.append(malloc())", "kept.append(b'x' * (1 << 18))").replace("optimizer, kept", "torch.cuda.is_up = False\n    optimizer, kept")
    path = script(code)
    started = python(run, path, STEPMEM_CAPACITY="2GiB")
    await_line(started, r"^stepmem: MEMORY (RISING|CREEP) \(\w+\), rank 0 of script0-\S+: host memory grows by \S+ KiB/replay.*`kept`")
    (tmp_path / "stop").touch()
    assert started.ended().code == 0


def test_graphs_that_are_captured_for_each_new_shape_are_named_where_no_object_holds_the_memory(run, script, tmp_path):
    code = LEAK.replace("        graph.replay()\n        kept.append(malloc())", "        graph = captured()\n        graph.replay()").replace(
        "    for _ in range(3):",
        """
    graphs = {}

    def captured():
        graph = graphs[len(graphs)] = CUDAGraph()
        with torch.cuda.graph(graph):
            malloc()  # of the graph's private pool
            train()
        return graph

    for _ in range(3):""",
    )
    path = script(code)
    started = python(run, path)
    named = r"live memory grows by 8\.00 MiB/replay.*no growing tensor was found .*CUDA graphs, private pools"
    await_line(started, rf"^stepmem: MEMORY CREEP \(\w+\), rank 0 of script0-\S+: {named}")
    (tmp_path / "stop").touch()
    assert started.ended().code == 0
