"""Names a place: from the objects that lead to it to a phrase for people, its file and its line. Names and types only."""

from __future__ import annotations

import contextvars
import functools
import gc
import opcode
import sys
import types
from collections import OrderedDict
from itertools import islice
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import frames, source
from .heap import CACHE, CLASS, DICT, HEAP_TYPE, RESULTS_MAX, SIZED, STANDARD, TENSOR, cache_size, is_foreign, module_dict
from .places import FRAME, Key
from .source import Binding, Form
from .texts import path, plain

_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)

_C_MODULES = ("builtins", "functools")
"""Modules of classes written in C whose attributes are known to be a plain dictionary."""

CONTAINERS = "torch.nn.modules.container"
"""The module of ParameterList, ModuleList and their like."""

ATTRIBUTES_MAX = 4096
"""Attributes of an object, and names in a namespace, that are read, at most."""

CODE_BYTES_MAX = 1 << 15
"""In a larger piece of compiled code no line is searched for."""

KINDS = {DICT: "dict", TENSOR: "tensor", CLASS: "class", CACHE: "lru_cache"}

_name_of: Any = type.__dict__["__name__"].__get__
_mro: Any = type.__dict__["__mro__"].__get__
_dict_of_type: Any = type.__dict__["__dict__"].__get__
_flags: Any = type.__dict__["__flags__"].__get__
_module_of: Any = type.__dict__["__module__"].__get__


class Attribute(NamedTuple):
    """An attribute that a library's code made, and its owner's class."""

    module: str
    class_name: str
    name: str
    owner: str = ""
    """The program's attribute or variable that has that object; empty of an item."""


class Spot(NamedTuple):
    """Place in the source where a name is bound, before its line is known."""

    file: Optional[str]
    function: Optional[str]
    line: Optional[int]
    binding: Optional[Binding] = None
    """What binds the name, to search the file for it where the line is unknown."""
    attribute: Optional[Attribute] = None
    """What a library made there, to search the program for the line that fills it."""
    before: Any = None
    """The spot of its owner, for where that finds nothing."""


NOWHERE = Spot(None, None, None)


def spot_of_code(code: types.CodeType, line: Optional[int] = None) -> Spot:
    """Returns a line of some code, or its first one."""
    return Spot(path(code.co_filename), plain(code.co_name, "") or None, code.co_firstlineno if line is None else line)


class Name(NamedTuple):
    """Name of a holder."""

    text: str
    """With code in backticks."""
    kind: str
    spot: Spot


def _is_own(spot: Spot) -> bool:
    return spot.file is not None and not is_foreign(spot.file)


def type_name(thing: Any) -> str:
    """Returns the name of an object's type."""
    return plain(_name_of(type(thing)), "object")


