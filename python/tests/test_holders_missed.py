"""Holders that a search has to reach or measure in a way of their own: texts, images, hooks, what only a library refers to."""

from __future__ import annotations

import textwrap

import pytest
from test_holders import answer, needs_torch  # noqa: F401

TEXTS = """
    import stepmem
    class Log:
        def __init__(self):
            self.lines = MADE
    log = Log()
    for n in range(400):
        text = "x" * 50_000 + str(n)
        KEEP
        del text
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(
    ("made", "keep"),
    [
        ("[]", "log.lines.append(text)"),
        ("{}", "log.lines[n] = text"),
        ("[]", "log.lines.append({'step': n, 'text': text})"),
        ("{}", "log.lines[text] = n"),
        ("set()", "log.lines.add(text)"),
    ],
)
def test_texts_that_are_kept_are_a_holder(made, keep, answer):
    program = textwrap.dedent(TEXTS).replace("MADE", made).replace("KEEP", keep)
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 50_000.0, "is_on_host": True})
    [holder] = result["holders"]
    assert holder["name"] == "`Log.lines`"
    assert holder["line"] in (5, 9), "where it is made, or where it is filled if that is known by then"
    assert holder["bytes_per_step"] == pytest.approx(50_000, rel=0.1)


ROWS = """
    import gc, stepmem
    from stepmem._holders.heap import Modules
    from stepmem._holders.heap_scan import HeapScan
    from stepmem._holders.places import Slice
    rows, order, expand = MADE, [], HeapScan._expand
    def noted(scan, node, thing, now):
        order.append(id(thing))
        return expand(scan, node, thing, now)
    HeapScan._expand = noted
    class Callback:
        def __init__(self): self.kept = []
    class Loop:
        def __init__(self, callback): self.parts = {"callbacks": [[callback]]}
        def run(self):
            gc.collect()
            scan = HeapScan(Modules())
            assert scan.advance(Slice(scan.modules), float("inf"))
            print(order.index(id(self.parts["callbacks"][0][0].kept)))
    Loop(Callback()).run()
"""


@pytest.mark.parametrize("made", ["[(n, n, n) for n in range(400)]", "[[n] for n in range(400)]", "[{'loss': [n]} for n in range(400)]"])
def test_rows_of_a_log_come_after_what_a_loop_refers_to(made, answer):
    places = []
    for rows in (made, "[]"):
        _, ended = answer(textwrap.dedent(ROWS).replace("MADE", rows), request_at=10_000)
        places.append(int(ended.out))
    assert places[0] - places[1] < 10, places


GRADIENTS = """
    import torch, stepmem
    ensemble = []
    for n in range(200):
        model = torch.nn.Linear(64, 64, bias=False)
        model(torch.ones(1, 64)).sum().backward()
        ensemble.append(model)
        stepmem.step_end(n)
"""


@pytest.mark.parametrize("kept", [pytest.param("model", marks=needs_torch), pytest.param("model.weight", marks=needs_torch)])
def test_gradients_belong_to_what_keeps_their_parameters(kept, answer):
    program = textwrap.dedent(GRADIENTS).replace("append(model)", f"append({kept})")
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 32_768.0})
    [holder] = result["holders"]
    assert (holder["name"], holder["line"]) == ("`ensemble`", 7)
    assert holder["bytes_per_step"] == pytest.approx(32_768, rel=0.1)


PILLOW = """
    class Image:
        def __init__(self, mode, size, pixels):
            self._im, self._mode, self._size, self.info = pixels, mode, size, {}
        size = mode = im = __len__ = __array_interface__ = property(exit)
