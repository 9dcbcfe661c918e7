"""Attributes of the program's objects, read without its code: no property, no `__getattribute__`, no metaclass and no comparison runs."""

from __future__ import annotations

import sys
from types import GetSetDescriptorType, ModuleType
from typing import Any, List, Optional

mro: Any = type.__dict__["__mro__"].__get__
dict_of_type: Any = type.__dict__["__dict__"].__get__
dict_of_module: Any = vars(ModuleType)["__dict__"].__get__
is_subclass: Any = type.__subclasscheck__


def imported_class(module: str, name: str) -> Optional[type]:
    """Returns a class of a module that the program has imported; None if there is none."""
    of = sys.modules.get(module)
    found = dict_of_module(of).get(name) if is_subclass(ModuleType, type(of)) else None
    return found if is_subclass(type, type(found)) else None


def attribute(thing: Any, wanted: str) -> Any:
    """Returns what an object's own dictionary has under a name; None if it has no such dictionary, or nothing there."""
    for base in mro(type(thing)):
        descriptor = dict_of_type(base).get("__dict__")
        if type(descriptor) is GetSetDescriptorType:
            return item(descriptor.__get__(thing), wanted)
    return None


def item(names: Any, wanted: str) -> Any:
    """Returns what a dictionary has under a name; None if it is none, or has nothing there."""
    if is_subclass(dict, type(names)):
        for name, value in dict.items(names):
            if type(name) is str and name == wanted:
                return value
    return None


def values(names: Any) -> List[Any]:
    """Returns the values of a dictionary; empty for another object."""
    return list(dict.values(names)) if is_subclass(dict, type(names)) else []


def first(items: Any) -> Any:
    """Returns the first item of a list; None if it is none, or empty."""
    return list.__getitem__(items, 0) if is_subclass(list, type(items)) and list.__len__(items) else None
