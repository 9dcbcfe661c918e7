"""Whether the program's code removes from a holder: read from the compiled code of its modules and running functions, by names alone.

A program can do that in ways which no name shows. So nothing removes only if each use is understood, all of the way to the holder is the
program's own, and some code that was read adds to it.
"""

from __future__ import annotations

import opcode
import os
import sys
import time
import types
from collections import deque
from itertools import islice
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import frames
from .heap import HERE, RECORD, Modules, is_foreign, module_dict
from .names import ATTRIBUTES_MAX, CODE_BYTES_MAX, _dict_of_type, _module_of, _mro, _name_of, attributes, line_at, namespace_of, size_of_code
from .places import FRAME, Key
from .texts import path, plain

CODES_MAX = 4096
"""Functions of the program that are read, at most. With more, nothing is told."""

INSTRUCTIONS_MAX = 50_000
"""Instructions of those with a name that matters, likewise."""

INSTRUCTIONS_PER_YIELD = 512
"""Instructions after which the thread hands over the interpreter's lock."""

ARGUMENTS_MAX = 12
"""Instructions from an argument to its call, at most."""

EXACT = (list, dict, set, deque)
"""Types of such holders. A subclass may have other methods."""

ADDS = frozenset("append extend insert appendleft extendleft add update setdefault".split())
REMOVES = frozenset("clear pop popleft popitem remove discard".split())
READS = frozenset("copy count index sort reverse rotate get keys values items __len__".split())
"""Methods of containers."""

SAFE = frozenset("len sum max min any all sorted list tuple set frozenset dict enumerate reversed isinstance print repr str bool id type".split())
SAFE_MODULES = frozenset(("torch", "numpy", "math", "statistics", "json", "random"))
"""Functions, and modules of such, that remove nothing."""

READING = frozenset("GET_ITER POP_TOP CONTAINS_OP COMPARE_OP UNARY_NOT TO_BOOL LIST_EXTEND SET_UPDATE CALL_FUNCTION_EX".split())
"""Instructions that only read."""

SIMPLE = frozenset("LOAD_FAST LOAD_DEREF LOAD_GLOBAL LOAD_NAME LOAD_CONST".split())

BY_TEXT = frozenset("getattr setattr delattr hasattr".split())
"""Functions that get a name as a text."""

BY_CODE = frozenset("exec eval globals locals".split())
START = os.path.join(os.path.dirname(HERE[:-1]), "sitecustomize.py")
"""What starts the client below `run`."""

OVERRIDES = frozenset("__setattr__ __delattr__ __getattribute__".split())
BY_ANY_NAME = BY_CODE | OVERRIDES | frozenset("vars __dict__ attrgetter methodcaller".split())
"""Names by which code reaches what it does not name."""

INITIAL = frozenset(("__init__", "__new__", "__post_init__"))
"""Methods that give an object its attributes."""

PLAIN_BASES = (("builtins", "object"), ("torch.nn.modules.module", "Module"))
"""Other bases, which empty no attribute."""


NOTHING, EMPTIED, HANDED_ON = "nothing", "emptied", "handed_on"
"""What the code does to the holder."""


class Removal(NamedTuple):
    """Where it is emptied or handed on; a file that adds to it where nothing removes."""

    outcome: str
    file: str
    line: Optional[int]


Class = Tuple[str, str]
Place = Tuple[str, str, int]


class Link(NamedTuple):
    """A variable or attribute on the way to a holder."""

    name: str
    classes: Tuple[Class, ...] = ()
    """Of an attribute: the classes of its owner, by module and name."""
    modules: Tuple[Tuple[str, str], ...] = ()
    """Of a global: its modules, and its name in each."""
    code: Optional[Place] = None
    """Of a local variable: file, name and first line of its function."""
    id: int = 0
    """Of a global."""
    keys: Tuple[Optional[str], ...] = ()
    """Of the last one, where the holder is an item below it: the keys that lead there; None for others than texts."""


class Code(NamedTuple):
    """The code of one function, and where it is found."""

    namespace: Dict[str, Any]
    code: types.CodeType
    class_: Optional[Class] = None
    """Its class."""
    receiver: str = ""
    """The name of the method's object."""


