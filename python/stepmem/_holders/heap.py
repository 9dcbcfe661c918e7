"""Reads the program's objects without running its code: their kinds, their sizes and what they refer to.

Uses only `type()`, ids and functions written in C, called on the built-in type. An `isinstance`, attribute, property, length,
hash or comparison of an object of the program may run the program's code, so there is none.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import os
import sys
import time
import types
import weakref
from collections import deque
from heapq import heappop, heappush
from itertools import islice, repeat
from operator import is_not
from typing import Any, Dict, List, Set, Tuple

from .sizes import Sizes
from .texts import path, plain

LEAF, RECORD, LIST, DICT, SET, DEQUE, TUPLE, TENSOR, CLASS, CACHE, BUFFER, NATIVE = range(12)
"""Kinds of objects. Nothing is followed beneath a leaf or a buffer; a native is one of NATIVES; a record is an object that is none
of the others."""

SIZED = (LIST, DICT, SET, DEQUE, TUPLE, CACHE, NATIVE)

NATIVES = (("_elementtree", "Element", "__len__"), *((("_queue", "SimpleQueue", "qsize"),) if sys.version_info >= (3, 13) else ()))
"""Containers of the standard library that C code keeps: module, type, and the function that returns the number of items. Before Python 3.13,
a SimpleQueue has a list."""

ITEMS_MAX = 512
"""Items of a container up to which all are followed; with more, only some of the first and of the last ones."""

GAPS_ITEMS_MAX = 1 << 15
GAPS_ITEMS_MIN, GAPS_PLACES = 16, 8
"""A list of so many items may have been made for items to come; that shows at some of its places, which hold None."""

RESULTS_MAX = 1 << 14
"""An lru_cache with more results is not read."""

TABLE_BYTES_MAX = 64 << 20
"""A dictionary or set whose table is larger is not read: to find an item, C code may pass over all of the table."""

REFERENTS_MAX = 4096
"""Objects of a type of which one referred to more others are not followed again: nothing tells their number beforehand."""

TYPES_SHUT_MAX = 256
"""Such types that are remembered, at most."""

KEY_LENGTH_MIN = 256
"""A shorter text that is a key is a name, and is not measured."""

HEAD_ITEMS = 32
TAIL_ITEMS = 224

HAS_GC = 1 << 14
"""Flag of a type whose objects can refer to others."""

_flags: Any = type.__dict__["__flags__"].__get__
_name: Any = type.__dict__["__name__"].__get__
_module: Any = type.__dict__["__module__"].__get__
_mro: Any = type.__dict__["__mro__"].__get__
_dict_of_type: Any = type.__dict__["__dict__"].__get__
_is_subclass: Any = type.__subclasscheck__
_dict_of: Any = vars(types.ModuleType)["__dict__"].__get__
_Cache: Any = type(functools.lru_cache(maxsize=None)(len))
_cache_info: Any = _Cache.cache_info

_shut: Set[int] = set()
"""Ids of the types whose objects are not followed again."""

_BUILTINS = vars(builtins)

_kinds_of_static: Dict[int, int] = {}
"""Kinds of the types that C code defines as static ones, which exist as long as the process, by id."""

FINALIZERS: Any = vars(weakref.finalize).get("_registry")
"""The dictionary in which `weakref.finalize` keeps its callbacks."""

_LEAF_TYPES = (
    types.ModuleType,
    types.CodeType,
    types.BuiltinFunctionType,
    type(object.__init__),
    type(object().__str__),
    type(str.join),
    type(dict.__dict__["fromkeys"]),
    type(types.FunctionType.__code__),
    type(types.FunctionType.__globals__),
    types.GenericAlias,
    *((types.UnionType,) if sys.version_info >= (3, 10) else ()),
    weakref.ReferenceType,
    weakref.ProxyType,
    weakref.CallableProxyType,
)


HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
STANDARD = os.path.dirname(os.__file__) + os.sep
"""Directories of this package and of the standard library."""


@functools.lru_cache(maxsize=512)
def is_foreign(file: str) -> bool:
    """Returns whether a source file is one of the standard library or of PyTorch, in which no program is written."""
    if file.startswith(("<frozen", STANDARD)) and "-packages" not in file[len(STANDARD) :]:
        return True
    return f"-packages{os.sep}torch{os.sep}" in file


def raise_if_programs(error: BaseException) -> None:
    """Raises `error` again if code of the program raised it: that of a signal handler, which runs inside a slice too."""
    trace = error.__traceback__
    while trace is not None:
        file = path(trace.tb_frame.f_code.co_filename) or ""
        if not file.startswith((HERE, STANDARD, "<frozen")) or "-packages" in file[len(STANDARD) :] and not file.startswith(HERE):
            try:
                raise error
            finally:
                del error, trace  # its traceback has this frame now: a cycle would keep what the program has freed
        trace = trace.tb_next


def cache_size(cache: Any) -> int:
    """Returns the number of results in an lru_cache."""
    size: int = _cache_info(cache)[3]
    return size


def table_bytes(thing: Any, kind: int) -> int:
    """Returns the bytes of a dictionary's or a set's table, which stays as large as it was; 0 of another object."""
    if kind == DICT:
        return dict.__sizeof__(thing)
    if kind == SET:
        return set.__sizeof__(thing) if _is_subclass(set, type(thing)) else frozenset.__sizeof__(thing)
    return 0


def module_dict(module: Any) -> "Dict[str, Any] | None":
    """Returns the namespace of a module; None if this entry of `sys.modules` is not one."""
    return _dict_of(module) if _is_subclass(types.ModuleType, type(module)) else None


MODULES_PER_YIELD = 50
"""Modules after whose classification, a tenth of a millisecond, the thread hands over the interpreter's lock."""