"""

IMAGES = """
    import stepmem
    from PIL import Image
    class Photo(Image.Image):
        __eq__ = __hash__ = __getattribute__ = lambda *_: exit(7)
    class Viewer:
        def __init__(self): self.shown = []
    viewer = Viewer()
    for n in range(300):
        viewer.shown.append(Photo.__new__(Photo))
        object.__setattr__(viewer.shown[-1], "__dict__", vars(Image.Image(MODE, (300, 200), PIXELS)))
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(
    ("mode", "pixels", "n_bytes"),
    [("RGB", "object()", 240_000), ("L", "object()", 60_000), ("I;16", "object()", 120_000), ("RGB", "None", None), ("object()", "object()", None)],
)
def test_images_have_the_size_of_their_pixels_and_run_no_code(mode, pixels, n_bytes, answer, tmp_path):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL/__init__.py").write_text("")
    (tmp_path / "PIL/Image.py").write_text(textwrap.dedent(PILLOW))
    program = textwrap.dedent(IMAGES).replace("MODE", mode if "(" in mode else repr(mode)).replace("PIXELS", pixels)
    (_, *_, result), _ = answer(program, request={"bytes_per_step": n_bytes or 240_000.0, "is_on_host": True}, PATHS=str(tmp_path))
    assert [holder["name"] for holder in result.get("holders", [])] == (["`Viewer.shown`"] if n_bytes else [])
    for holder in result.get("holders", []):
        assert holder["bytes_per_step"] == pytest.approx(n_bytes, rel=0.05)


REACHED = {
    "objects with slots that refer to each other": (
        """
class Item:
    __slots__ = ("data", "following")
    def __init__(self, following):
        self.data, self.following = bytearray(100_000), following
class Journal: newest = None
journal = Journal()
def keep(n):
    journal.newest = Item(journal.newest)
""",
        ("`Journal.newest`", 9),
    ),
    "a list of an object with slots": (
        """
class Rows:
    __slots__ = ("rows", "n")
    def __init__(self):
        self.rows, self.n = [], 0
rows = Rows()
def keep(n):
    rows.rows.append(bytearray(100_000))
""",
        ("`Rows.rows`", 5),
    ),
    "exceptions that are each other's cause": (
        """
class Worker: last_error = None
worker = Worker()
def keep(n):
    data = bytearray(100_000)
    try:
        try:
            raise ValueError(n)
        except ValueError as error:
            raise RuntimeError("again") from (worker.last_error or error)
    except RuntimeError as error:
        worker.last_error = error
""",
        ("the traceback of a kept exception in `Worker.last_error`", 12),
    ),
    "exceptions that keep what they were raised in": (
        """
errors = []
def fail(n):
    data = bytearray(100_000)
    raise KeyError(n)
def retry(n):
    try:
        fail(n)
    except KeyError:
        raise RuntimeError("again")
def keep(n):
    try:
        retry(n)
    except RuntimeError as error:
        errors.append(error.with_traceback(None))
""",
        ("the traceback of a kept exception in `errors`", 15),
    ),
    "a context variable": (
        """
import contextvars
history = contextvars.ContextVar("history")
history.set([])
def keep(n):
    history.get().append(bytearray(100_000))
""",
        ("the context variable `history`", 3),
    ),
    "values that an interactive shell keeps of its cells": (
        """
import code, sys
class Shell(code.InteractiveInterpreter):
    def __init__(self):
        self.Out = {}
        super().__init__({"__name__": "__main__"})
    def cell(self, n):
        sys.displayhook = lambda value: self.Out.update({n: value})
        self.runsource("bytearray(100_000)", f"<cell {n}>", "single")
shell = Shell()
def keep(n):
    shell.cell(n)
""",
        ("`Shell.Out`", 5),
    ),
    "a handler in the tree of loggers": (
        """
import logging
class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
    def emit(self, record):
        self.records.append(record)
logging.getLogger("app.train").addHandler(Keep())
logging.getLogger("app").setLevel("INFO")
def keep(n):
    logging.getLogger("app.train").info("batch %s", bytearray(100_000))
""",
        ("`Keep.records`", 6),
    ),
}

RUN = """
import stepmem
for n in range(300):
    keep(n)
    stepmem.step_end(n)
"""


@pytest.mark.parametrize("what", REACHED)
def test_holder_is_reached_and_has_a_line_of_the_program(what, answer):
    program, (name, line) = REACHED[what]
    (_, *_, result), _ = answer(program + RUN, request={"bytes_per_step": 100_000.0, "is_on_host": True})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line")) == (name, line), result
    assert holder["bytes_per_step"] == pytest.approx(100_000, rel=0.1)