class Step(NamedTuple):
    """One instruction, as all versions of Python have it."""

    op: str
    name: str
    offset: int
    argument: int


def links_of(key: Key, chain: List[Tuple[Any, int]], modules: Modules) -> Tuple[Link, ...]:
    """Returns the way to the last object of a chain; nothing unless its end is the program's. A part that is not has no name."""
    last = chain[-1][0]
    if len(chain) < 2 or not any(type(last) is each for each in EXACT):
        return ()
    chain, keys = _without_keys(chain)
    root, root_kind = chain[0]
    first = _of_frame(root, chain[1][0]) if root_kind == FRAME else _of_module(key, chain[1][0])
    links, owner = [first], None
    for (parent, parent_kind), (child, _) in zip(chain[1:], chain[2:]):
        if parent_kind == RECORD and namespace_of(parent) is child:
            owner = parent  # its attributes are one object further
            continue
        owner = parent if parent_kind == RECORD else owner
        if owner is None or not _is_plain(type(owner), modules):
            links.append(None)
            owner = None
            continue
        classes = tuple(_class_key(each) for each in _mro(type(owner)) if modules.is_programs(_module_of(each)))
        links.append(next((Link(name, classes) for name, value in attributes(owner).items() if value is child), None))
        owner = None
    *others, to = (each or Link("") for each in links)
    return (*others, to._replace(keys=keys)) if to.name else ()


def _without_keys(chain: List[Tuple[Any, int]]) -> Tuple[List[Tuple[Any, int]], Tuple[Optional[str], ...]]:
    """Returns a chain up to the variable or attribute below which its last object is an item, and the keys from there on."""
    keys: List[Optional[str]] = []
    while len(chain) > 2:
        (owner, kind), (parent, _), (child, _) = chain[-3:]
        if kind == RECORD and namespace_of(owner) is parent or not type.__subclasscheck__(dict, type(parent)):
            break
        items = islice(dict.items(parent), ATTRIBUTES_MAX)
        keys.append(next((key for key, value in items if value is child and type(key) is str), None))
        chain = chain[:-1]
    return chain, tuple(reversed(keys))


def _of_frame(frame: Any, child: Any) -> Optional[Link]:
    code = frame.f_code
    names = frames.local_names(code)
    n_arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    for idx, value in frames.read(frame):
        held = value.cell_contents if type(value) is types.CellType and value != types.CellType() else value
        if held is child:
            is_own = names[idx] not in code.co_freevars and names[idx] not in code.co_varnames[:n_arguments]
            return Link(plain(names[idx]), code=_place(code)) if is_own else None
    return None


def _of_module(key: Key, child: Any) -> Optional[Link]:
    namespace = module_dict(sys.modules.get(key[1])) or {} if key[0] == "module" else {}
    has_file = type(namespace.get("__file__")) is str
    found = _names_of(namespace, id(child)) if has_file else []
    return Link(found[0], modules=((key[1], found[0]),), id=id(child)) if found else None


def _names_of(namespace: Dict[str, Any], id_: int) -> List[str]:
    return [name for name, value in islice(dict.items(namespace), ATTRIBUTES_MAX) if id(value) == id_ and type(name) is str]


def everywhere(link: Link) -> Link:
    """Adds the names of a global in other modules."""
    found = list(link.modules)
    for module in Modules().programs if found else ():
        found += [(module, name) for name in _names_of(module_dict(sys.modules.get(module)) or {}, link.id)]
        time.sleep(0)
    return link._replace(modules=tuple(found))


def _is_plain(class_: Any, modules: Modules) -> bool:
    """Returns whether nothing but the program's code does something to a class's attributes."""
    for base in _mro(class_):
        is_programs = modules.is_programs(_module_of(base))
        if not is_programs and _class_key(base) not in PLAIN_BASES or is_programs and OVERRIDES & _dict_of_type(base).keys():
            return False
    return True


def _class_key(class_: Any) -> Class:
    return plain(_module_of(class_)), plain(_name_of(class_))


def removal(links: Tuple[Link, ...]) -> Optional[Removal]:
    """Returns what the program's code does to a holder; None where that is not known. Not for the training thread."""
    try:
        return _Reading(tuple(map(everywhere, links))).result() if links and all(link.name for link in links) and not links[-1].keys else None
    except RuntimeError:  # a namespace changed while it was read
        return None