def name_place(key: Key, chain: List[Tuple[Any, int]], is_replaced: bool = False) -> Name:
    """Names the last object of a chain that begins at a root. `is_replaced`: whether it is another one with each step."""
    text, spot = "", NOWHERE
    kind = _kind(*chain[-1])
    around: Any = None
    holder: Any = None
    is_suspended = False
    own = NOWHERE
    replaced = chain[-1][0] if is_replaced else None
    for (parent, parent_kind), (child, child_kind) in zip(chain, chain[1:]):
        own = spot if _is_own(spot) else own
        type_ = type(parent)
        if parent_kind == FRAME:
            text, spot = _local(parent, child)
        elif parent is chain[0][0] and key[0] == "module":
            text, spot = _global(plain(key[1]), parent, child)
        elif parent is chain[0][0] and key[0] == "handlers":
            text = f"a `{type_name(child)}` of `logging`"
        elif type_ is contextvars.Context:
            text, spot = _of_context(parent, chain)
        elif type_ is types.FunctionType:
            around = parent
            part = _of_function(parent, child)
            if part:
                text, spot = part, _spot_of_function(parent)
        elif type_ is types.CellType or (type_ is tuple and type(child) is types.CellType):
            if type(child) is types.CellType and type(around) is types.FunctionType:
                text = f"a closure cell of `{plain(around.__name__)}`"
                spot = _spot_of_function(around)
                kind = "closure cell"
        elif type_ is types.MethodType:
            text = f"the object of a bound method of `{type_name(child)}`" if child is not parent.__func__ else text
        elif type_ is functools.partial:
            text = f"an argument of a partial of `{_function_name(parent.func)}`"
        elif type_ is types.FrameType and is_suspended:  # before Python 3.11, a generator refers to its frame
            text, spot = _local(parent, child)
        elif type_ is types.TracebackType or type_ is types.FrameType:
            text, kind = "the traceback of a kept exception", "traceback"
        elif _is_any(type_, _SUSPENDED):
            is_suspended = True
            text, spot = _of_suspended(parent, child)
        elif parent_kind == CACHE:
            text, spot = _cache(parent)
        elif parent_kind in (SIZED if parent_kind != DICT else ()):
            text = _item(text)
        elif parent_kind == TENSOR:
            text = f"the hooks of `{text}`" if type(child) is OrderedDict else text
        elif parent_kind == DICT:
            owner = owner_of_dict(chain, parent)
            if owner is None:
                text, spot = _submodule(holder, parent, child, text, spot)
            else:
                holder = owner
                text, spot = _attribute(owner, parent, child, text, spot, child is replaced)
        elif parent_kind == CLASS:
            if child_kind != DICT:
                text = _item(text)
        elif not _is_dict_of(parent, child, child_kind):
            holder = parent
            text, spot = _attribute(parent, namespace_of(parent), child, text, spot, child is replaced)
    last, last_kind = chain[-1]
    if text.startswith("the hooks of") or spot.attribute is not None and spot.attribute.name.endswith("_hooks"):
        kind = "hooks"
    if not _is_own(spot):
        spot = own._replace(attribute=spot.attribute)  # the program's line, not one of PyTorch or of the standard library
    if type.__subclasscheck__(BaseException, type(last)):
        return Name(f"the traceback of a kept exception in `{text}`", "traceback", spot)
    if len(chain) == 1:
        return Name(f"the globals of `{plain(key[1])}`" if key[0] == "module" else "a root", kind, NOWHERE)
    if last_kind == CACHE:
        text, spot = _cache(last)
    if last_kind == DICT and len(chain) > 1 and owner_of_dict(chain, last) is not None:
        text = f"attributes of `{type_name(owner_of_dict(chain, last))}`"
    return Name(text if text.startswith(("a ", "an ", "the ", "attributes ")) else f"`{text}`", kind, spot)


def _kind(thing: Any, kind: int) -> str:
    return KINDS.get(kind) or type_name(thing)


def _is_any(type_: type, types_: Tuple[type, ...]) -> bool:
    """Returns whether a type is one of several, by identity: a metaclass of the program may define equality."""
    return any(type_ is each for each in types_)


def _module_name(class_: Any) -> str:
    """Returns the name of a class's module; empty if it is no text."""
    module = _module_of(class_)
    return module if type(module) is str else ""


def _file_of_class(class_: Any) -> Optional[str]:
    return _file(sys.modules.get(_module_name(class_)))


def _item(text: str) -> str:
    return text if text.endswith("[…]") or text.startswith(("a ", "an ", "the ")) else text + "[…]"


def owner_of_dict(chain: List[Tuple[Any, int]], namespace: Any) -> Any:
    """Returns the object whose attributes a dictionary holds, if it is the one before it in the chain."""
    for (parent, parent_kind), (child, child_kind) in zip(chain, chain[1:]):
        if child is namespace:
            if parent_kind in (FRAME, *SIZED) or _is_any(type(parent), (types.CellType, types.FrameType)):
                return None
            return parent if parent_kind == CLASS or _is_dict_of(parent, child, child_kind) else None
    return None


def namespace_of(thing: Any) -> Dict[Any, Any]:
    """Returns the dictionary of an object's attributes; empty if it has none."""
    for base in _mro(type(thing)):
        descriptor = _dict_of_type(base).get("__dict__")
        if base is types.SimpleNamespace:
            found = descriptor.__get__(thing)
            return found if type(found) is dict else {}
        if type(descriptor) is types.GetSetDescriptorType and (_flags(base) & HEAP_TYPE or _module_name(base) in _C_MODULES):
            found = descriptor.__get__(thing)
            return found if type(found) is dict else {}
    return {}


def attributes(thing: Any) -> Dict[str, Any]:
    """Returns the attributes of an object by name."""
    return {name: value for name, value in _items(namespace_of(thing)) if type(name) is str}


def is_indexed(class_: type) -> bool:
    """Returns whether the objects of a class of the program are indexed, as datasets are."""
    return any("__getitem__" in names for names in map(_names, _mro(class_)))


