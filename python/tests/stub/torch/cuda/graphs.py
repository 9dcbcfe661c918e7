"""CUDA graphs as PyTorch has them, as far as the client meets them: functions that run in a capture are recorded, and run when it is replayed."""

from _thread import _local

from .. import _C
from .._C import broken, capturing  # noqa: F401

Stream = _local()
Stream.graph = None
lengths = []
"""What each capture recorded: the number of its works."""


def is_current_stream_capturing():
    return Stream.__dict__.get("graph") is not None


def launch(work):
    """Runs a function on the device: at once, or when the graph is replayed that is captured now."""
    graph = Stream.__dict__.get("graph")
    if graph is None:
        work()
    else:
        graph._works.append(work)


class _CUDAGraph:
    def replay(self):
        assert self._works is not None, "Called CUDAGraph::replay without a preceding successful capture."
        for work in self._works:
            work()


class CUDAGraph(_CUDAGraph):
    def __new__(cls, keep_graph=False):
        instance = super().__new__(cls)
        instance._works = None
        return instance

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert not is_current_stream_capturing()
        self._works = []
        Stream.graph = self
        capturing.add(self)

    def capture_end(self):
        capturing.discard(self)
        Stream.graph = None
        lengths.append(len(self._works))

    def replay(self) -> None:
        r"""Replay the CUDA work captured by this graph."""
        super().replay()

    def reset(self):
        self._works = None


class graph:
    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        self.cuda_graph = cuda_graph

    def __enter__(self):
        _C.cached = 0
        self.cuda_graph.capture_begin()

    def __exit__(self, *args):
        self.cuda_graph.capture_end()


def make_graphed_callables(callables, sample_args, num_warmup_iters=3):
    """Returns functions whose forward and backward replay graphs; `backward` of what they return replays the second."""
    if not isinstance(callables, tuple):
        return make_graphed_callables((callables,), (sample_args,), num_warmup_iters)[0]
    for function, args in zip(callables, sample_args):
        for _ in range(num_warmup_iters):
            function(*args)
    forwards = [CUDAGraph() for _ in callables]
    backwards = [CUDAGraph() for _ in callables]
    for function, args, forward in zip(callables, sample_args, forwards):
        with graph(forward):
            function(*args)
    for backward in reversed(backwards):
        with graph(backward):
            launch(lambda: None)

    def graphed(forward, backward):
        class Output:
            def backward(self):
                backward.replay()

        def functionalized(*user_args):
            forward.replay()
            return Output()

        return functionalized

    return tuple(graphed(forward, backward) for forward, backward in zip(forwards, backwards))


class CUDAGraphNode:
    """One recorded function of `torch.compile(mode="reduce-overhead")`, as `cudagraph_trees` has it: it runs, is recorded, and is replayed."""

    def __init__(self, function):
        self.function, self.graph, self.n_runs = function, None, 0

    def run(self, *args):
        self.n_runs += 1
        if self.n_runs == 1:
            return self.function(*args)
        if self.graph is None:
            self.graph = CUDAGraph()
            with graph(self.graph):
                self.function(*args)
        return self.run_graph()

    def run_graph(self):
        self.graph.replay()


def reduce_overhead(function):
    """Returns a function that is compiled with a graph for each of its shapes."""
    nodes = {}

    def compiled(shape=0):
        return nodes.setdefault(shape, CUDAGraphNode(function)).run()

    return compiled
