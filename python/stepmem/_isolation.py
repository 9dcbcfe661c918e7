"""Gives the client's modules builtins and a standard library of their own, so that the program and the client do not notice each other.

A program may replace `open`, `time.time` or `socket.socket`, delete modules, have modules of its own named `json` or `struct`, or
lose the files of Python by `setuid` and `chroot`. The client has what was there when it began: the builtins, copies of the modules'
names, and modules that the program had not imported by then in copies of its own. Other threads of the program may import at any time,
so `sys.modules` never has such a copy, not even while it is loaded.
"""

import _frozen_importlib
import _frozen_importlib_external as external
import builtins
import os
import sys

TYPE_CHECKING = False  # the program may have a module `typing`
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Dict, List, Mapping, Optional, Sequence
else:
    ModuleType = type(sys)

OWN = frozenset(("json", "json.decoder", "json.encoder", "json.scanner", "posixpath", "genericpath", "enum"))
"""Modules whose functions the client calls in Python while the program runs: they get the client's builtins, too. `enum` looks for modules
in `sys.modules`, and has to find the client's."""

SHARED = frozenset(("builtins", "sys", "tracemalloc"))
"""Modules of which the client changes names, as the program sees them."""

LATE = ("dis", "opcode", "pickle", "ssl")
"""Modules that the client imports when it needs them, and has at once if the program has imported them, or they are small."""

SMALL = ("opcode",) if sys.version_info >= (3, 10) else ("dis", "opcode")

ABSENT = object()

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions below

LOADERS = external._get_supported_file_loaders()  # type: ignore[attr-defined]


class Began:
    """The interpreter as it was before the program began, or when the client was imported."""

    def __init__(self) -> None:
        first = next((vars(each) for each in sys.meta_path if "stepmem_began" in getattr(each, "__dict__", ())), {})
        began: "Mapping[str, Any]" = first.get("stepmem_began", {})
        self.builtins: "Dict[str, Any]" = dict(began.get("builtins") or vars(builtins))
        self.modules: "Dict[str, Dict[str, Any]]" = dict(began.get("modules") or {})
        """Names of modules, by module."""
        self.folders: "List[str]" = list(began.get("folders") or folders(sys.path))


def folders(path: "Sequence[str]") -> "List[str]":
    """Returns the directories of the standard library: of its modules in Python, and of those in C."""
    library = os.path.dirname(os.__file__)
    return [library, *(entry for entry in path if entry.endswith("lib-dynload"))]


class Modules:
    """Is `sys.modules` in the copies of the standard library's modules: the client's modules, and behind them the program's."""

    def __init__(self, own: "Dict[str, ModuleType]") -> None:
        self._own = own

    def __getitem__(self, name: str) -> ModuleType:
        return self._own[name] if name in self._own else sys.modules[name]

    def __setitem__(self, name: str, module: ModuleType) -> None:
        self._own[name] = module

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in sys.modules

    def get(self, name: str, default: "Any" = None) -> "Any":
        """Returns a module, or `default`."""
        return self[name] if name in self else default


class Anything:
    """Stands for a name of `typing`, which annotations use and nothing else."""

    def __call__(self, *_: object, **named: object) -> "Anything":
        return self

    def __getitem__(self, _: object) -> "Anything":
        return self


class TupleMaker(type):
    """Is the metaclass of `typing.NamedTuple`: makes a `collections.namedtuple` of the annotations of a class."""

    def __new__(cls, name: str, _: "Any", names: "Dict[str, Any]") -> "Any":
        fields = list(names.get("__annotations__", ()))
        defaults = [names.pop(field) for field in fields if field in names]
        made = isolations[0].import_("collections").namedtuple(name, fields, defaults=defaults, module=names.get("__module__"))
        for each, value in names.items():
            if each not in ("__annotations__", "__module__", "__qualname__", "__classcell__"):
                setattr(made, each, value)
        return made


def typing() -> ModuleType:
    """Returns what the client needs of `typing`, which cannot be loaded without `sys.modules` from Python 3.12 on."""
    made = ModuleType("typing")
    made.__dict__.update(TYPE_CHECKING=False, NamedTuple=type.__new__(TupleMaker, "NamedTuple", (), {}), cast=lambda _, value: value)
    made.__dict__["__getattr__"] = lambda name: Anything()
    return made