def is_none(thing: Any) -> bool:
    """Returns whether an object is None, without a comparison of the program."""
    return thing is None


class Modules:
    """The modules of the program, and those of libraries."""

    def __init__(self, is_on_host: bool = True) -> None:
        """Classifies all modules. `is_on_host`: whether a search is about the host's memory, not a device's."""
        self.is_on_host = is_on_host
        self.programs: List[str] = []
        """Names of the program's modules in `sys.modules`, `__main__` first."""
        self.running: List[str] = []
        """Names of the libraries' modules whose code is on the stack."""
        self.libraries: List[str] = []
        """Names of other modules outside of the standard library and PyTorch."""
        self._programs: Set[str] = set()
        self._others: Set[str] = set()
        self._ids: Set[int] = set()
        names = [name for name in list(sys.modules) if type(name) is str]
        for idx, name in enumerate(names):
            if name.partition(".")[0] not in _NEVER:
                self._add(name)
            if idx % MODULES_PER_YIELD == 0:
                time.sleep(0)

    def _add(self, name: str) -> None:
        namespace = module_dict(sys.modules.get(name))
        if namespace is None:
            return
        file: Any = namespace.get("__file__")
        if name != "__main__" and (type(file) is not str or id(namespace) in self._ids):
            return
        self._ids.add(id(namespace))
        if name == "__main__":
            self.programs.insert(0, name)
            self._programs.add(name)
        elif "site-packages" in file or "dist-packages" in file:
            if name.partition(".")[0] not in _NEVER_OF_LIBRARIES:
                self.libraries.append(name)
                self._others.add(name)
        elif not file.startswith(STANDARD):
            self.programs.append(name)
            self._programs.add(name)

    def add_of_stack(self, name: Any) -> None:
        """Counts a library as the program's, since its code is on the stack."""
        if type(name) is str and name in self._others:
            self._others.discard(name)
            self._programs.add(name)
            self.libraries.remove(name)
            self.running.append(name)

    def is_programs(self, name: Any) -> bool:
        """Returns whether a class or function of the module `name` is the program's."""
        return type(name) is str and (name in self._programs or name == "__main__")


_OWN = __name__.partition(".")[0]
"""This package, which has another name where the program has a module `stepmem` of its own."""

_NEVER = frozenset((_OWN, *"torch torchgen functorch triton numpy scipy pandas sympy networkx mpmath nvidia".split()))
"""Packages in whose modules a program leaves no tensors, or that are too large to scan."""

