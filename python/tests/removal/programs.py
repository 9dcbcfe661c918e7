"""Programs that keep ever more in a container for as long as a search lasts. Most of them empty it some time, in the ways that programs do.

Each is a text, and the lines that remove from the container or put another one in its place; none where nothing does.
"""

from __future__ import annotations

import itertools
from typing import Dict, Iterator, List, NamedTuple, Tuple

MARK = "  #-"


class Program(NamedTuple):
    """A program, with the lines that its text marks."""

    name: str
    text: str
    lines: Tuple[int, ...]
    """The lines that remove from the holder, in the program or in a module of it."""
    modules: Dict[str, str]


KINDS = {
    "list": ("[]", ("append(item)", "extend([item])", "insert(0, item)", "+= [item]")),
    "dict": ("{}", ("[n] = item", "update({n: item})", "setdefault(n, item)")),
    "deque": ("collections.deque()", ("append(item)", "appendleft(item)", "extend([item])", "+= [item]")),
}

READS = ("len(IT)", "[each for each in IT]", "sum(1 for _ in IT)", "list(IT)", "bool(IT)", "IT and 1", "n in IT", "sorted(map(id, IT))[:1]", "print(end=str(len(IT))[:0])")

EMPTIERS: Dict[str, Dict[str, str]] = {
    "list": {
        "clear": "IT.clear()",
        "del all": "del IT[:]",
        "del one": "del IT[0]",
        "assign slice": "IT[:] = []",
        "assign part": "IT[2:] = IT[:1]",
        "pop": "while IT:\n    IT.pop()MARK",
        "remove": "IT.remove(IT[0])",
        "built again": "IT = []",
        "filtered": "IT = [each for each in IT if not each]",
        "by map": "list(map(list.clear, [IT]))",
        "from a lambda's default": "(lambda what=IT: what.clear())()",
        "halved": "IT = IT[len(IT) // 2:]",
        "swapped": "kept, IT = IT, []",
        "by class": "list.clear(IT)",
        "alias": "alias = IT\nalias.clear()MARK",
        "method": "flush = IT.clearMARK\nflush()MARK",
        "argument": "empty(IT)",
        "argument by name": "empty(what=IT)",
        "one of several": "for each in (IT, []):\n    each.clear()MARK",
        "partial": "functools.partial(list.clear, IT)()",
        "lambda": "(lambda: IT.clear())()",
        "heap": "heapq.heappop(IT)",
        "delitem": "IT.__delitem__(0)",
        "init": "IT.__init__()",
        "delitem by operator": "operator.delitem(IT, 0)",
        "exec": "exec('IT.clear()')",
        "eval": "eval('IT.clear()')",
    },
    "dict": {
        "clear": "IT.clear()",
        "del": "del IT[next(iter(IT))]",
        "pop": "IT.pop(next(iter(IT)))",
        "popitem": "IT.popitem()",
        "oldest out": "while len(IT) > 9:\n    IT.pop(min(IT))MARK",
        "built again": "IT = {}",
        "filtered": "IT = {key: value for key, value in IT.items() if key > n}",
        "alias": "alias = IT\nalias.clear()MARK",
        "argument": "empty(IT)",
    },
    "deque": {"clear": "IT.clear()", "popleft": "IT.popleft()", "queue": "while IT:\n    IT.popleft()MARK", "argument": "empty(IT)", "built again": "IT = collections.deque()"},
}

BY_NAME: Dict[str, str] = {
    "setattr": "setattr(self, 'items', NEW)",
    "setattr of all": "for name in ('items',):\n    setattr(self, name, NEW)MARK",
    "defaults": "for name, new in {'items': lambda: NEW}.items():\n    setattr(self, name, new())MARK",
    "getattr": "getattr(self, 'items').clear()",
    "vars": "vars(self)['items'] = NEW",
    "dict": "self.__dict__.update(items=NEW)",
    "begun again": "self.__init__()",
    "delattr": "delattr(self, 'items')\nself.items = NEWMARK",
}

HEADER = "import collections, functools, heapq, operator\n\ndef empty(what):\n    what.clear()MARK\n\n"


def _add(it: str, how: str) -> str:
    return f"{it} {how}" if how[1] == "=" else f"{it}{how}" if how.startswith("[") else f"{it}.{how}"


def _block(text: str, n: int) -> str:
    return "\n".join(" " * n + line for line in text.split("\n"))