@pytest.mark.parametrize("n_objects", [30, 60, 150, 300])
def test_chain_that_is_followed_over_many_steps_has_the_rate_of_its_memory(answer, n_objects):
    """Each slice follows that many objects, and at the next one the chain has a newer link in front."""
    program, (name, _) = REACHED["exceptions that are each other's cause"]
    slices = (
        "from stepmem._holders import heap_scan as scan\n"
        f"scan.CLOCK_EVERY, scan.clock = {n_objects} * scan.CLOCK_COST, lambda: float('inf')\n"
    )
    (_, *_, result), _ = answer(slices + program + RUN, request={"bytes_per_step": 100_000.0, "is_on_host": True})
    [holder, *_] = result.get("holders", [{}])
    assert holder.get("name") == name, result
    assert holder["bytes_per_step"] == pytest.approx(100_000, rel=0.1)


STORE = """
    class Store:
        def __init__(self):
            self._rows, self._sizes = [], {}
        def prepare(self, *things):
            return [self._prepare_one(each) for each in things]
        def _prepare_one(self, thing):
            self._rows.append(thing)
            return thing
        def remember(self, key, thing):
            self._sizes[key.strip()] = self._sizes[key] = thing
        def replace(self):
            for key, value in self._sizes.items():
                self._sizes[key] = value
        def close(self):
            self._rows.append(None)
"""

FILLED = {
    "the queue of an executor": (
        """
import concurrent.futures, threading
gate = threading.Event()
class Saver:
    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
    def save(self, data):
        self.pool.submit(lambda: gate.wait() and data)
saver = Saver()
def keep(n):
    saver.save(bytearray(100_000))
def end():
    saver.pool.shutdown(wait=False, cancel_futures=True)
    gate.set()
""",
        ("`Saver.pool[…]`", 8, "save"),
    ),
    "a list of a library, through two of its methods": (
        """
from store import Store
store = Store()
def keep(n):
    store.prepare(bytearray(100_000))
def end():
    store.close()
""",
        ("`Store._rows`", 5, "keep"),
    ),
    "a list in each of several objects": (
        """
import collections
class Meter:
    def __init__(self):
        self.values = []
    def update(self, value):
        self.values.append(value)
meters = collections.defaultdict(Meter)
def keep(n):
    meters["loss"].update(bytearray(60_000))
    meters["accuracy"].update(bytearray(40_000))
def end():
    meters.clear()
""",
        ("`Meter.values`", 7, "update"),
    ),
    "a dictionary of a library that another line replaces": (
        """
from store import Store
class Own(Store):
    def add(self, n):
        self.remember(str(n), bytearray(100_000))
own = Own()
def keep(n):
    own.add(n)
def end():
    own.replace()
""",
        ("`Own._sizes`", 5, "add"),
    ),
    "a list of a library that one of two lines fills": (
        """
from store import Store
store = Store()
def keep(n):
    store.prepare(bytearray(100_000)) if n % 2 else store.prepare(
        bytearray(100_000))
    other(n)
def other(n):
    if n < 0:
        store.prepare(n)
def end():
    store.close()
""",
        ("`Store._rows`", 3, None),
    ),
}


FIT = """
    import stepmem
    class Trainer:
        def __init__(self, callbacks):
            self.callbacks = callbacks
        def train(self):
            for n in range(300):
                for callback in self.callbacks:
                    callback.on_step_end(n)
                stepmem.step_end(n)
"""

CALLBACK = """
from fit import Trainer
class Keep:
    def __init__(self):
        self.kept = []
    def on_step_end(self, n):
        self.kept.append(bytearray(100_000))
Trainer(callbacks=[Keep()]).train()
assert __import__("stepmem").flush(10)
"""


