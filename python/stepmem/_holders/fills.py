"""Finds the program's line that fills a container: the one line that adds to it, or that calls a method of a library which does.

Read from compiled code, by names alone, as what removes from a holder. Where several lines may be the one, none is told.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .._signals import raise_if_of_handler
from .heap import module_dict
from .names import CODE_BYTES_MAX, Attribute, Spot, _mro, functions_of, line_at, located, size_of_code, spot_of_code
from .removal import (
    ADDS,
    CODES_MAX,
    INITIAL,
    INSTRUCTIONS_MAX,
    READS,
    REMOVES,
    Code,
    Link,
    Step,
    adds_in_place,
    certainty,
    codes,
    everywhere,
    is_own,
    steps_of,
)
from .texts import plain

FILLS = ADDS | {"put", "put_nowait"}
"""Methods of containers and queues that add to them."""

CALLS_MAX = 2
"""Methods of one class between the one that the program calls and the one that adds, at most."""

KEY_MAX = 8
KEY = ("LOAD_", "FORMAT_", "CONVERT_VALUE", "BUILD_STRING")
"""Instructions of the key at which an item is stored, at most, and how they begin: names, constants and texts made of them."""


def filled(spot: Spot, links: Tuple[Link, ...]) -> Spot:
    """Returns the spot of the line that fills a container; the spot itself, with its line, where none is known.

    `links`: the way to it, if all of that is the program's.
    """
    return _filling(spot, links) or located(spot)


def _filling(spot: Spot, links: Tuple[Link, ...]) -> Optional[Spot]:
    try:
        if spot.attribute is not None:
            return _filling_librarys(spot.attribute)
        return _filling_own(everywhere(links[-1])) if links else None
    except RuntimeError as error:  # a namespace changed while it was read
        raise_if_of_handler(error)
        return None


def _filling_librarys(attribute: Attribute) -> Optional[Spot]:
    class_: Any = (module_dict(sys.modules.get(attribute.module)) or {}).get(attribute.class_name)
    methods = _methods(class_, attribute.name) if type.__subclasscheck__(type, type(class_)) else set()
    names = {attribute.name, attribute.owner} - {""}

    def is_added(steps: List[Step], idx: int, of: Code) -> bool:
        return _is_loaded(steps[idx], methods) or steps[idx].op.startswith("LOAD") and steps[idx].name in names and _adds(steps, idx)

    return _only_line(methods | names, is_added)


def _filling_own(link: Link) -> Optional[Spot]:
    """Returns the line that adds to a variable or an attribute of the program."""

    def is_added(steps: List[Step], idx: int, of: Code) -> bool:
        operation = steps[idx].op
        if operation.startswith("LOAD"):
            place = _item(steps, idx + 1, link.keys)
            is_use = place is not None and _adds(steps, place - 1)
        else:
            is_use = operation.startswith("STORE") and not link.keys and adds_in_place(steps, idx)
        return is_use and certainty(steps, idx, link, of) is not None

    return _only_line({link.name, *(name for _, name in link.modules)}, is_added)


def _item(steps: List[Step], place: int, keys: Tuple[Optional[str], ...]) -> Optional[int]:
    """Returns the place after the instructions that load an item by its keys, which may be in variables; None if others are there."""
    for key in keys:
        first = steps[place : place + 1]
        is_call = bool(first) and first[0].op in ("LOAD_ATTR", "LOAD_METHOD") and first[0].name in ("get", "setdefault")
        place += is_call
        n = next((n for n, step in enumerate(steps[place : place + KEY_MAX]) if not step.op.startswith(KEY)), 0)
        constant = steps[place] if n and steps[place].op == "LOAD_CONST" and (n == 1 or is_call) else None
        if constant is not None and (constant.name if constant.argument < 0 else None) != key:
            return None
        place += n
        if is_call:
            n = next((n for n, step in enumerate(steps[place : place + KEY_MAX]) if "CALL" in step.op), KEY_MAX)
            while "CALL" in "".join(step.op for step in steps[place + n + 1 : place + n + 2]):
                n += 1
            place += n
        elif not n or steps[place : place + 1] == [] or steps[place].op != "BINARY_SUBSCR":
            return None
        place += 1
    return place if place < len(steps) else None


def _only_line(names: Set[str], is_added: Callable[[List[Step], int, Code], bool]) -> Optional[Spot]:
    """Returns the one line of code with some of these names that adds; if several do, the one that does not when an object is made."""
    found: Dict[Tuple[str, Optional[int]], Spot] = {}
    n_instructions = 0
    for number, of in enumerate(codes()):
        code = of.code
        if number >= CODES_MAX or n_instructions > INSTRUCTIONS_MAX:
            return None
        if all(map(names.isdisjoint, (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars))):
            continue
        if size_of_code(code) > CODE_BYTES_MAX:
            continue
        steps = steps_of(code)
        n_instructions += len(steps)
        for idx, step in enumerate(steps):
            if is_added(steps, idx, of):
                spot = spot_of_code(code, line_at(code, step.offset))
                found[spot.file or "", spot.line] = spot._replace(function=None) if spot.function == "<module>" else spot
    repeated = [spot for spot in found.values() if spot.function not in INITIAL]
    best = repeated or list(found.values())
    return best[0] if len(best) == 1 else None


def _methods(class_: type, attribute: str) -> Set[str]:
    """Returns the names of a library's methods that add to an attribute of their object, themselves or by others that they call."""
    of_name: Dict[str, types.CodeType] = {}
    for base in _mro(class_):
        for function in functions_of(base):
            if not is_own(function.__code__):  # the program's own are read as all of its code
                of_name.setdefault(plain(function.__code__.co_name), function.__code__)
    names = {name for name, code in of_name.items() if attribute in code.co_names and _adds_to(steps_of(code), attribute)}
    for _ in range(CALLS_MAX if names else 0):
        names |= {name for name, code in of_name.items() if not names.isdisjoint(_names_in(code))}
    return {name for name in names if not name.startswith("__")} - FILLS - REMOVES - READS


def _names_in(code: types.CodeType) -> Set[str]:
    """Returns the names that a function uses, with those in its comprehensions."""
    return {name for each in (code, *code.co_consts) if type(each) is types.CodeType for name in each.co_names}


def _adds_to(steps: List[Step], attribute: str) -> bool:
    """Returns whether a method adds to an attribute. One that passes over its items replaces or removes them."""
    uses = [idx for idx, step in enumerate(steps) if _is_loaded(step, {attribute})]
    others = {steps[idx + 1].name for idx in uses if idx + 1 < len(steps) and _is_loaded(steps[idx + 1], READS | REMOVES)}
    return not others and any(_adds(steps, idx) for idx in uses)


def _is_loaded(step: Step, names: "Set[str] | frozenset[str]") -> bool:
    return step.op in ("LOAD_ATTR", "LOAD_METHOD") and step.name in names


def _adds(steps: List[Step], idx: int) -> bool:
    """Returns whether an object that is loaded gets an item: not a constant, which is a sign to a queue's reader."""
    following = steps[idx + 1 : idx + 1 + KEY_MAX]
    if following and following[0].op in ("LOAD_ATTR", "LOAD_METHOD"):
        return following[0].name in FILLS and len(following) > 1 and following[1].op != "LOAD_CONST"
    key = next((n for n, step in enumerate(following) if not step.op.startswith(KEY)), -1)
    return key > 0 and following[key].op == "STORE_SUBSCR"