_NEVER_OF_LIBRARIES = frozenset(("cuda", "typing_extensions", "_distutils_hack", "setuptools", "pkg_resources"))
"""The same, if they are installed: the program's own may have these names."""


_LEAF_MODULES = (f"{_OWN}.", "numpy", "_frozen_importlib", "importlib", "typing", "enum", "re.", "ctypes", "cuda.", "ast")
"""Beginnings of the names of modules whose objects hold no tensor."""


def _dispatch_of(type_: Any) -> Any:
    """Returns the `__torch_dispatch__` of a type, wherever it inherits it from; None if it has none."""
    for base in _mro(type_):
        names = _dict_of_type(base)
        if "__torch_dispatch__" in names:
            return names["__torch_dispatch__"]
    return None


def _sizes_of_natives() -> List[Tuple[Any, Any]]:
    """Returns the types of NATIVES that are imported, and the functions that return their sizes."""
    found = []
    for module, name, size in NATIVES:
        native = (module_dict(sys.modules.get(module)) or {}).get(name)
        if type(native) is type:
            found.append((native, _dict_of_type(native).get(size)))
    return [(native, size) for native, size in found if type(size) in (types.MethodDescriptorType, types.WrapperDescriptorType)]


class Heap:
    """Kinds of the types that one slice met, and PyTorch's functions. Exists for one slice."""

    def __init__(self, modules: Modules) -> None:
        self.sizes = Sizes()
        self._modules = modules
        self.kinds = dict(_kinds_of_static)
        """Kinds of the types that this slice met, by id."""
        torch = module_dict(sys.modules.get("torch")) or {}
        private: Any = torch.get("_C")
        private = private if type(private) is types.ModuleType else None
        tensor: Any = torch.get("Tensor")
        base: Any = getattr(private, "TensorBase", None) or getattr(private, "_TensorBase", None) or tensor
        self._tensor = base if _is_subclass(type, type(base)) else None
        self._dispatch = _dispatch_of(tensor) if _is_subclass(type, type(tensor)) else None
        """PyTorch's own `__torch_dispatch__`."""
        self._sizes_of_natives = _sizes_of_natives()
        self._storage: Any = getattr(base, "untyped_storage", None) or getattr(base, "_storage", None)
        self._grad_fn: Any = getattr(getattr(base, "grad_fn", None), "__get__", None)
        self._own_bytes: Any = getattr(getattr(base, "nbytes", None), "__get__", None)
        self._numel: Any = getattr(base, "numel", None)
        self._shape: Any = getattr(getattr(base, "shape", None), "__get__", None)
        self._is_cpu: Any = getattr(getattr(base, "is_cpu", None), "__get__", None)
        self._grad: Any = getattr(getattr(base, "grad", None), "__get__", None)
        optimizer = (module_dict(sys.modules.get("torch.optim")) or {}).get("Optimizer")
        self._optimizer = optimizer if _is_subclass(type, type(optimizer)) else None
        self.function: Any = getattr(private, "_FunctionBase", None)
        self._next_of_programs: Any = getattr(getattr(self.function, "next_functions", None), "__get__", None)
        self._number_of_programs: Any = getattr(self.function, "_sequence_nr", None)

    def kind(self, type_: type) -> int:
        """Returns the kind of a type's objects."""
        known = self.kinds.get(id(type_))
        if known is None:
            known = self.kinds[id(type_)] = self._classify(type_)
            if not _flags(type_) & HEAP_TYPE and id(type_) not in _shut:
                _kinds_of_static[id(type_)] = known
        return known

    def _classify(self, type_: type) -> int:
        if self.sizes.is_buffer(type_):
            return BUFFER
        if not _flags(type_) & HAS_GC:
            return LEAF
        if self._tensor is not None and _is_subclass(self._tensor, type_):
            # One that is a wrapper answers by code of its own, and is followed to the tensors inside.
            return TENSOR if _dispatch_of(type_) is self._dispatch else RECORD
        if _is_subclass(type, type_):
            return CLASS
        if type_ is _Cache:
            return CACHE
        for base, kind in ((list, LIST), (dict, DICT), (set, SET), (frozenset, SET), (deque, DEQUE), (tuple, TUPLE)):
            if _is_subclass(base, type_):
                return kind
        if any(_is_subclass(leaf, type_) for leaf in _LEAF_TYPES) or id(type_) in _shut:
            return LEAF
        if any(_is_subclass(native, type_) for native, _ in self._sizes_of_natives):
            return NATIVE
        module = _module(type_)
        return LEAF if type(module) is str and module.startswith(_LEAF_MODULES) else RECORD

    def is_tensor(self, type_: type) -> bool:
        """Returns whether objects of a type are tensors, wrappers among them: faster than its kind."""
        return self._tensor is not None and _is_subclass(self._tensor, type_) is True

    def is_programs_class(self, class_: Any) -> bool:
        """Returns whether a class is the program's own, or one of a library's in which programs leave objects."""
        return class_ is weakref.finalize or self._modules.is_programs(_module(class_))

    def is_optimizer(self, type_: type) -> bool:
        """Returns whether objects of a type are optimizers of PyTorch."""
        return self._optimizer is not None and _is_subclass(self._optimizer, type_) is True

    def name(self, type_: type) -> str:
        """Returns the name of a type."""
        return plain(_name(type_), "object")

    def module(self, type_: type) -> str:
        """Returns the module of a type; empty if it has none."""
        module = _module(type_)
        return module if type(module) is str else ""

    def size(self, thing: Any, kind: int) -> int:
        """Returns the number of items of a container."""
        if kind == LIST:
            return list.__len__(thing)
        if kind == DICT:
            return dict.__len__(thing)
        if kind == SET:
            return set.__len__(thing) if _is_subclass(set, type(thing)) else frozenset.__len__(thing)
        if kind == DEQUE:
            return deque.__len__(thing)
        if kind == TUPLE:
            return tuple.__len__(thing)
        if kind == NATIVE:
            n_items: int = next(size for native, size in self._sizes_of_natives if _is_subclass(native, type(thing)))(thing)
            return n_items
        return cache_size(thing)

    def has_gaps(self, thing: Any, size: int) -> bool:
        """Returns whether a list shows places for items to come."""
        if not GAPS_ITEMS_MIN <= size <= GAPS_ITEMS_MAX:
            return False
        return any(map(is_none, list.__getitem__(thing, slice(size - 1, None, -(size // GAPS_PLACES)))))

    def n_filled(self, thing: Any) -> int:
        """Returns the number of items of a list that are not None; of a list that has become long, of all items."""
        if list.__len__(thing) > GAPS_ITEMS_MAX:
            return list.__len__(thing)
        return sum(map(is_not, list.__iter__(thing), repeat(None)))

    def filled(self, thing: Any) -> List[Any]:
        """Returns the items of a list that are not None, GAPS_ITEMS_MAX at most."""
        return [each for each in islice(list.__iter__(thing), GAPS_ITEMS_MAX) if each is not None]

    def length(self, thing: Any) -> int:
        """Returns the number of items of a list or tuple, and the first dimension of a tensor or array; 0 of another object."""
        kind = self.kind(type(thing))
        if kind in (LIST, TUPLE):
            return self.size(thing, kind)
        try:
            shape: Any = self._shape(thing) if kind == TENSOR else self.sizes.shape(thing) if kind == BUFFER else ()
            n_items: int = tuple.__getitem__(shape, 0) if tuple.__len__(shape) else 0
            return n_items
        except Exception as error:
            raise_if_programs(error)
            return 0

    def n_elements(self, tensor: Any) -> int:
        """Returns the number of elements of a tensor; 0 if it is unknown."""
        try:
            n_elements: int = self._numel(tensor)
            return n_elements
        except Exception as error:
            raise_if_programs(error)
            return 0

    def is_on_host(self, tensor: Any) -> bool:
        """Returns whether a tensor is in the host's memory, as far as that is known."""
        try:
            return self._is_cpu(tensor) is True
        except Exception as error:
            raise_if_programs(error)
            return False

    def is_elsewhere(self, tensor: Any) -> bool:
        """Returns whether a tensor is in other memory than what is searched, and keeps no graph, as far as that is known."""
        try:
            return self._is_cpu(tensor) is (not self._modules.is_on_host) and self._grad_fn(tensor) is None
        except Exception as error:
            raise_if_programs(error)
            return False

    def cache_max(self, cache: Any) -> Any:
        """Returns the most results that an lru_cache keeps; None if it keeps all."""
        return _cache_info(cache)[2]

    def results(self, cache: Any) -> List[Any]:
        """Returns the keys and results of an lru_cache with a bound in pairs, the oldest first; none of a large one.

        Without a bound, its results are in a dictionary.
        """
        n_items = self.size(cache, CACHE)
        if self.cache_max(cache) is None or n_items > RESULTS_MAX:
            return []
        # From Python 3.10 on, it refers to the type of each of its items, too.
        found = [each for each in gc.get_referents(cache) if self.kind(type(each)) != CLASS]
        return list(zip(found[: 2 * n_items : 2], found[1 : 2 * n_items : 2]))

    def children(self, thing: Any, kind: int, size: int) -> List[Any]:
        """Returns what an object refers to; of a large container the first and the last items."""
        if table_bytes(thing, kind) > TABLE_BYTES_MAX:
            return []
        if size <= ITEMS_MAX:
            found = gc.get_referents(thing)
            if type(thing) is types.FunctionType:  # not the namespaces that it uses
                return [each for each in found if each is not thing.__globals__ and each is not _BUILTINS]
            if kind == RECORD and len(found) > REFERENTS_MAX and len(_shut) < TYPES_SHUT_MAX:
                _shut.add(id(type(thing)))
                _kinds_of_static.pop(id(type(thing)), None)
            return found
        return self.first(thing, kind, HEAD_ITEMS) + self.last(thing, kind, TAIL_ITEMS)

    def first(self, thing: Any, kind: int, n: int) -> List[Any]:
        """Returns the first items of a container, or any of a set; none of one with a large table."""
        if table_bytes(thing, kind) > TABLE_BYTES_MAX:
            return []
        if kind == LIST:
            return list.__getitem__(thing, slice(0, n))
        if kind == DICT:
            return list(islice(dict.values(thing), n))
        if kind == DEQUE:
            return list(islice(deque.__iter__(thing), n))
        if kind == TUPLE:
            return list(tuple.__getitem__(thing, slice(0, n)))
        if kind == SET:
            base = set if _is_subclass(set, type(thing)) else frozenset
            return list(islice(base.__iter__(thing), n))
        return []

    def last(self, thing: Any, kind: int, n: int) -> List[Any]:
        """Returns the last items of a container, the newest first where it keeps an order; of a dictionary also its keys.

        Returns none of one with a large table.
        """
        if table_bytes(thing, kind) > TABLE_BYTES_MAX:
            return []
        if kind == LIST:
            return list.__getitem__(thing, slice(-1, -n - 1, -1))
        if kind == DICT:
            found: List[Any] = []
            for key, value in islice(reversed(dict.items(thing)), n):
                found.append(value)
                if type(key) is not str or len(key) >= KEY_LENGTH_MIN:
                    found.append(key)
            return found
        if kind == DEQUE:
            return list(islice(deque.__reversed__(thing), n))
        if kind == TUPLE:
            return list(tuple.__getitem__(thing, slice(-1, -n - 1, -1)))
        if kind == SET:
            return self.first(thing, kind, 4 * n)
        if kind == CACHE or (kind == NATIVE and self.size(thing, kind) > ITEMS_MAX):
            return []
        found = gc.get_referents(thing)
        return found[: -n - 1 : -1]

    def storage(self, tensor: Any) -> Tuple[int, int]:
        """Returns the identity of a tensor's storage, 0 if it has none, and its bytes."""
        try:
            storage = self._storage(tensor)
            n_bytes = storage.nbytes()
            return (storage._cdata, n_bytes) if type(n_bytes) is int else (0, 0)
        except Exception as error:  # a sparse tensor has none
            raise_if_programs(error)
            return 0, 0

    def own_bytes(self, tensor: Any) -> int:
        """Returns the bytes that a tensor shows of its storage."""
        try:
            n_bytes = self._own_bytes(tensor)
            return n_bytes if type(n_bytes) is int else 0
        except Exception as error:
            raise_if_programs(error)
            return 0

    def graph_root(self, tensor: Any) -> Any:
        """Returns the node of the autograd graph that made a tensor, or None."""
        try:
            return self._grad_fn(tensor)
        except Exception as error:
            raise_if_programs(error)
            return None

    def gradient(self, tensor: Any) -> Any:
        """Returns the gradient of a tensor that no function made, if it has one: of another one, reading it may warn."""
        try:
            return self._grad(tensor) if self._grad_fn(tensor) is None else None
        except Exception as error:
            raise_if_programs(error)
            return None

    def is_cycle(self, tensor: Any) -> bool:
        """Returns whether a tensor belongs to a cycle of its autograd graph.

        Its gradient has a graph, which leads back to it, or the function that made it keeps it as an attribute.
        """
        try:
            made_by = self._grad_fn(tensor)
            if made_by is None:  # of another tensor, reading the gradient may warn
                gradient = self._grad(tensor)
                return gradient is not None and self._grad_fn(gradient) is not None
        except Exception as error:
            raise_if_programs(error)
            return False
        if self.function is None or not _is_subclass(self.function, type(made_by)):
            return False
        held = gc.get_referents(made_by)
        held += [each for one in held if type(one) is dict and len(one) <= ITEMS_MAX for each in dict.values(one)]
        return any(each is tensor for each in held)

    def number(self, node: Any) -> int:
        """Returns the time at which a node of a graph was made, as a number that rises; -1 if it is unknown."""
        try:
            if not _flags(type(node)) & HEAP_TYPE:
                made: int = node._sequence_nr()
            else:
                made = self._number_of_programs(node)
            return made if made < LEAF_NUMBER else -1
        except Exception as error:
            raise_if_programs(error)
            return -1

    def oldest(self, root: Any, target: int, n_hops_max: int) -> Tuple[int, int]:
        """Follows a graph, the oldest nodes first.

        Returns the number of the oldest node that was met, and how many nodes were followed; it stops at one that is not
        newer than `target`, and after `n_hops_max` nodes.
        """
        waiting: List[Tuple[int, int, Any]] = [(self.number(root), 0, root)]
        oldest, n_hops = waiting[0][0], 0
        seen = {oldest}
        while waiting and oldest > target and n_hops < n_hops_max:
            node = heappop(waiting)[2]
            n_hops += 1
            for each in self._following(node):
                made = self.number(each)
                if made >= 0 and made not in seen:
                    seen.add(made)
                    heappush(waiting, (made, n_hops, each))
                    oldest = min(oldest, made)
        return oldest, n_hops

    def _following(self, node: Any) -> List[Any]:
        """Returns the nodes that a node of a graph refers to."""
        try:
            is_programs = _flags(type(node)) & HEAP_TYPE
            following = self._next_of_programs(node) if is_programs else node.next_functions
            return [each for each, _ in following if each is not None]
        except Exception as error:
            raise_if_programs(error)
            return []


def without_overrides() -> Any:
    """Returns a context in which no function is called that the program substitutes for one of PyTorch."""
    private: Any = (module_dict(sys.modules.get("torch")) or {}).get("_C")
    disable = getattr(private, "DisableTorchFunction", None) if type(private) is types.ModuleType else None
    return contextlib.nullcontext() if disable is None else disable()


def is_profiling() -> bool:
    """Returns whether PyTorch's profiler is on."""
    try:
        private: Any = (module_dict(sys.modules.get("torch")) or {}).get("_C")
        return type(private) is types.ModuleType and private._autograd._profiler_enabled() is True
    except Exception as error:
        raise_if_programs(error)
        return False


HEAP_TYPE = 1 << 9
"""Flag of a type that Python code made."""

LEAF_NUMBER = 1 << 62
"""Nodes that collect gradients have higher numbers."""