class _Reading:
    """One pass over the code of the program."""

    def __init__(self, links: Tuple[Link, ...]) -> None:
        self._links = links
        self._n_instructions = 0
        self._adds: Optional[Removal] = None
        self._hands_on: Optional[Removal] = None

    def result(self) -> Optional[Removal]:
        """Returns the first place that empties the holder, else that may, else, if some code adds to it, nothing."""
        names = {name for link in self._links for name in (link.name, *(name for _, name in link.modules))}
        wanted = names | BY_TEXT | BY_ANY_NAME | INITIAL
        for number, of in enumerate(codes()):
            code = of.code
            if number >= CODES_MAX:
                return None
            if all(map(wanted.isdisjoint, (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars))):
                continue
            emptied = self._read(of)
            if emptied is not None or self._n_instructions > INSTRUCTIONS_MAX:
                return emptied
        return self._hands_on or self._adds

    def _read(self, of: Code) -> Optional[Removal]:
        if size_of_code(of.code) > CODE_BYTES_MAX:
            self._n_instructions += INSTRUCTIONS_MAX + 1
            return None
        steps = steps_of(of.code)
        self._n_instructions += len(steps)
        loops = _loops(steps)
        for link in self._links:
            uses = [(idx, certainty(steps, idx, link, of)) for idx in range(len(steps))]
            uses = [(idx, is_sure) for idx, is_sure in uses if is_sure is not None]
            for idx, is_sure in uses:
                if _replaces(steps, idx, link, of.code, loops):
                    if is_sure:
                        return self._at(EMPTIED, of, steps[idx])
                    self._may_empty(of, steps[idx])
            if link is self._links[-1]:
                emptied = self._loads(steps, uses, of)
                if emptied is not None:
                    return emptied
        for idx, step in enumerate(steps):
            if _reaches_any(steps, idx, self._links, of):
                self._may_empty(of, step)
        return None

    def _loads(self, steps: List[Step], uses: "List[Tuple[int, Optional[bool]]]", of: Code) -> Optional[Removal]:
        open_: List[int] = []
        for idx, is_sure in uses:
            if steps[idx].op.startswith("STORE"):
                if adds_in_place(steps, idx) and open_:
                    open_.pop()  # of the same statement
                    self._add(of)
            elif steps[idx].op.startswith("LOAD"):
                use = _use_of(steps, idx, of.namespace)
                if use == EMPTIED and is_sure:
                    return self._at(use, of, steps[idx])
                if use == NOTHING:
                    self._add(of)
                elif use is not None:
                    open_.append(idx)
        for idx in open_[:1]:
            self._may_empty(of, steps[idx])
        return None

    def _add(self, of: Code) -> None:
        self._adds = self._adds or Removal(NOTHING, of.code.co_filename, None)

    def _may_empty(self, of: Code, step: Step) -> None:
        self._hands_on = self._hands_on or self._at(HANDED_ON, of, step)

    def _at(self, outcome: str, of: Code, step: Step) -> Removal:
        return Removal(outcome, of.code.co_filename, line_at(of.code, step.offset))


def certainty(steps: List[Step], idx: int, link: Link, of: Code) -> Optional[bool]:
    """Returns whether an instruction uses a variable or an attribute: True, False if it may, else None."""
    step, code = steps[idx], of.code
    kind = step.op.partition("_")[2]
    if kind == "ATTR":
        if link.code is not None or step.name != link.name and all(step.name != name for _, name in link.modules):
            return None
        return _is_owner(steps, idx, link, of)
    if link.code is not None:
        if step.name != link.name or kind not in ("FAST", "DEREF"):
            return None
        is_free = kind == "DEREF" and step.name in code.co_freevars  # else it is a variable of this function
        return False if is_free else True if _place(code) == link.code else None
    if kind in ("GLOBAL", "NAME") and link.modules:
        is_use = any(step.name == name and of.namespace is module_dict(sys.modules.get(module)) for module, name in link.modules)
        return True if is_use else None
    return None