def _emptier(template: str, it: str, new: str) -> str:
    text = template.replace("IT", it).replace("NEW", new)
    return text if "MARK" in text else "\n".join(line + "MARK" for line in text.split("\n"))


def _program(name: str, text: str, **modules: str) -> Program:
    text = text.replace("MARK", MARK)
    lines = tuple(number for number, line in enumerate(text.split("\n"), 1) if line.endswith(MARK))
    return Program(name, text, lines, {each: module.replace("MARK", MARK) for each, module in modules.items()})


def of_attribute(kind: str, how: str, read: str, emptier: str) -> str:
    """Returns a class with a container in an attribute."""
    new = KINDS[kind][0]
    adds = f"    def add(self, n, item):\n        {_add('self.items', how)}\n        {read.replace('IT', 'self.items')}\n"
    reset = f"    def reset(self, n):\n{_block(emptier, 8)}\n" if emptier else ""
    calls = "        if n % 1000 == 999:\n            trainer.reset(n)\n" if emptier else ""
    run = f"def run(step_end, steps):\n    trainer = Trainer()\n    for n in range(steps):\n        trainer.add(n, bytearray(9000))\n{calls}        step_end(n)\n"
    return f"{HEADER}class Trainer:\n    def __init__(self):\n        self.items = {new}\n{adds}{reset}\n{run}"


def of_global(kind: str, how: str, read: str, emptier: str) -> str:
    """Returns a module with a container in a global variable."""
    new = KINDS[kind][0]
    adds = f"def add(n, item):\n    global items\n    {_add('items', how)}\n    {read.replace('IT', 'items')}\n\n"
    reset = f"def reset(n):\n    global items\n{_block(emptier, 4)}\n\n" if emptier else ""
    calls = "        if n % 1000 == 999:\n            reset(n)\n" if emptier else ""
    run = f"def run(step_end, steps):\n    for n in range(steps):\n        add(n, bytearray(9000))\n{calls}        step_end(n)\n"
    return f"{HEADER}items = {new}\n\n{adds}{reset}{run}"


def of_local(kind: str, how: str, read: str, emptier: str) -> str:
    """Returns a function with a container in a local variable."""
    new = KINDS[kind][0]
    reset = f"        if n % 1000 == 999:\n{_block(emptier, 12)}\n" if emptier else ""
    body = f"    items = {new}\n    for n in range(steps):\n        item = bytearray(9000)\n        {_add('items', how)}\n        {read.replace('IT', 'items')}\n{reset}        step_end(n)\n"
    return f"{HEADER}def run(step_end, steps):\n{body}"


FORMS = {"attribute": (of_attribute, "self.items"), "global": (of_global, "items"), "local": (of_local, "items")}

