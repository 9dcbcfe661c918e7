"""Sizes of objects that hold memory without a tensor: arrays, bytes, texts, images, containers. Calls functions written in C only."""

from __future__ import annotations

import io
import sys
import types
from collections import deque
from itertools import islice
from typing import Any, Dict, NamedTuple, Tuple

from .._foreign import dict_of_type, imported_class, is_subclass
from .._isolation import library

_basic: Any = type.__dict__["__basicsize__"].__get__

BASES_MAX = 8
"""Views of views that are followed to the array that owns the memory."""

SHARED_REFERENCES = 16
"""A text or number with more references is shared, and belongs to none of them. A search has as many as twelve itself."""

_SIZES: Tuple[Tuple[type, Any], ...] = tuple(
    (each, each.__sizeof__)
    for each in (list, dict, set, frozenset, tuple, deque, str, bytes, bytearray, io.BytesIO, io.StringIO)
)

BUFFERS = (bytes, bytearray, io.BytesIO)
"""Types whose objects are measured by themselves, besides `array.array` and arrays of NumPy."""


IMAGE = ("PIL.Image", "Image")
"""Module and name of Pillow's class of images: its pixels belong to an object of C code whose size no function of Python's tells."""

IMAGE_ATTRIBUTES_MAX = 64
"""Attributes of an image that are read, at most."""


class Block(NamedTuple):
    """Memory behind an array."""

    owner: int
    """Identity of the object that owns it."""
    n_bytes: int
    """All of it."""
    n_own_bytes: int
    """The part of it that this array shows."""


class Sizes:
    """Sizes of objects. Exists for one slice."""

    def __init__(self) -> None:
        self.array: Any = None
        """The class of NumPy's arrays; None if the program has not imported NumPy."""
        self.array = imported_class("numpy", "ndarray")
        if self.array is not None:
            members = dict_of_type(self.array)
            self._n_bytes: Any = members["nbytes"].__get__
            self._base: Any = members["base"].__get__
            self._shape: Any = members["shape"].__get__
        # Those of the program: copies of the modules could have types of their own.
        plain: Any = getattr(library("array"), "array", bytes)
        self._buffers: Tuple[type, ...] = (*BUFFERS, plain)
        self._image = imported_class(*IMAGE)
        self._attributes: Any = None if self._image is None else dict_of_type(self._image).get("__dict__")
        self._mapping: Any = getattr(library("mmap"), "mmap", None)
        self._sizes: Dict[int, Any] = {id(plain): plain.__sizeof__}

    def is_buffer(self, type_: type) -> bool:
        """Returns whether objects of a type are arrays, bytes or their like."""
        if self.array is not None and is_subclass(self.array, type_):
            return True
        return any(type_ is each for each in self._buffers)  # by identity: a metaclass of the program may define equality

    def block(self, thing: Any) -> Block:
        """Returns the memory of an array or of bytes; none of a file that is mapped."""
        if self.array is None or not is_subclass(self.array, type(thing)):
            n_bytes = self.of(thing)
            return Block(id(thing), n_bytes, n_bytes)
        n_own: int = self._n_bytes(thing)
        for _ in range(BASES_MAX):
            base = self._base(thing)
            if base is None:
                return Block(id(thing), self._n_bytes(thing), n_own)
            if not is_subclass(self.array, type(base)):
                break
            thing = base
        return Block(id(base), 0, 0) if type(base) is self._mapping else Block(id(base), self._n_bytes(thing), n_own)

    def shape(self, thing: Any) -> Tuple[int, ...]:
        """Returns the shape of an array; nothing of bytes and their like."""
        if self.array is None or not is_subclass(self.array, type(thing)):
            return ()
        shape: Tuple[int, ...] = self._shape(thing)
        return shape

    def base(self, thing: Any) -> Any:
        """Returns the owner of an array's memory if that is no array itself, such as a tensor; else None."""
        if self.array is None or not is_subclass(self.array, type(thing)):
            return None
        for _ in range(BASES_MAX):
            thing = self._base(thing)
            if thing is None or not is_subclass(self.array, type(thing)):
                return thing
        return None

    def of(self, thing: Any) -> int:
        """Returns the bytes of an object itself, without what it refers to and without an array's memory."""
        size = self._sizes.get(id(type(thing)))
        if size is None:
            size = next((size for base, size in _SIZES if is_subclass(base, type(thing))), None) or _basic(type(thing))
            if type(self._attributes) is types.GetSetDescriptorType and is_subclass(self._image, type(thing)):
                size = self._of_image
            self._sizes[id(type(thing))] = size
        n_bytes: int = size if type(size) is int else size(thing)
        return n_bytes

    def of_leaf(self, thing: Any) -> int:
        """Returns the bytes of a text or number; 0 if others refer to it too, as to small integers and names."""
        return 0 if sys.getrefcount(thing) > SHARED_REFERENCES else self.of(thing)

    def _of_image(self, image: Any) -> int:
        """Returns the bytes of an image with its pixels, by its width, height and mode; only its own while these are not loaded."""
        held = {name: each for name, each in islice(dict.items(self._attributes.__get__(image)), IMAGE_ATTRIBUTES_MAX) if type(name) is str}
        n_bytes: int = _basic(type(image))
        size, mode = held.get("_size"), held.get("_mode", held.get("mode"))
        if held.get("_im", held.get("im")) is None or type(size) is not tuple or type(mode) is not str:
            return n_bytes
        if len(size) == 2 and all(type(each) is int for each in size):
            n_bytes += size[0] * size[1] * (1 if mode in ("1", "L", "P") else 2 if mode[:4] == "I;16" else 4)
        return n_bytes