class Isolation:
    """The imports of one package."""

    def __init__(self, package: str, places: "Sequence[str]", began: Began) -> None:
        """`places` are the directories of the package."""
        self._builtins = {**began.builtins, "__import__": self.import_}
        self._package = package
        self._began = began
        self._library = [external.FileFinder(folder, *LOADERS) for folder in began.folders]
        self._origins = tuple(folder + os.sep for folder in began.folders)
        self._places = list(places)
        self._modules: "Dict[str, ModuleType]" = {}
        """What was imported so far, by name."""
        self._sys = ModuleType("sys")
        """Is `sys` in the copies of the standard library's modules."""
        self._sys.__dict__.update(modules=Modules(self._modules), __getattr__=lambda name: getattr(sys, name))
        self._copies: "Dict[str, ModuleType]" = {}
        """Copies of modules' names, by name."""

    def import_(self, name: str, of: "Any" = None, names: "Any" = None, wanted: "Any" = (), level: int = 0) -> ModuleType:
        """Is `__import__` in the client's modules. Runs nothing of the program once a module was imported."""
        if level:
            base = of["__package__"]
            while level > 1:
                base, level = base.rpartition(".")[0], level - 1
            name = f"{base}.{name}" if name else base
        if name == "sys" and of is not None and not self._is_own(of["__name__"]):
            return self._sys
        found = self._modules.get(name) or self._import(name)
        if not wanted:
            top = name.partition(".")[0]
            return self._copy(top, self._modules[top])
        for each in wanted:
            if each not in found.__dict__ and f"{name}.{each}" not in self._modules and "__path__" in found.__dict__:
                try:
                    self._import(f"{name}.{each}")
                except ModuleNotFoundError as error:
                    if error.name != f"{name}.{each}":  # else it is no module
                        raise
        return self._copy(name, found) if name in self._copies or name in self._began.modules else found

    def _import(self, name: str) -> ModuleType:
        parent, _, tail = name.rpartition(".")
        above = (self._modules.get(parent) or self._import(parent)) if parent else None
        if name in self._modules:  # its parent imports it
            return self._modules[name]
        if name == "os.path":
            return self._import("posixpath")
        if name == "typing" and not self._has_typing():
            made = self._modules[name] = typing()
            return made
        is_own = self._is_own(name)
        module = None if name in OWN else sys.modules.get(name)
        if module is not None and (is_own or self.is_standard(name, module)):
            self._modules[name] = module
        else:
            module = self._load(name, above, is_own)
        if above is not None:
            self._copy(parent, above).__dict__[tail] = module
        return module

    def is_standard(self, name: str, module: "Any") -> bool:
        """Returns whether a module is the standard library's, not one of the program by the same name."""
        if name in SHARED or name in self._began.modules:
            return True
        if type(module) is not ModuleType:
            return False
        origin = getattr(module.__dict__.get("__spec__"), "origin", None)
        if type(origin) is not str:
            return False
        is_file = origin.startswith(self._origins) and "-packages" not in origin
        return is_file or origin in ("built-in", "frozen")

    def _has_typing(self) -> bool:
        module = sys.modules.get("typing")
        return module is not None and self.is_standard("typing", module)

    def _load(self, name: str, above: "Optional[ModuleType]", is_own: bool) -> ModuleType:
        """Loads a module that the program has not imported. `sys.modules` has it after that only if the program is to see it."""
        spec = self._find(name, above, is_own)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        is_shown = is_own or (name in SHARED and name not in sys.modules and self._is_programs(name))
        try:
            loader: "Any" = spec.loader
            is_in_c = loader is _frozen_importlib.BuiltinImporter or type(loader) is external.ExtensionFileLoader
            module = self._loaded_in_c(spec) if is_in_c else self._loaded(spec)
        except BaseException:
            self._modules.pop(name, None)
            raise
        if is_shown:
            module = self._modules[name] = sys.modules.setdefault(name, module)
        return module

    def _loaded(self, spec: "ModuleSpec") -> ModuleType:
        assert spec.loader is not None
        module = _frozen_importlib.module_from_spec(spec)
        module.__dict__["__builtins__"] = self._builtins
        self._modules[spec.name] = module
        spec.loader.exec_module(module)
        return self._modules[spec.name]  # it may put another one there

    def _loaded_in_c(self, spec: "ModuleSpec") -> ModuleType:
        """Loads a module in C. Older kinds put themselves into `sys.modules`, though only once they are complete."""
        name = spec.name
        with _frozen_importlib._ModuleLockManager(name):  # type: ignore[attr-defined]
            before: "Any" = sys.modules.get(name, ABSENT)
            module = self._loaded(spec)
            if before is ABSENT:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before
        return module

    def _is_programs(self, name: str) -> bool:
        """Returns whether the program would get the standard library's module by that name."""
        spec = external.PathFinder.find_spec(name)
        origin = None if spec is None else spec.origin
        return type(origin) is str and origin.startswith(self._origins)

    def _is_own(self, name: str) -> bool:
        return name == self._package or name.startswith(self._package + ".")

    def _find(self, name: str, above: "Optional[ModuleType]", is_own: bool) -> "Optional[ModuleSpec]":
        if above is not None:
            places = self._places if is_own and above.__name__ == self._package else list(above.__dict__.get("__path__", ()))
            finders: "List[Any]" = [external.FileFinder(place, *LOADERS) for place in places]
        else:
            finders = [_frozen_importlib.BuiltinImporter, *self._library, _frozen_importlib.FrozenImporter]
        for finder in finders:
            spec: "Optional[ModuleSpec]" = finder.find_spec(name)
            if spec is not None:
                return spec
        return None

    def _copy(self, name: str, module: ModuleType) -> ModuleType:
        """Returns a module with the names that another one has now, whatever the program makes of them later."""
        if name in SHARED or name == self._package or module.__dict__.get("__builtins__") is self._builtins:
            return module
        copy = self._copies.get(name)
        if copy is None:
            copy = self._copies[name] = ModuleType(name)
            copy.__dict__.update(self._began.modules.get(name) or module.__dict__)
            if name == "os":
                copy.__dict__["path"] = self._import("posixpath")
        return copy


def isolate(package: str, places: "Sequence[str]", first: str) -> None:
    """Imports the module `first` of a package, and all that it imports, apart from the program."""
    isolation = Isolation(package, places, Began())
    isolations.append(isolation)
    isolation.import_(f"{package}.{first}")
    for name in LATE:
        if name in SMALL or name in sys.modules:
            isolation.import_(name)


isolations: "List[Isolation]" = []
"""That of this package."""


def library(name: str) -> "Any":
    """Returns a module of the standard library that the program has imported; None if it has none, or one of its own by that name."""
    module = sys.modules.get(name)
    is_standard = module is not None and all(each.is_standard(name, module) for each in isolations)
    return module if is_standard else None
