"""`python -m stepmem train.py …` or `-m stepmem -m package.train …`: runs a program and counts its optimizer steps.

The program runs as it would under `python`: same `__main__`, `sys.argv`, `sys.path` and exit code.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import types
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import List, Optional

USAGE = "usage: python -m stepmem [--version] [-m MODULE | SCRIPT] [ARGUMENT…]"


def main(arguments: List[str]) -> None:
    """Runs the program named by the arguments. Its exceptions propagate."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(USAGE)
        raise SystemExit(0 if arguments and arguments[0] != "-m" else 2)
    if arguments[0] == "--version":
        from stepmem import __version__

        print(f"stepmem {__version__}")
        return
    spec: Optional[ModuleSpec] = None
    if arguments[0] == "-m":
        spec, path = _module(arguments[1])
        arguments = arguments[1:]
    else:
        path = arguments[0]
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv = [path, *arguments[1:]]
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        _complain(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}")
        raise SystemExit(2) from None
    program = types.ModuleType("__main__")
    program.__file__ = path
    program.__dict__["__builtins__"] = sys.modules["builtins"]
    if spec is not None:
        program.__spec__ = spec
        program.__loader__ = spec.loader
        program.__package__ = spec.parent
    else:
        program.__loader__ = SourceFileLoader("__main__", path)
        program.__package__ = None
    # Pickle and spawned processes look up the program's definitions in `__main__`.
    sys.modules["__main__"] = program
    _count_steps()
    try:
        exec(compile(source, path, "exec", dont_inherit=True), program.__dict__)
    except SystemExit as error:  # other exceptions reach `sys.excepthook`
        _note_exit(error)
        raise
    _note_exit(SystemExit(0))


def _module(name: str) -> "tuple[ModuleSpec, str]":
    """Returns the spec and the source path of a module or package; exits with 1 if there is none."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        _complain(f"{sys.executable}: {error}")
        raise SystemExit(1) from None
    if spec is None or spec.origin is None:
        _complain(f"{sys.executable}: No module named {name}")
        raise SystemExit(1)
    return spec, spec.origin


def _count_steps() -> None:
    try:
        from stepmem._auto import auto

        auto()
    except Exception as error:
        _complain(f"stepmem: optimizer steps are not counted: {error!r}")


def _complain(line: str) -> None:
    from stepmem._warn import write

    write(f"{line}\n")


def _note_exit(error: SystemExit) -> None:
    """Notes the program's exit, and that it was to take steps if it succeeded."""
    from stepmem._client import CLIENT

    CLIENT.ending.note(error)
    CLIENT.expects_steps = error.code in (None, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
