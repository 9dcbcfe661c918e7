"""Finds the line of a source file that binds a name, by searching its bytes: one linear pass, whatever is in the file."""

from __future__ import annotations

import enum
import os
import stat
import time
from typing import NamedTuple, Optional

from .._descriptors import opened
from .._signals import raise_if_of_handler

SOURCE_BYTES_MAX = 4 << 20
"""Of a larger source file only this many bytes are searched."""

LINE_BYTES_MAX = 1024
"""Bytes of a line before and after a name that are looked at. A name further to the right is not found."""

PLACES_MAX = 20_000
"""Places with a name that are looked at, at most."""

PLACES_PER_YIELD = 256
"""Places after which the thread hands over the interpreter's lock."""

_TARGETS = frozenset(" \t\f_.*()[],")
"""Characters between the targets of an assignment, besides letters and digits."""


class Form(enum.Enum):
    """The statement that binds a name."""

    GLOBAL = 1
    ATTRIBUTE = 2
    """`….name = …`"""
    FIELD = 3
    """`name: type` in the body of a class."""
    CLASS_ATTRIBUTE = 4
    """`name = …` in the body of a class."""
    CLASS = 5


class Binding(NamedTuple):
    """What is searched for in a source file."""

    form: Form
    name: str
    class_name: str = ""
    """The class in whose body it is bound."""


def line_of(file: str, binding: Binding) -> Optional[int]:
    """Returns the line of a file that binds a name first; None if it is not found. Not for the training thread."""
    try:
        source = _source(file)
    except (OSError, ValueError) as error:
        raise_if_of_handler(error)
        return None
    begin = 0
    if binding.class_name:
        begin = max(0, _offset(source, Binding(Form.CLASS, binding.class_name), 0))
    offset = _offset(source, binding, begin)
    return source.count(b"\n", 0, offset) + 1 if offset >= 0 else None


def _source(file: str) -> bytes:
    """Returns the beginning of a regular file; empty of another one, which may never end."""
    with opened(file) as descriptor:
        return descriptor.read(SOURCE_BYTES_MAX) if stat.S_ISREG(os.fstat(descriptor.number).st_mode) else b""


def _offset(source: bytes, binding: Binding, begin: int) -> int:
    """Returns where a name is bound first; -1 if it is nowhere. Of a global, a place outside of any block comes first."""
    name = binding.name.encode("utf-8", "ignore")
    if not name:
        return -1
    indented = -1
    offset = begin
    for n_places in range(PLACES_MAX):
        offset = source.find(name, offset)
        if offset < 0:
            break
        if n_places % PLACES_PER_YIELD == PLACES_PER_YIELD - 1:
            time.sleep(0)
        end = offset + len(name)
        start = source.rfind(b"\n", max(0, offset - LINE_BYTES_MAX), offset) + 1
        if not start and offset > LINE_BYTES_MAX:
            offset = source.find(b"\n", offset)  # the rest of this line is further to the right
            if offset < 0:
                break
            continue
        if not (_is_part_of_name(source, offset - 1) or _is_part_of_name(source, end)):
            before = source[start:offset].decode("utf-8", "replace")
            after = source[end : end + LINE_BYTES_MAX].partition(b"\n")[0].decode("utf-8", "replace")
            if _binds(binding.form, before, after):
                if binding.form is not Form.GLOBAL or not before[:1].isspace():
                    return offset
                indented = offset if indented < 0 else indented
        offset = end
    return indented


def _is_part_of_name(source: bytes, offset: int) -> bool:
    """Returns whether the byte at an offset continues a name: a letter, a digit, `_`, or a part of another character."""
    byte = source[offset : offset + 1] if offset >= 0 else b""
    return byte.isalnum() or byte == b"_" or byte >= b"\x80"


def _binds(form: Form, before: str, after: str) -> bool:
    """Returns whether a line with these texts before and after a name binds it."""
    after = after.lstrip()
    if form is Form.CLASS:
        return before.strip() == "class"
    if form is Form.FIELD:
        return before.isspace() and after.startswith(":")
    is_assigned = _is_equals_sign(after) or (after.startswith(":") and _is_equals_sign(after[after.find("=") :]))
    if form is Form.ATTRIBUTE:
        return before.endswith(".") and is_assigned
    if form is Form.CLASS_ATTRIBUTE:
        return before.isspace() and is_assigned
    return _is_target(before, after, is_assigned)


def _is_equals_sign(text: str) -> bool:
    return text.startswith("=") and not text.startswith("==")


def _is_target(before: str, after: str, is_assigned: bool) -> bool:
    """Returns whether a name is among the targets of an assignment, also one of several."""
    before = before.strip()
    if is_assigned and not before:
        return True
    if not all(character.isalnum() or character in _TARGETS for character in before.replace("=", "")):
        return False
    if "==" in before or (before.count("(") > before.count(")") and not before.startswith("(")):
        return False  # a comparison, or an argument of a call
    if before and before[-1] not in ",(*=[":
        return False
    if is_assigned:
        return not after.startswith(":")
    targets, sign, rest = after.partition("=")
    is_list = targets[:1] in (",", ")", "]") and all(character.isalnum() or character in _TARGETS for character in targets)
    return bool(sign) and is_list and not rest.startswith("=")