def _items(namespace: Any) -> List[Tuple[Any, Any]]:
    """Returns the items of a dictionary, ATTRIBUTES_MAX at most."""
    return list(islice(dict.items(namespace), ATTRIBUTES_MAX))


def _names(class_: Any) -> List[str]:
    return [name for name in islice(_dict_of_type(class_), ATTRIBUTES_MAX) if type(name) is str]


def _is_dict_of(parent: Any, child: Any, child_kind: int) -> bool:
    return child_kind == DICT and type(child) is dict and namespace_of(parent) is child


def _key(namespace: Any, child: Any) -> Optional[str]:
    for key, value in _items(namespace):
        if value is child and type(key) is str:
            return plain(key)
    return None


def _attribute(owner: Any, namespace: Any, child: Any, text: str, spot: Spot, is_replaced: bool) -> Tuple[str, Spot]:
    """Names an attribute of an instance or a class."""
    name = _key(namespace, child)
    is_class = type.__subclasscheck__(type, type(owner))
    if name is None and not is_class:
        name = _slot(owner, child)
    if type(owner) is types.FunctionType:
        return (f"{plain(owner.__name__)}.{name}", _spot_of_function(owner)) if name else (text, spot)
    class_ = owner if is_class else type(owner)
    if class_ is types.SimpleNamespace and name and text and text[0].isidentifier():
        return f"{text}.{name}", spot  # the names of a namespace are the program's
    # Of a library's container of modules or parameters, the program's attribute says more than where that keeps its items.
    is_container = not is_class and _module_name(class_) == CONTAINERS and name in ("_parameters", "_modules", "_buffers")
    if name is None:
        return _item(text), spot
    class_name = plain(_name_of(class_))
    if is_class:
        return f"{class_name}.{name}", Spot(_file_of_class(class_), None, None, Binding(Form.CLASS_ATTRIBUTE, name, class_name))
    librarys = next(filter(_is_librarys, _mro(class_)))
    made = Attribute(_module_name(librarys), plain(_name_of(librarys)), name)
    if text and (is_container or _is_standard(class_)):
        owner = text.rpartition(".")[2]
        return _item(text), spot._replace(attribute=made._replace(owner=owner if owner.isidentifier() else ""))
    stored = _where_stored(class_, name, is_replaced)
    if stored.line is None:
        stored = stored._replace(attribute=made, before=spot) if stored.file else spot._replace(attribute=made)
    is_part = "." in text or text.endswith("]")  # of PyTorch's objects, the program's path to one says more than its class
    of_library = text if is_part and is_foreign(_file_of_class(class_) or "") else class_name
    return f"{of_library}.{name}", stored


def _submodule(holder: Any, namespace: Any, child: Any, text: str, spot: Spot) -> Tuple[str, Spot]:
    """Names an item of a dictionary. PyTorch keeps the attributes of a module that are modules themselves in `_modules`."""
    if text.endswith("._modules") and _module_name(type(holder)) != CONTAINERS:
        name = _key(namespace, child)
        if name is not None and name.isidentifier():
            stored = _where_stored(type(holder), name)
            return text[: -len("_modules")] + name, stored if stored.file else spot
    return _item(text), spot


def _is_standard(class_: Any) -> bool:
    """Returns whether a class is one of the standard library or written in C."""
    module = _module_name(class_)
    if module in ("", "__main__"):
        return not module
    file = _file_of_class(class_)
    return module in sys.builtin_module_names or file is None or file.startswith(STANDARD) and "-packages" not in file


def _is_librarys(class_: Any) -> bool:
    """Returns whether a class is a library's, as `object` is."""
    file = _file_of_class(class_)
    return file is None or file.startswith(STANDARD) or "-packages" in file


def _slot(owner: Any, child: Any) -> Optional[str]:
    for base in _mro(type(owner)):
        for name, descriptor in islice(_dict_of_type(base).items(), ATTRIBUTES_MAX):
            if type(descriptor) is types.MemberDescriptorType and type(name) is str:
                try:
                    if descriptor.__get__(owner) is child:
                        return plain(name)
                except AttributeError:
                    pass
    return None