def test_list_of_a_callback_that_only_a_running_trainer_refers_to_is_named(answer, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/fit.py").write_text(textwrap.dedent(FIT))
    request = {"bytes_per_step": 100_000.0, "is_on_host": True}
    (_, *_, result), _ = answer(CALLBACK, request=request, PATHS=str(tmp_path / "site-packages"))
    [holder] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == ("`Keep.kept`", 7, "on_step_end"), result


@pytest.mark.parametrize("what", FILLED)
def test_container_of_a_library_has_the_only_line_of_the_program_that_fills_it(what, answer, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/store.py").write_text(textwrap.dedent(STORE))
    program, expected = FILLED[what]
    request = {"bytes_per_step": 100_000.0, "is_on_host": True}
    paths = str(tmp_path / "site-packages")
    (_, *_, result), _ = answer(program + RUN + "assert stepmem.flush(10)\nend()\n", request=request, PATHS=paths)
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == expected, result


OWN = {
    "an attribute": (
        """
class Log:
    def __init__(self):
        self.kept = []
    def note(self, data):
        self.kept.append(data)
class Other:
    def __init__(self):
        self.kept = []
    def note(self, data):
        self.kept.append(1)
log, other = Log(), Other()
def keep(n):
    log.note(bytearray(100_000))
""",
        ("`Log.kept`", 6, "note"),
    ),
    "a dictionary whose keys are made there": (
        """
class Log:
    def __init__(self):
        self.kept = {}
        self.kept["first"] = None
log = Log()
def keep(n):
    log.kept[f"step {n:06d}"] = bytearray(100_000)
""",
        ("`Log.kept`", 8, "keep"),
    ),
    "a global": (
        """
kept = []
def keep(n):
    kept.append(bytearray(100_000))
""",
        ("`kept`", 4, "keep"),
    ),
    "one that two lines fill": (
        """
class Log:
    def __init__(self):
        self.kept = []
    def note(self, data):
        self.kept.append(data)
    def note_all(self, data):
        self.kept.extend(data)
log = Log()
def keep(n):
    log.note(bytearray(100_000)) if n % 2 else log.note_all([bytearray(100_000)])
""",
        ("`Log.kept`", 4, "__init__"),
    ),
    "one that an argument of running code leads to": (
        """
class Sessions:
    def __init__(self):
        self.states = {}
    def answers(self):
        for n in range(1000):
            self.states[f"user {n}"] = bytearray(100_000)
            yield n
running = Sessions().answers()
def keep(n):
    next(running)
""",
        ("`Sessions.states`", 7, "answers"),
    ),
    "a list in a dictionary": (
        """
class Log:
    def __init__(self):
        self.store = {"kept": [], "other": []}
        self.store["other"].append(bytearray(1))
    def note(self, data):
        self.store["kept"].append(data)
    def count(self, n):
        self.store["other"].append(bytearray(n))
log = Log()
def keep(n):
    log.note(bytearray(100_000))
    log.count(1000)
""",
        ("`Log.store[…]`", 7, "note"),
    ),
    "a list in a global dictionary whose key is a variable": (
        """
store = {}
def note(name, data):
    store.setdefault(name, []).append(data)
def keep(n):
    note("kept", bytearray(100_000))
""",
        ("`store[…]`", 4, "note"),
    ),
    "a list two dictionaries down": (
        """
import collections
store = collections.defaultdict(lambda: {"x": []})
def note(name, data):
    store[name]["y"] = 1
    store[name]["x"].append(data)
def keep(n):
    note("kept", bytearray(100_000))
""",
        ("`store[…]`", 6, "note"),
    ),
    "a list in a dictionary that two lines may fill": (
        """
class Log:
    def __init__(self):
        self.store = {"kept": []}
    def note(self, name, data):
        self.store[name].append(data)
    def note_more(self, data):
        self.store["kept"].append(data)
log = Log()
def keep(n):
    log.note("kept", bytearray(100_000)) if n % 2 else log.note_more(bytearray(100_000))
""",
        ("`Log.store[…]`", 4, "__init__"),
    ),
    "one below an attribute that gets items": (
        """
class Box:
    def __init__(self):
        self.items = {}
class Log:
    def __init__(self):
        self.box = {0: 1}
        self.shelf = Box()
log = Log()
def keep(n):
    log.shelf.items[n] = bytearray(100_000)
def other(n):
    log.box.items[n] = n
""",
        ("`Box.items`", 4, "__init__"),
    ),
}


@pytest.mark.parametrize("what", OWN)
def test_container_of_the_program_has_the_only_line_that_fills_it(what, answer):
    program, expected = OWN[what]
    (_, *_, result), _ = answer(program + RUN + "assert stepmem.flush(10)\n", request={"bytes_per_step": 100_000.0, "is_on_host": True})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == expected, result


ADAPTERS = """
    import torch, stepmem
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.adapters = MADE
    net = Net()
    def load(n):
        KEEP
    for n in range(300):
        load(n)
        stepmem.step_end(n)
    assert stepmem.flush(10)
"""


@pytest.mark.parametrize(
    ("made", "keep"),
    [
        pytest.param("torch.nn.ModuleDict()", "net.adapters[f'tenant {n}'] = torch.nn.Linear(100, 100)", marks=needs_torch),
        pytest.param("torch.nn.ParameterList()", "net.adapters.append(torch.zeros(10_000))", marks=needs_torch),
    ],
)
def test_modules_and_parameters_have_the_line_that_adds_them(made, keep, answer):
    program = textwrap.dedent(ADAPTERS).replace("MADE", made).replace("KEEP", keep)
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 40_000.0})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == ("`Net.adapters[…]`", 9, "load"), result


