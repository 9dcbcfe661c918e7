"""Finds the program's line that fills a container which a library made: the one line that calls a method which adds to it.

Read from compiled code, by names alone, as what removes from a holder. Where several lines may be the one, none is told.
"""

from __future__ import annotations

import sys
import types
from typing import Any, Dict, List, Optional, Set, Tuple

from .heap import module_dict
from .names import CODE_BYTES_MAX, Attribute, Spot, _mro, functions_of, line_at, located, size_of_code, spot_of_code
from .removal import ADDS, CODES_MAX, INITIAL, INSTRUCTIONS_MAX, READS, REMOVES, Step, codes, is_own, steps_of
from .texts import plain

FILLS = ADDS | {"put", "put_nowait"}
"""Methods of containers and queues that add to them."""

CALLS_MAX = 2
"""Methods of one class between the one that the program calls and the one that adds, at most."""

KEY_MAX = 8
"""Instructions of the key at which an item is stored, at most."""


def filled(spot: Spot) -> Spot:
    """Returns the spot of the line that fills a library's container; the spot itself, with its line, where none is known."""
    found = None if spot.attribute is None else _filling(spot.attribute)
    return found or located(spot)


def _filling(attribute: Attribute) -> Optional[Spot]:
    class_: Any = (module_dict(sys.modules.get(attribute.module)) or {}).get(attribute.class_name)
    names = _methods(class_, attribute.name) if type.__subclasscheck__(type, type(class_)) else set()
    found: Dict[Tuple[str, Optional[int]], Spot] = {}
    n_instructions = 0
    for number, of in enumerate(codes()):
        code = of.code
        if number >= CODES_MAX or n_instructions > INSTRUCTIONS_MAX:
            return None
        if (names.isdisjoint(code.co_names) and attribute.name not in code.co_names) or size_of_code(code) > CODE_BYTES_MAX:
            continue
        steps = steps_of(code)
        n_instructions += len(steps)
        for idx, step in enumerate(steps):
            if _is_loaded(step, names) or _is_loaded(step, {attribute.name}) and _adds(steps, idx):
                spot = spot_of_code(code, line_at(code, step.offset))
                found[spot.file or "", spot.line] = spot
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
    if following and _is_loaded(following[0], FILLS):
        return len(following) > 1 and following[1].op != "LOAD_CONST"
    key = next((n for n, step in enumerate(following) if not step.op.startswith("LOAD_")), -1)
    return key > 0 and following[key].op == "STORE_SUBSCR"