def _place(code: types.CodeType) -> Place:
    return path(code.co_filename) or "", plain(code.co_name), code.co_firstlineno


def _is_owner(steps: List[Step], idx: int, link: Link, of: Code) -> Optional[bool]:
    """Returns whether an attribute that is used is the owner's: True, False if it may be, else None."""
    before = idx - 1
    while before >= 0 and steps[before].op in ("COPY", "DUP_TOP", "SWAP", "ROT_TWO"):
        before -= 1
    if before < 0:
        return False
    owner = steps[before]
    if owner.op in ("LOAD_FAST", "LOAD_DEREF") and of.receiver and owner.name == of.receiver:
        return True if of.class_ in link.classes else None
    if owner.op in ("LOAD_GLOBAL", "LOAD_NAME"):
        thing = dict.get(of.namespace, owner.name)
        if type(thing) is types.ModuleType:
            return True if (plain((module_dict(thing) or {}).get("__name__")), steps[idx].name) in link.modules else None
    return False


def _replaces(steps: List[Step], idx: int, link: Link, code: types.CodeType, loops: List[Tuple[int, int]]) -> bool:
    """Returns whether an instruction puts another object in its place."""
    step = steps[idx]
    if step.op.startswith("DELETE"):
        return True
    if not step.op.startswith("STORE") or adds_in_place(steps, idx):
        return False
    is_repeated = any(begin <= step.offset <= end for begin, end in loops)
    if link.code is not None:
        first = next((each for each in steps if each.op == step.op and each.name == step.name), step)
        return is_repeated or first is not step
    return is_repeated or plain(code.co_name) not in (INITIAL if step.op == "STORE_ATTR" else ("<module>",))


def adds_in_place(steps: List[Step], idx: int) -> bool:
    """Returns whether an instruction stores the result of `+=` or `|=`."""
    before = idx - 1
    if before >= 0 and steps[before].op in ("SWAP", "ROT_TWO"):
        before -= 1
    return before >= 0 and steps[before].op in ("INPLACE_ADD", "INPLACE_OR", "BINARY_INPLACE")


def _use_of(steps: List[Step], idx: int, namespace: Dict[str, Any]) -> Optional[str]:
    """Returns what happens to an object that is loaded; NOTHING if it is added to, None if it is read."""
    following = _op(steps, idx + 1)
    if following in ("LOAD_ATTR", "LOAD_METHOD"):
        method = steps[idx + 1].name
        if method in REMOVES:
            return EMPTIED
        return NOTHING if method in ADDS else None if method in READS else HANDED_ON
    if following in READING or following.startswith("POP_JUMP"):
        return None
    n_simple = next(n for n in range(4) if n == 3 or _op(steps, idx + 1 + n) not in SIMPLE)
    after = _op(steps, idx + 1 + n_simple)
    is_slice = after in ("BUILD_SLICE", "BINARY_SLICE", "STORE_SLICE") or n_simple == 1 and steps[idx + 1].name == "slice"
    if after == "BUILD_SLICE":
        after = _op(steps, idx + 2 + n_simple)
    if n_simple and after in ("DELETE_SUBSCR", "STORE_SLICE") or is_slice and after == "STORE_SUBSCR":
        return EMPTIED
    if n_simple and after == "STORE_SUBSCR":
        return NOTHING
    if n_simple and after in ("BINARY_SUBSCR", "BINARY_SLICE", "IS_OP"):
        return None
    return None if _is_read_by(steps, idx, namespace) else HANDED_ON


def _is_read_by(steps: List[Step], idx: int, namespace: Dict[str, Any]) -> bool:
    """Returns whether an object is the first argument of a function that removes nothing."""
    function = idx
    while function > 0 and steps[function].op == "LOAD_ATTR":
        function -= 1
    function -= 2 if function > 1 and steps[function - 1].op == "PUSH_NULL" else 1
    if function < 0 or not any("CALL" in step.op for step in steps[idx + 1 : idx + 1 + ARGUMENTS_MAX]):
        return False
    called = steps[function]
    if called.op in ("LOAD_GLOBAL", "LOAD_NAME"):
        return called.name in SAFE and not dict.__contains__(namespace, called.name)
    owner = steps[function - 1] if function and called.op in ("LOAD_ATTR", "LOAD_METHOD") else None
    if owner is None or owner.op not in ("LOAD_GLOBAL", "LOAD_NAME"):
        return False
    module = dict.get(namespace, owner.name)
    return type(module) is types.ModuleType and (module_dict(module) or {}).get("__name__") in SAFE_MODULES