SERVER = """
    import torch, stepmem
    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.adapters = torch.nn.Linear(100, 100), torch.nn.ModuleDict()
        def forward(self, x, name):
            down, up = self.adapters[name]
            return self.base(x) + up(down(x))
    class Server(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Adapted() for _ in range(4))
        def load(self, name):
            for layer in self.layers:
                layer.adapters[name] = torch.nn.ModuleList([torch.nn.Linear(100, 25, bias=False), torch.nn.Linear(25, 100, bias=False)])
        def forward(self, x, name):
            for layer in self.layers:
                x = layer(x, name)
            return x
    server = Server().eval()
    with torch.inference_mode():
        for n in range(300):
            server.load(f"tenant_{n}")
            server(torch.ones(1, 100), f"tenant_{n}")
            stepmem.step_end(n)
    assert stepmem.flush(10)
"""


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_torch)])
def test_adapters_that_each_layer_of_a_server_keeps_are_one_holder_with_all_of_the_growth(_, answer):
    (_, *_, result), _ = answer(textwrap.dedent(SERVER), request={"bytes_per_step": 80_000.0})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == ("`Adapted.adapters[…]`", 16, "load"), result
    assert 80_000 <= holder["bytes_per_step"] <= 110_000, "with the objects around its tensors"


HOOKS = """
    import torch, stepmem
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1))
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 4))
        def remember(self, n):
            self.register_buffer(f"seen_{n}", torch.zeros(10_000))
    net = Net()
    def watch(n, seen):
        net.body[0].register_forward_hook(lambda *_: seen.size(0) * 0 or None)
    for n in range(300):
        KEEP
        net.body(torch.ones(1, 4))
        stepmem.step_end(n)
    assert stepmem.flush(10)
"""


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        pytest.param("watch(n, torch.zeros(10_000))", ("`Net.body[…]._forward_hooks`", "hooks", 12, "watch"), marks=needs_torch),
        pytest.param("net.remember(n)", ("`Net._buffers`", "dict", 9, "remember"), marks=needs_torch),
    ],
)
def test_hooks_and_buffers_have_the_line_that_registers_them(keep, expected, answer):
    (_, *_, result), _ = answer(textwrap.dedent(HOOKS).replace("KEEP", keep), request={"bytes_per_step": 40_000.0})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("kind"), holder.get("line"), holder.get("function")) == expected, result


REPLACED = """
    import torch, stepmem
    class Trainer:
        def __init__(self):
            self.weight = torch.ones(64, requires_grad=True)
            self.mean, self.seen = torch.zeros(64), torch.zeros(0)
        def update(self, n):
            self.mean = 0.9 * self.mean + self.weight
        def extend(self, n):
            self.seen = torch.cat([self.seen, torch.zeros(10_000)])
        def report(self):
            return self.mean, self.seen
    trainer = Trainer()
    for n in range(300):
        trainer.METHOD(n)
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(
    ("method", "name", "line"),
    [
        pytest.param("update", "an autograd graph behind `Trainer.mean`", 8, marks=needs_torch),
        pytest.param("extend", "`Trainer.seen`", 10, marks=needs_torch),
    ],
)
def test_attribute_that_is_replaced_has_the_line_that_replaces_it(method, name, line, answer):
    (_, *_, result), _ = answer(textwrap.dedent(REPLACED).replace("METHOD", method), request={"bytes_per_step": 40_000.0})
    [holder, *_] = result.get("holders", [{}])
    assert (holder.get("name"), holder.get("line"), holder.get("function")) == (name, line, method), result