OTHERS: List[Tuple[str, str, Dict[str, str]]] = [
    (
        "owner of each epoch",
        "class Epoch:\n    def __init__(self):\n        self.outputs = []\n\ndef run(step_end, steps):\n    for _ in range(1):\n        epoch = Epoch()MARK\n        for n in range(steps):\n            epoch.outputs.append(bytearray(9000))\n            step_end(n)\n",
        {},
    ),
    (
        "owner in an owner",
        "class Epoch:\n    def __init__(self):\n        self.outputs = []\n\nclass Trainer:\n    def __init__(self):\n        self.epoch = Epoch()\n    def begin(self):\n        self.epoch = Epoch()MARK\n\ntrainer = Trainer()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        if n % 1000 == 999:\n            trainer.begin()\n        trainer.epoch.outputs.append(bytearray(9000))\n        step_end(n)\n",
        {},
    ),
    (
        "global owner",
        "class Epoch:\n    def __init__(self):\n        self.outputs = []\n\nepoch = Epoch()\n\ndef begin():\n    global epoch\n    epoch = Epoch()MARK\n\ndef run(step_end, steps):\n    for n in range(steps):\n        if n % 1000 == 999:\n            begin()\n        epoch.outputs.append(bytearray(9000))\n        step_end(n)\n",
        {},
    ),
    (
        "base class that resets its states",
        "class Metric:\n    def __init__(self):\n        self._defaults = {}\n    def add_state(self, name, default):\n        setattr(self, name, default)\n        self._defaults[name] = default\n    def reset(self):\n        for name, default in self._defaults.items():\n            setattr(self, name, list(default))MARK\n\nclass Accuracy(Metric):\n    def __init__(self):\n        super().__init__()\n        self.add_state('scores', [])\n    def update(self, item):\n        self.scores.append(item)\n\nmetric = Accuracy()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        metric.update(bytearray(9000))\n        if n % 1000 == 999:\n            metric.reset()\n        step_end(n)\n",
        {},
    ),
    (
        "imported from another module",
        "from program_state import items\n\ndef run(step_end, steps):\n    import program_state\n    for n in range(steps):\n        items.append(bytearray(9000))\n        if n % 1000 == 999:\n            program_state.reset()\n        step_end(n)\n",
        {"program_state": "items = []\n\ndef reset():\n    items.clear()MARK\n"},
    ),
    (
        "of another module",
        "import program_state\n\ndef run(step_end, steps):\n    for n in range(steps):\n        program_state.items.append(bytearray(9000))\n        if n % 1000 == 999:\n            program_state.items = []MARK\n        step_end(n)\n",
        {"program_state": "items = []\n"},
    ),
    (
        "by a late module",
        "items = []\n\ndef run(step_end, steps):\n    for n in range(steps):\n        items.append(bytearray(9000))\n        if n == 60:\n            import program_late\n        if n % 1000 == 999:\n            program_late.reset(items)MARK\n        step_end(n)\n",
        {"program_late": "def reset(what):\n    what.clear()\n"},
    ),
    (
        "by a thread",
        "import collections, threading\npending = collections.deque()\ndone = threading.Event()\n\ndef work():\n    while not done.wait(3600):\n        while pending:\n            pending.popleft()MARK\n\ndef run(step_end, steps):\n    thread = threading.Thread(target=work, daemon=True)\n    thread.start()\n    for n in range(steps):\n        pending.append(bytearray(9000))\n        step_end(n)\n    done.set()\n",
        {},
    ),
    (
        "queue of the standard library",
        "import queue\npending = queue.Queue()\n\ndef take():\n    return pending.get()MARK\n\ndef run(step_end, steps):\n    for n in range(steps):\n        pending.put(bytearray(9000))\n        if n % 1000 == 999:\n            take()\n        step_end(n)\n",
        {},
    ),
    (
        "given back to the caller",
        "class Log:\n    def __init__(self):\n        self.rows = []\n    def add(self, row):\n        self.rows.append(row)\n    def all(self):\n        return self.rowsMARK\n\nlog = Log()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        log.add(bytearray(9000))\n        if n % 1000 == 999:\n            log.all().clear()\n        step_end(n)\n",
        {},
    ),
    (
        "by a closure",
        "def make():\n    rows = []\n    def add(row):\n        rows.append(row)\n    def flush():\n        rows.clear()MARK\n    return add, flush\n\ndef run(step_end, steps):\n    add, flush = make()\n    for n in range(steps):\n        add(bytearray(9000))\n        if n % 1000 == 999:\n            flush()\n        step_end(n)\n",
        {},
    ),
    (
        "by an inner function",
        "def run(step_end, steps):\n    rows = []\n    def flush():\n        rows.clear()MARK\n    for n in range(steps):\n        rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            flush()\n        step_end(n)\n",
        {},
    ),
    (
        "by a decorated method",
        "import functools\n\ndef logged(function):\n    @functools.wraps(function)\n    def inner(*arguments):\n        return function(*arguments)\n    return inner\n\nclass Buffer:\n    def __init__(self):\n        self.rows = []\n    @logged\n    def flush(self):\n        self.rows.clear()MARK\n\nbuffer = Buffer()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        buffer.rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            buffer.flush()\n        step_end(n)\n",
        {},
    ),
    (
        "by a property and a static method",
        "class Buffer:\n    def __init__(self):\n        self.rows = []\n    @property\n    def taken(self):\n        return Buffer.take(self.rows)MARK\n    @staticmethod\n    def take(rows):\n        found = list(rows)\n        rows.clear()MARK\n        return found\n\nbuffer = Buffer()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        buffer.rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            buffer.taken\n        step_end(n)\n",
        {},
    ),
    (
        "from outside of the class",
        "class Buffer:\n    def __init__(self):\n        self.rows = []\n\ndef flush(buffer):\n    buffer.rows.clear()MARK\n\nbuffer = Buffer()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        buffer.rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            flush(buffer)\n        step_end(n)\n",
        {},
    ),
    (
        "by a subclass of list",
        "class Rows(list):\n    def append(self, row):\n        if len(self) > 900:\n            self.clear()MARK\n        super().append(row)\n\nrows = Rows()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        rows.append(bytearray(9000))\n        step_end(n)\n",
        {},
    ),
    (
        "parameter of a function",
        "def train(rows, step_end, steps):\n    for n in range(steps):\n        rows.append(bytearray(9000))\n        step_end(n)\n\ndef run(step_end, steps):\n    rows = []\n    train(rows, step_end, steps)MARK\n    rows.clear()MARK\n",
        {},
    ),
    (
        "cell of a notebook",
        "items = []\nCELLS = ['items.append(bytearray(9000))', 'items.clear()']\n\ndef run(step_end, steps):\n    for n in range(steps):\n        exec(CELLS[n % 1000 == 999], globals())MARK\n        step_end(n)\n",
        {},
    ),
    (
        "cache by key with a limit",
        "class Cache:\n    def __init__(self):\n        self.rows = {}\n    def get(self, key):\n        if key not in self.rows:\n            if len(self.rows) > 5000:\n                self.rows.pop(next(iter(self.rows)))MARK\n            self.rows[key] = bytearray(9000)\n        return self.rows[key]\n\ncache = Cache()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        cache.get(n)\n        step_end(n)\n",
        {},
    ),
    (
        "in a dictionary of owners",
        "class Run:\n    def __init__(self):\n        self.rows = []\n\nruns = {'a': Run()}\n\ndef run(step_end, steps):\n    for n in range(steps):\n        runs['a'].rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            runs.clear()MARK\n        step_end(n)\n",
        {},
    ),
    (
        "class that does as it likes with its attributes",
        "class Odd:\n    def __setattr__(self, name, value):\n        object.__setattr__(self, 'rows', [])MARK\n    def __init__(self):\n        self.rows = 1\n\nodd = Odd()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        odd.rows.append(bytearray(9000))\n        if n % 1000 == 999:\n            odd.reset = True\n        step_end(n)\n",
        {},
    ),
]