def _reaches_any(steps: List[Step], idx: int, links: Tuple[Link, ...], of: Code) -> bool:
    """Returns whether an instruction is part of a call that may reach any variable or attribute."""
    step = steps[idx]
    if not step.op.startswith("LOAD_") or step.op == "LOAD_CONST":
        return False
    if links[-1].code is not None:
        return step.name in BY_CODE
    if step.name in INITIAL:
        return of.code.co_name not in INITIAL  # it may begin again
    if step.name not in BY_TEXT and step.name not in BY_ANY_NAME:
        return False
    place = idx + 2 if _op(steps, idx + 1) == "PUSH_NULL" else idx + 1
    first = steps[idx - 1] if step.name.startswith("__") else steps[min(place, len(steps) - 1)]
    is_of_other = of.class_ is not None and all(of.class_ not in link.classes for link in links)
    if is_of_other and first.name == of.receiver and step.name not in BY_CODE:
        return False  # it is of an object of another class
    while _op(steps, place + 1) == "LOAD_ATTR":
        place += 1
    second = steps[place + 1] if first.op in SIMPLE and place + 1 < len(steps) else step
    is_text = step.name in BY_TEXT and second.op == "LOAD_CONST" and second.argument < 0
    return not is_text or any(second.name == link.name for link in links)


def _op(steps: List[Step], idx: int) -> str:
    return steps[idx].op if idx < len(steps) else ""


LEFT_OUT = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "RESUME", "NOT_TAKEN", "KW_NAMES"))

INPLACE, SUBSCRIPT = (13, 20), 26
"""Arguments of BINARY_OP for `+=` and `|=`, and, from Python 3.14 on, for a subscript."""


def _alike(operation: str) -> str:
    """Returns the operation that is as another one."""
    if operation.startswith("LOAD_FAST"):
        return "LOAD_FAST"
    if operation.startswith("LOAD_") and operation.endswith("DEREF"):
        return "LOAD_DEREF"
    return {"LOAD_FROM_DICT_OR_GLOBALS": "LOAD_NAME", "LOAD_SMALL_INT": "LOAD_CONST"}.get(operation, operation)


def steps_of(code: types.CodeType) -> List[Step]:
    """Returns the instructions of a function."""
    names, version = code.co_names, sys.version_info
    locals_ = frames.local_names(code)
    cells = locals_ if version >= (3, 11) else [*code.co_cellvars, *code.co_freevars]
    shifts = {"LOAD_GLOBAL": version >= (3, 11), "LOAD_ATTR": version >= (3, 12), "LOAD_SUPER_ATTR": 2}
    found: List[Step] = []
    content, extended = code.co_code, 0
    for offset in range(0, len(content) - 1, 2):
        if offset % (2 * INSTRUCTIONS_PER_YIELD) == 0:
            time.sleep(0)
        operation, argument = opcode.opname[content[offset]], content[offset + 1] | extended
        extended = argument << 8 if operation == "EXTENDED_ARG" else 0
        if operation in LEFT_OUT:
            continue
        if operation.count("FAST") > 1:  # two in one, from Python 3.13 on
            for is_stored, idx in ((operation[0] == "S", argument >> 4), (operation.endswith("STORE_FAST"), argument & 15)):
                found.append(Step("STORE_FAST" if is_stored else "LOAD_FAST", _at(locals_, idx), offset, idx))
            continue
        alike, name = _alike(operation), ""
        kind = alike.partition("_")[2]
        if kind.endswith(("ATTR", "METHOD", "GLOBAL", "NAME")):
            name = _at(names, argument >> shifts.get(alike, 0))
            alike = "LOAD_ATTR" if kind == "SUPER_ATTR" else alike
        elif kind == "FAST":
            name = _at(locals_, argument)
        elif kind == "DEREF":
            name = _at(cells, argument)
        elif operation == "LOAD_CONST":
            constant = code.co_consts[argument]
            is_text = type(constant) is str
            name, argument = (constant if is_text else "slice" if type(constant) is slice else ""), -1 if is_text else argument
        elif operation == "BINARY_OP":
            alike = "BINARY_INPLACE" if argument in INPLACE else "BINARY_SUBSCR" if argument == SUBSCRIPT else alike
        found.append(Step(alike, name, offset, argument))
    return found