def _where_stored(class_: Any, name: str, is_replaced: bool = False) -> Spot:
    """Returns the first line of a program's class that stores an attribute; nothing for a library's.

    Of an attribute that is replaced, that is not the line of `__init__` if there is another one.
    """
    found = NOWHERE
    for base in _mro(class_):
        if _is_librarys(base):
            continue
        file = _file_of_class(base)
        functions = functions_of(base)
        if is_replaced:
            functions.sort(key=_is_init)
        for function in functions:
            code = function.__code__
            line = None if code.co_filename[:1] == "<" else _line_of_store(code, "STORE_ATTR", _index(code.co_names, name))
            if line is not None:
                return spot_of_code(code, line)
        if found.file is None:
            form = Form.FIELD if _is_declared(base, name) else Form.ATTRIBUTE
            found = Spot(file, None, None, Binding(form, name, plain(_name_of(base)) if form is Form.FIELD else ""))
    return found


def _is_declared(class_: Any, name: str) -> bool:
    """Returns whether a class has an annotation of this name, as a dataclass has for its fields."""
    found = _dict_of_type(class_).get("__annotations__")
    return type(found) is dict and any(type(each) is str and each == name for each, _ in _items(found))


def spot_of_class(module: str, name: str) -> Spot:
    """Returns where a class is defined."""
    file = _file(sys.modules.get(module))
    return Spot(file, None, None, Binding(Form.CLASS, name)) if file else NOWHERE


def functions_of(class_: Any) -> List[types.FunctionType]:
    found: List[types.FunctionType] = []
    for value in islice(_dict_of_type(class_).values(), ATTRIBUTES_MAX):
        if type(value) is types.FunctionType and path(value.__code__.co_filename) is not None:
            found.append(value)
    return sorted(found, key=_is_init, reverse=True)


def _is_init(function: types.FunctionType) -> bool:
    return plain(function.__code__.co_name) == "__init__"


def _line_of_store(code: types.CodeType, operation: str, idx: int) -> Optional[int]:
    """Returns the first line of some code with this operation on the variable or name `idx`. Searches bytes: it is fast."""
    if idx < 0 or size_of_code(code) > CODE_BYTES_MAX:
        return None
    operations = opcode.opmap
    wanted = [_instruction(operations[operation], idx)]
    if operation == "STORE_FAST" and idx < 16:  # Python 3.13 joins two operations
        for joined, is_first in (("STORE_FAST_LOAD_FAST", True), ("STORE_FAST_STORE_FAST", True), ("STORE_FAST_STORE_FAST", False)):
            if joined in operations:
                pairs = [idx << 4 | other if is_first else other << 4 | idx for other in range(16)]
                wanted += [_instruction(operations[joined], pair) for pair in pairs]
    instructions = code.co_code
    offsets = [offset for offset in (_offset(instructions, each) for each in wanted) if offset >= 0]
    return line_at(code, min(offsets)) if offsets else None


def size_of_code(code: types.CodeType) -> int:
    """Returns about how many bytes the instructions take. From Python 3.11 on, `co_code` would copy them."""
    return types.CodeType.__sizeof__(code) if sys.version_info >= (3, 11) else len(code.co_code)


def _instruction(operation: int, argument: int) -> bytes:
    return bytes((operation, argument & 0xFF))


def _offset(code: bytes, instruction: bytes) -> int:
    """Returns where an instruction begins; -1 if it is not there."""
    offset = code.find(instruction)
    while offset >= 0 and offset % 2:
        offset = code.find(instruction, offset + 1)
    return offset


def line_at(code: types.CodeType, offset: int) -> Optional[int]:
    """Returns the line of an instruction."""
    if sys.version_info >= (3, 10):
        return next((line for begin, end, line in code.co_lines() if begin <= offset < end), None)
    line, begin, table = code.co_firstlineno, 0, code.co_lnotab
    for n_bytes, n_lines in zip(table[::2], table[1::2]):
        begin += n_bytes
        if begin > offset:
            break
        line += n_lines - (n_lines & 0x80) * 2
    return line


def _index(names: Tuple[str, ...], name: str) -> int:
    """Returns the index of a name, -1 if it is not there, or if it is beyond what one instruction holds."""
    idx = names.index(name) if name in names else -1
    return idx if idx < 256 else -1


def _local(frame: types.FrameType, child: Any) -> Tuple[str, Spot]:
    code = frame.f_code
    names = frames.local_names(code)
    for idx, value in frames.read(frame):
        if value is child or (type(value) is types.CellType and any(each is child for each in gc.get_referents(value))):
            return plain(names[idx]), spot_of_code(code, _line_of_local(code, names[idx]))
    return "a local variable", spot_of_code(code)