LEAKS_BESIDE: List[Tuple[str, str]] = [
    (
        "another class empties its own of that name",
        "class Loader:\n    def __init__(self):\n        self.rows = []\n    def flush(self):\n        self.rows.clear()\n        setattr(self, 'rows', [])\n\nclass Trainer:\n    def __init__(self):\n        self.rows = []\n    def add(self, row):\n        self.rows.append(row)\n\ntrainer, loader = Trainer(), Loader()\n\ndef run(step_end, steps):\n    for n in range(steps):\n        trainer.add(bytearray(9000))\n        loader.flush()\n        step_end(n)\n",
    ),
    (
        "another function empties a variable of that name",
        "def other():\n    rows = [1]\n    rows.clear()\n\ndef run(step_end, steps):\n    rows = []\n    for n in range(steps):\n        rows.append(bytearray(9000))\n        other()\n        step_end(n)\n",
    ),
    (
        "another module empties its global of that name",
        "import program_state\nrows = []\n\ndef run(step_end, steps):\n    for n in range(steps):\n        rows.append(bytearray(9000))\n        program_state.rows.clear()\n        step_end(n)\n",
    ),
]


def healthy() -> Iterator[Program]:
    """Yields programs that empty the container some time."""
    for (form, (make, it)), (kind, emptiers) in itertools.product(FORMS.items(), EMPTIERS.items()):
        new, adds = KINDS[kind]
        by_name = BY_NAME if form == "attribute" else {}
        for number, (how, template) in enumerate({**emptiers, **by_name}.items()):
            for shift in (0, 1):
                add, read = adds[(number + shift) % len(adds)], READS[(2 * number + shift) % len(READS)]
                yield _program(f"{form}, {kind}, {how}, {add}", make(kind, add, read, _emptier(template, it, new)))
    for name, text, modules in OTHERS:
        yield _program(name, text, **modules)


def leaking() -> Iterator[Program]:
    """Yields programs that never remove from it."""
    for (form, (make, _)), (kind, (_, adds)) in itertools.product(FORMS.items(), KINDS.items()):
        for add, read in itertools.product(adds, READS):
            yield _program(f"{form}, {kind}, {add}, {read}", make(kind, add, read, ""))
    for name, text in LEAKS_BESIDE:
        yield _program(name, text, program_state="rows = []\n")