def _at(names: Any, idx: int) -> str:
    return plain(names[idx]) if idx < len(names) else ""


def _loops(steps: List[Step]) -> List[Tuple[int, int]]:
    """Returns the first and last offsets of a function's loops."""
    found = []
    scale = 2 if sys.version_info >= (3, 10) else 1
    for step in steps:
        if "BACKWARD" in step.op:
            found.append((step.offset + 2 - 2 * step.argument, step.offset))
        elif "JUMP" in step.op and sys.version_info < (3, 11) and "FORWARD" not in step.op and scale * step.argument <= step.offset:
            found.append((scale * step.argument, step.offset))
    return found


_ran: List[Tuple[types.CodeType, str]] = []
"""The code that ran on the training thread when the last search began, and its module: nothing else refers to that of a script once it has ended."""


def remember_running() -> None:
    """Remembers the code that runs on this thread."""
    ran, frame = [], sys._getframe(1)
    for _ in range(frames.FRAMES_MAX):
        if frame is None:
            break
        name = dict.get(frame.f_globals, "__name__")
        if type(name) is str and is_own(frame.f_code):
            ran.append((frame.f_code, name))
        frame = frame.f_back  # type: ignore[assignment]
    _ran[:] = ran


def codes() -> Iterator[Code]:
    """Yields the code of the program's modules, and of the functions that run, or ran when the last search began."""
    waiting: List[Tuple[Any, Code]] = [(code, Code(module_dict(sys.modules.get(name)) or {}, code)) for code, name in _ran]
    for frame in list(sys._current_frames().values()):
        for _ in range(frames.FRAMES_MAX):
            if frame is None:
                break
            waiting.append((frame.f_code, Code(frame.f_globals, frame.f_code)))
            frame = frame.f_back  # type: ignore[assignment]
    del frame
    nothing = codes.__code__
    for module in Modules().programs:
        namespace = module_dict(sys.modules.get(module)) or {}
        waiting += [(each, Code(namespace, nothing)) for each in islice(dict.values(namespace), ATTRIBUTES_MAX)]
        time.sleep(0)
    seen: Set[int] = set()
    while waiting:
        thing, of = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if type(thing) is types.CodeType:
            if is_own(thing):
                yield of._replace(code=thing)
            waiting += [(each, of) for each in thing.co_consts if type(each) is types.CodeType]
        else:
            waiting += _parts(thing, of)


def is_own(code: types.CodeType) -> bool:
    file = path(code.co_filename)
    return file is not None and not is_foreign(file) and not file.startswith((HERE, START)) and "-packages" not in file


def _parts(thing: Any, of: Code) -> List[Tuple[Any, Code]]:
    """Returns what may have code in an object."""
    type_ = type(thing)
    if type_ is types.FunctionType:
        cells = [cell for cell in thing.__closure__ or () if cell != types.CellType()]
        held = [*(cell.cell_contents for cell in cells), dict.get(thing.__dict__, "__wrapped__")]
        names = thing.__code__.co_varnames[:1] if thing.__code__.co_argcount else ()
        own = of._replace(namespace=thing.__globals__, receiver=plain(names[0]) if names and of.class_ is not None else "")
        return [(thing.__code__, own), *((each, of) for each in held if type(each) is types.FunctionType)]
    if type_ is types.MethodType:
        return [(thing.__func__, of)]
    if type_ is staticmethod or type_ is classmethod:
        return [(thing.__func__, of._replace(class_=None))]
    if type_ is property:
        return [(each, of) for each in (thing.fget, thing.fset, thing.fdel) if each is not None]
    if type.__subclasscheck__(type, type_):
        of = of._replace(class_=_class_key(thing))
        return [(each, of) for each in islice(_dict_of_type(thing).values(), ATTRIBUTES_MAX)]
    return []
