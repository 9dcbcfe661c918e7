"""No work of the client on the program's data is unbounded: counted in lines of Python and in the sizes of what C code returns, not timed."""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import gc
import itertools
import os
import pathlib
import queue
import sys
import textwrap
import threading
import types
import xml.etree.ElementTree
from typing import Any, Callable, Dict, Iterator, List

import pytest

from conftest import ROOT, STUB
from stepmem import _children, _procfs, _shared_memory
from stepmem._ending import _requested_bytes
from stepmem._holders import allowance, heap, places, requests, search, source
from stepmem._holders.allowance import Allowance
from stepmem._holders.search import Search
from stepmem._holders.source import Binding, Form
from stepmem._malloc import Malloc
from stepmem._process import Process
from stepmem._wire import HeapScanRequest
from test_holders import answer  # noqa: F401

PACKAGE = str(ROOT / "python/stepmem")
SIZES = (1_000, 10_000, 100_000)
PER_SIZE = 12
"""Work on ten times as much is at most so many times as much."""


def lines_run(function: Callable[[], Any]) -> int:
    """Returns how many lines of the client a call runs."""
    n_lines = 0

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal n_lines
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        n_lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return n_lines


def assert_linear(counts: List[int]) -> None:
    for less, more in zip(counts, counts[1:]):
        assert more <= PER_SIZE * max(less, 500), counts