def _line_of_local(code: types.CodeType, name: str) -> int:
    """Returns the first line that sets a local variable; the function's for an argument."""
    line: Optional[int] = None
    idx = _index(code.co_varnames, name)
    if idx >= 0 and name not in code.co_cellvars:
        line = _line_of_store(code, "STORE_FAST", idx)
    elif sum(map(len, (code.co_cellvars, code.co_freevars))) <= frames.LOCALS_MAX:
        cells = tuple(frames.local_names(code)) if sys.version_info >= (3, 11) else code.co_cellvars + code.co_freevars
        line = _line_of_store(code, "STORE_DEREF", _index(cells, name))
    return line or code.co_firstlineno


def _global(module: str, namespace: Any, child: Any) -> Tuple[str, Spot]:
    name = _key(namespace, child)
    if name is None:
        return f"a global of `{module}`", NOWHERE
    text = name if module == "__main__" else f"{module}.{name}"
    code = _running_code(namespace)
    line = None if code is None else _line_of_store(code, "STORE_NAME", _index(code.co_names, name))
    if code is not None and line is not None:
        return text, Spot(path(code.co_filename), None, line)
    file = path(namespace.get("__file__"))
    return text, Spot(file, None, None, Binding(Form.GLOBAL, name)) if file is not None else NOWHERE


def _running_code(namespace: Any) -> Optional[types.CodeType]:
    """Returns the code of a module that is still being run by this thread, as a script is; None of another one."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    for _ in range(frames.FRAMES_MAX):
        if frame is None:
            break
        if frame.f_globals is namespace and plain(frame.f_code.co_name) == "<module>":
            return frame.f_code
        frame = frame.f_back
    return None


def _file(module: Any) -> Optional[str]:
    namespace = module_dict(module)
    return None if namespace is None else path(namespace.get("__file__"))


def _of_context(context: Any, chain: List[Tuple[Any, int]]) -> Tuple[str, Spot]:
    """Names the variable of a context that leads to the last object of a chain."""
    held = {id(value): variable for variable, value in islice(contextvars.Context.items(context), ATTRIBUTES_MAX)}
    variable = next((held[id(thing)] for thing, _ in chain if id(thing) in held), None)
    if variable is None:
        return "a context variable", NOWHERE
    name, spot = plain(variable.name), NOWHERE
    for module in list(sys.modules.values()):
        namespace = module_dict(module) or {}
        if namespace.get(name) is variable:
            spot = _global("", namespace, variable)[1]
            break
    return f"the context variable `{name}`", spot


def _function_name(function: Any) -> str:
    if type(function) is types.MethodType:
        function = function.__func__
    return plain(function.__name__) if type(function) is types.FunctionType else type_name(function)


def _spot_of_function(function: types.FunctionType) -> Spot:
    return spot_of_code(function.__code__)


def _of_function(function: types.FunctionType, child: Any) -> str:
    if child is function.__defaults__ or child is function.__kwdefaults__:
        return f"a default argument of `{plain(function.__name__)}`"
    if child is function.__closure__:
        return f"a closure cell of `{plain(function.__name__)}`"
    return ""


def _of_suspended(generator: Any, child: Any) -> Tuple[str, Spot]:
    type_ = type(generator)
    frame: Optional[types.FrameType] = (
        generator.gi_frame
        if type_ is types.GeneratorType
        else generator.cr_frame if type_ is types.CoroutineType else generator.ag_frame
    )
    if frame is None:
        return "a generator", NOWHERE
    name, spot = _local(frame, child)
    return name, spot


def _cache(cache: Any) -> Tuple[str, Spot]:
    function = attributes(cache).get("__wrapped__")
    held = [function] if function is not None or cache_size(cache) > RESULTS_MAX else gc.get_referents(cache)
    for each in held:
        if type(each) is types.FunctionType:
            return f"the lru_cache of `{plain(each.__name__)}`", _spot_of_function(each)
    return "an lru_cache", NOWHERE


def located(spot: Spot) -> Spot:
    """Returns a spot with its line, searched for in the source file. Not for the training thread."""
    if spot.line is not None or spot.file is None or spot.binding is None:
        return spot
    line = source.line_of(spot.file, spot.binding)
    return spot._replace(line=line) if line is not None or spot.before is None else located(spot.before)