LINES: Dict[str, Callable[[int], str]] = {
    "numbers": lambda n: "x = [" + ", ".join(str(each) for each in range(n // 4)) + "]",
    "names": lambda n: ", ".join(["name"] * (n // 6)) + " = x",
    "the name": lambda n: ", ".join(["kept"] * (n // 6)),
    "blanks": lambda n: "a" + " " * n + ", b",
    "columns": lambda n: ",      ".join(["a"] * (n // 8)),
    "tabs and names": lambda n: "\t".join(["kept"] * (n // 5)),
    "brackets": lambda n: "(" * (n // 2) + ")" * (n // 2),
    "dots": lambda n: ".".join(["kept"] * (n // 5)),
    "colons": lambda n: "kept :" * (n // 6),
    "equals signs": lambda n: "kept == " * (n // 8),
    "import": lambda n: "from m import " + ", ".join(f"n{each}" for each in range(n // 8)),
}


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("kind", LINES)
def test_line_is_found_in_a_pass_over_the_source_file_whatever_is_in_it(kind, form, tmp_path):
    bound = {
        Form.GLOBAL: "kept = []",
        Form.ATTRIBUTE: "        self.kept: list = []",
        Form.FIELD: "    kept: list",
        Form.CLASS_ATTRIBUTE: "    kept = []",
        Form.CLASS: "class kept:",
    }[form]
    counts = []
    for n in SIZES:
        file = tmp_path / f"{n}.py"
        file.write_text(f"{LINES[kind](n)}\nclass Owner:\n{bound}\n")
        found: List[Any] = []
        class_name = "Owner" if form in (Form.FIELD, Form.CLASS_ATTRIBUTE) else ""
        counts.append(lines_run(lambda: found.append(source.line_of(str(file), Binding(form, "kept", class_name)))))
        assert found == [3]
    assert_linear(counts)


def test_source_that_is_no_regular_file_or_very_large_has_no_line(tmp_path):
    pipe, large = tmp_path / "pipe.py", tmp_path / "large.py"
    os.mkfifo(pipe)
    large.write_bytes(b"#\n" * source.SOURCE_BYTES_MAX + b"kept = []\n")
    for file in (pipe, large, pathlib.Path("/dev/zero"), tmp_path, tmp_path / "none"):
        assert source.line_of(str(file), Binding(Form.GLOBAL, "kept")) is None


@pytest.mark.parametrize(
    "statement",
    [
        *("kept = []", "kept: list = []", "kept, other = [], 1", "other, kept = 1, []", "(other, kept) = 1, []", "other = kept = []"),
        *("*kept, other = [1]", "if True:\n    kept = []"),
    ],
)
def test_global_is_found_where_it_is_assigned_and_not_where_it_is_used(statement, tmp_path):
    use = 'print(kept, end="")\nf(other, kept=3)\ndef f(other, kept, x=1): pass\nassert kept == 3\nx = {kept: 1}\nkept.append(1)\n'
    (tmp_path / "file.py").write_text(use + statement + "\n")
    expected = 7 + statement.count("\n")
    assert source.line_of(str(tmp_path / "file.py"), Binding(Form.GLOBAL, "kept")) == expected


MAIN = """
    import sys, stepmem
    sys.path.insert(0, DIRECTORY)
    import state
    own = []
    LINE
    def leak():
        state.kept.append(bytearray(100_000))
        own.append(bytearray(100_000))
    for n in range(400):
        leak()
        stepmem.step_end(n)
"""


@pytest.mark.parametrize("kind", LINES)
def test_program_with_a_long_line_goes_on_and_its_holders_have_lines(kind, answer, tmp_path):  # noqa: F811
    line = f'"""{LINES[kind](100_000)}"""'
    (tmp_path / "state.py").write_text(f"{line}\nkept = []\n")
    program = textwrap.dedent(MAIN).replace("DIRECTORY", repr(str(tmp_path))).replace("LINE", line)
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 200_000.0})
    lines = {"`state.kept`": (2, 8), "`own`": (5, 9)}  # where it is made, and where it is filled if that is known by then
    assert {holder["name"] for holder in result["holders"]} == set(lines)
    assert all(holder["line"] in lines[holder["name"]] for holder in result["holders"])


class Item:
    def __init__(self, n: int) -> None:
        self.n = [n]


class Links:
    next: Any = None


def linked(n: int) -> Any:
    first = link = Links()
    for _ in range(n):
        link.next = Links()
        link = link.next
    return first


def attributes(n: int) -> Any:
    item = Item(0)
    for idx in range(n):
        setattr(item, f"name{idx}", [idx])
    return item


def queued(n: int) -> Any:
    found: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    for idx in range(n):
        found.put([idx])
    return found


def elements(n: int) -> Any:
    root = xml.etree.ElementTree.Element("root")
    for _ in range(n):
        xml.etree.ElementTree.SubElement(root, "item")
    return root


def cached(n: int) -> Any:
    @functools.lru_cache(maxsize=n)
    def function(idx: int) -> Any:
        return [idx]

    for idx in range(n):
        function(idx)
    return function


def emptied(table: Any, keys: Any) -> Any:
    for key in keys:
        table.pop(key) if isinstance(table, dict) else table.discard(key)
    return table


HEAPS: Dict[str, Callable[[int], Any]] = {
    "list": lambda n: [[idx] for idx in range(n)],
    "tuple": lambda n: tuple([idx] for idx in range(n)),
    "dict": lambda n: {idx: [idx] for idx in range(n)},
    "set": lambda n: {(idx, ("x",)) for idx in range(n)},
    "frozenset": lambda n: frozenset((idx, ("x",)) for idx in range(n)),
    "deque": lambda n: collections.deque([idx] for idx in range(n)),
    "ordered": lambda n: collections.OrderedDict((idx, [idx]) for idx in range(n)),
    "default": lambda n: collections.defaultdict(list, {idx: [idx] for idx in range(n)}),
    "emptied dict": lambda n: emptied({idx: [idx] for idx in range(n)}, range(n - 3)),
    "emptied set": lambda n: emptied({(idx, ("x",)) for idx in range(n)}, [(idx, ("x",)) for idx in range(n - 3)]),
    "simple queue": queued,
    "elements": elements,
    "lru_cache": cached,
    "instances": lambda n: [Item(idx) for idx in range(n)],
    "linked list": linked,
    "attributes": attributes,
    "lists of lists": lambda n: [[[idx] for idx in range(100)] for _ in range(n // 100)],
    "array": lambda n: array.array("q", range(n)),
    "places for items": lambda n: [*range(n // 2), *([None] * (n // 2))],
    "chain of iterators": lambda n: itertools.chain(*[iter([idx]) for idx in range(n)]),
    "class": lambda n: type("Many", (), {f"name{idx}": [idx] for idx in range(n)}),
    "module": lambda n: vars(types.ModuleType("m")).update({f"name{idx}": [idx] for idx in range(n)}) or types.ModuleType("m"),
    "generators": lambda n: [(each for each in [idx]) for idx in range(n)],
}

STEPS = 160
held: List[Any] = []
"""What a search is to walk through."""


@contextlib.contextmanager
def without_clock() -> Iterator[List[int]]:
    """Makes slices stop for no time; yields a list of the numbers of objects that one call of C code returned."""
    sizes: List[int] = []
    referents, objects = gc.get_referents, gc.get_objects

    def get_referents(*things: Any) -> List[Any]:
        found = referents(*things)
        sizes.append(len(found))
        return found

    def get_objects(**named: Any) -> List[Any]:
        found = objects(**named)
        sizes.append(len(found))
        return found

    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        for module in (search, sys.modules["stepmem._holders.heap_scan"]):
            context.setattr(module, "clock", lambda: 0.0)
        context.setattr(heap.gc, "get_referents", get_referents)  # the client has a copy of the module
        context.setattr(heap.gc, "get_objects", get_objects)
        yield sizes


def searched() -> Search:
    """Returns a search that is over, while the newest of `held` grows by a list at each step, which its name shows."""
    found = Search(20)
    kept: List[Any] = []
    for step in range(STEPS):
        kept.append([bytearray(20_000)])
        found.at_step_end(step)
    assert any(holder.name.text == "`kept`" for holder in found.holders), (found.outcome, found.error)
    return found


@pytest.mark.parametrize("kind", HEAPS)
def test_work_of_a_search_is_linear_and_no_call_returns_more_than_its_limit(kind):
    counts = []
    for n in SIZES:
        held[:] = [HEAPS[kind](n)]
        try:
            with without_clock() as sizes:
                searched()  # learns which types are not followed
                sizes.clear()
                counts.append(lines_run(searched))
            assert sizes and max(sizes) <= heap.REFERENTS_MAX, kind
        finally:
            held.clear()
    assert_linear(counts)


def test_work_of_a_search_is_linear_in_threads_and_frames_and_locals():
    done = threading.Event()

    def deep(n: int) -> None:
        deep(n - 1) if n else done.wait()

    n_lines = []
    for n_threads in (10, 100, 400):
        threads = [threading.Thread(target=deep, args=(50,), daemon=True) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        try:
            with without_clock():
                n_lines.append(lines_run(lambda: places.Roots(heap.Modules()).first()))
        finally:
            done.set()
            for thread in threads:
                thread.join()
            done.clear()
    assert n_lines[2] < 1.5 * n_lines[1], n_lines


def test_second_generation_is_never_listed():
    before = gc.get_threshold()
    gc.set_threshold(1000, 10_000, 10_000)  # lets it grow
    asked: List[Any] = []
    try:
        held[:] = [[idx] for idx in range(300_000)]
        with without_clock(), pytest.MonkeyPatch.context() as context:
            objects = heap.gc.get_objects
            context.setattr(heap.gc, "get_objects", lambda generation: asked.append(generation) or objects(generation=generation))
            searched()
    finally:
        held.clear()
        gc.set_threshold(*before)
    assert set(asked) == {0}


MAPPING = "7f%010x000-7f%010xfff rw-s 00000000 00:01 %d                         %s\n"
PATHS = {
    "torch": "/dev/shm/torch_1234_567_89 (deleted)",
    "almost torch": "/dev/shm/torch" + "_1" * 2000,
    "digits": "/dev/shm/torch_" + "9" * 4000,
    "blanks": "/dev/shm/a" + " " * 4000 + "b",
    "deleted": "/memfd:" + " (deleted)" * 400,
    "file": "/dev/shm/data",
}


@pytest.mark.parametrize("kind", PATHS)
def test_mappings_are_read_in_a_pass_whatever_their_names_are(kind, tmp_path):
    counts = []
    for n in (100, 1_000, 10_000):
        file = tmp_path / f"{n}"
        file.write_text("".join(MAPPING % (idx, idx, idx, PATHS[kind]) + "Size: 4 kB\nRss: 4 kB\n" for idx in range(n)))

        def read(file: pathlib.Path = file) -> None:
            devices = (b"00:01",)
            mappings = [_shared_memory._mapping(line, devices) for line in _procfs.lines(str(file), devices)]
            found = [each for each in mappings if each is not None]
            assert len(found) == n
            makers = [_shared_memory._maker(path) for _, _, path in found]
            assert makers == [1234 if kind == "torch" else None] * n

        counts.append(lines_run(read))
    assert_linear(counts)


def test_list_of_mappings_without_end_is_refused():
    with pytest.raises(ValueError, match="/dev/zero has more than 64 MiB"):
        list(_procfs.lines("/dev/zero", (b"\0",)))


@pytest.mark.parametrize("text", ["9" * 100_000, "Tried to allocate " * 10_000, "tried to allocate " + "1" * 90_000 + " GiB"])
def test_message_of_an_error_is_read_as_far_as_a_size_can_be(text):
    assert lines_run(lambda: _requested_bytes(text)) < 50
    assert _requested_bytes("x " + text) is None


def test_anonymous_memory_of_a_child_is_that_of_its_status_and_the_least_of_it_is_shared():
    mine = _children.anonymous_of(os.getpid())
    status = _procfs.sizes(iter((_procfs.read("/proc/self/status") or b"").split(b"\n")), (b"RssAnon",))
    assert 0.5 < mine / status[b"RssAnon"] < 1.5
    shared = _children._shared_bytes(os.getpid())
    assert shared is not None and 0 <= shared < mine


class TestAllowance:
    def test_all_slices_take_two_hundredths_of_a_second_and_a_thousandth_of_the_run(self):
        for seconds in (10, 60, 600):
            spent: List[tuple] = []
            budget = Allowance(0.0)
            for tick in range(seconds * 200):
                now = tick * 0.005
                if budget.left(now) >= allowance.SLICE_SECONDS:
                    budget.take(now, 0.0025, allowance.SLICE_SECONDS)
                    spent.append((now, 0.0025))
            assert sum(each for _, each in spent) <= max(allowance.CREDIT_SECONDS, 0.001 * seconds) + 1e-9
            for begin, _ in spent:
                assert sum(each for now, each in spent if begin <= now < begin + 1.0) <= 0.02 + 1e-9
            assert sum(each for _, each in spent) >= 0.9 * max(allowance.CREDIT_SECONDS, 0.001 * seconds) - 0.0025

    def test_two_slices_in_a_row_that_take_far_too_long_end_all_searches(self):
        budget = Allowance(0.0)
        for seconds, is_over in ((0.011, False), (0.001, False), (0.011, False), (0.011, True), (0.001, True)):
            budget.take(0.0, seconds, allowance.SLICE_SECONDS)
            assert budget.is_over is is_over


SLOW = """
    import sys, stepmem, stepmem._holders.requests
    from stepmem._holders import allowance
    allowance.SHARE_OF_WINDOW = allowance.CREDIT_SECONDS = 10.0
    ticks = 0.0
    def clock():  # each call takes a tenth of a second
        global ticks
        ticks += 0.1
        return ticks
    sys.modules["stepmem._holders.requests"].clock = clock
    kept = []
    for n in range(400):
        kept.append(bytearray(100_000))
        stepmem.step_end(n)
        if n % 200 == 60:
            print(n, flush=True)
            sys.stdin.readline()
            assert stepmem.flush(10)
"""


def test_search_whose_slices_take_too_long_is_told_once_and_is_the_last_of_its_process(fake, train):
    exporter = fake(200)
    training = train(textwrap.dedent(SLOW), exporter.url, STEPMEM_RUN="llm", PATHS=STUB)
    while training.read_line():
        exporter.actions = [{"type": "holders", "id": f"7-h{len(exporter.holders)}", "run": "llm", "rank": 0, "steps": 20}]
        training.write_line("")
    ended = training.ended()
    assert ended.code == 0, ended.err
    reason = "slices of a search took more than 10 ms of processor time, so this process is not searched again"
    outcomes = [(each["outcome"], each.get("error")) for each in exporter.holders]
    assert outcomes == [("began", None), ("failed", reason), ("failed", reason)]
    assert ended.err.count(reason) == 1


def test_client_matches_no_text_with_regular_expressions():
    """`re` holds the interpreter's lock, and takes exponential time where a quantifier stands over another one."""
    users = [path.name for path in pathlib.Path(PACKAGE).rglob("*.py") if "import re\n" in path.read_text() or "from re " in path.read_text()]
    assert users == []


def test_all_that_searches_do_at_a_steps_end_counts_and_not_slices_alone(monkeypatch):
    """Reports and windows of tracemalloc, too; they do not make two long slices in a row two that are apart."""
    kept = Allowance(0.0)
    for _ in range(2):
        kept.take(0.0, 1.0, allowance.SLICE_SECONDS)
        kept.add(0.0, 0.001)
    assert kept.is_over and kept.taken == pytest.approx(2.002)
    ticks = itertools.count()
    monkeypatch.setattr(requests, "clock", lambda: float(next(ticks)))
    served = requests.HeapScanRequests(Process(), lambda result: None, Malloc(), lambda is_on_host: None)
    served.on_request(HeapScanRequest({"id": "h1"}))
    served._current[1].fail("cut")
    served.at_step_end(1)
    assert served._allowance.taken > 0.0
