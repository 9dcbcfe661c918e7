"""The modules of the client depend on each other in one direction, and PHASES is defined in one of them."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
from graphlib import CycleError, TopologicalSorter
from typing import Dict, List, Set

from conftest import ROOT

PACKAGE = ROOT / "python/stepmem"
LINES_MAX = 600


def parse(package: pathlib.Path) -> Dict[str, ast.Module]:
    """Returns the modules by their paths below the package."""
    paths = sorted(package.rglob("*.py"))
    return {str(path.relative_to(package).with_suffix("")): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def imports(path: str, module: ast.Module, names: Set[str]) -> Set[str]:
    """Returns the modules of the package that the one at `path` imports, also inside functions and for type checking."""
    found: Set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            base = ["stepmem", *path.split("/")][: -node.level] if node.level else []
            origin = base + (node.module.split(".") if node.module else [])
            found.update(["/".join(origin[1:])] if origin[0] == "stepmem" else [])
            found.update("/".join([*origin[1:], alias.name]) for alias in node.names if origin[0] == "stepmem")
        elif isinstance(node, ast.Import):
            origins = [alias.name.split(".") for alias in node.names]
            found.update("/".join(origin[1:]) for origin in origins if origin[0] == "stepmem")
    return found & names


def cycle(package: pathlib.Path) -> List[str]:
    """Returns the modules of one import cycle; empty if there is none."""
    modules = parse(package)
    try:
        TopologicalSorter({name: imports(name, module, set(modules)) for name, module in modules.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def definitions(package: pathlib.Path, name: str) -> List[str]:
    """Returns the modules that assign to `name` at their top level."""
    return sorted(
        path
        for path, module in parse(package).items()
        for node in module.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name
    )


def copied(tmp_path: pathlib.Path, module: str, line: str) -> pathlib.Path:
    """Copies the package and adds a line to one module."""
    package = tmp_path / "stepmem"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / f"{module}.py"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    return package


def test_modules_import_each_other_without_a_cycle():
    assert cycle(PACKAGE) == []


def test_cycle_through_an_import_inside_a_function_is_noticed(tmp_path):
    breach = "def late() -> None:\n    from ._client import CLIENT\n    print(CLIENT)"
    found = cycle(copied(tmp_path, "_snapshots", breach))
    assert {"_client", "_snapshots"} <= set(found)


def test_cycle_through_an_absolute_import_is_noticed(tmp_path):
    assert {"_client", "_wire"} <= set(cycle(copied(tmp_path, "_wire", "import stepmem._client")))


def test_cycle_through_the_sub_package_is_noticed(tmp_path):
    assert {"_wire", "_holders/search"} <= set(cycle(copied(tmp_path, "_wire", "from ._holders.search import Search")))
    assert {"_holders/heap", "_holders/probe"} <= set(cycle(copied(tmp_path / "second", "_holders/heap", "from . import probe")))


def test_one_module_defines_the_phases():
    assert definitions(PACKAGE, "PHASES") == ["_wire"]


def test_second_definition_of_the_phases_is_noticed(tmp_path):
    package = copied(tmp_path, "_sender", 'PHASES: "tuple[str, ...]" = ("train",)')
    assert definitions(package, "PHASES") == ["_sender", "_wire"]


OFF_THE_TRAINING_THREAD = {
    "__main__",  # before the program begins
    "_by_time",
    "_client:at_exit",
    "_connection",
    "_descriptors:__del__",
    "_holders/removal:removal",  # with the sender's report
    "_malloc:glibc",
    "_ending:note",  # Python calls it with an error that ends the program
    "_process_memory:_run",
    "_sender",
    "_signals",
    "_snapshot_file:_save",
    "_snapshots:on_request",
    "_stream",
    "_threads",
    "_wire",
}
"""Modules and functions of the client that do not run between two steps of the program."""

WIDE = {"BaseException", "Exception", "MemoryError", "OSError", "RuntimeError", "ValueError"}
"""What signal handlers raise: TimeoutError is an OSError."""

GIVES_BACK = re.compile(r"raise_if_\w+|_?fail")
"""Functions that raise an error of a signal handler again."""


def swallowed(package: pathlib.Path) -> List[str]:
    """Returns where the client catches what a signal handler of the program may have raised, and does not raise it again."""
    found: List[str] = []

    def look(path: str, function: str, node: ast.AST) -> None:
        function = node.name if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.ExceptHandler) and not {path, f"{path}:{function}"} & OFF_THE_TRAINING_THREAD:
            types = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else WIDE
            calls = [ast.unparse(each.func).rpartition(".")[2] for each in ast.walk(node) if isinstance(each, ast.Call)]
            if types & WIDE and not isinstance(node.body[-1], ast.Raise) and not any(GIVES_BACK.fullmatch(call) for call in calls):
                found.append(f"{path}:{node.lineno}")
        for child in ast.iter_child_nodes(node):
            look(path, function, child)

    for path, module in parse(package).items():
        look(path, "", module)
    return found


def test_client_gives_back_what_a_signal_handler_raises():
    assert swallowed(PACKAGE) == []


def test_error_that_the_client_keeps_is_noticed(tmp_path):
    breach = "def keep() -> None:\n    try:\n        print()\n    except (KeyError, OSError):\n        pass"
    package = copied(tmp_path, "_cgroup", breach)
    assert [place.partition(":")[0] for place in swallowed(package)] == ["_cgroup"]


def story() -> List[str]:
    """Returns the modules that the table in ARCHITECTURE.md lists, in its order."""
    rows = [line for line in (ROOT / "python/ARCHITECTURE.md").read_text(encoding="utf-8").splitlines() if ".py` |" in line]
    return [name for row in rows for name in re.findall(r"`([\w/]+)\.py`", row.split("|")[1])]


def upward(package: pathlib.Path) -> List[str]:
    """Returns the imports that go from a module to one above it in the table in ARCHITECTURE.md."""
    order, modules = story(), parse(package)
    return [
        f"{name} -> {other}"
        for name in order
        for other in imports(name, modules[name], set(order))
        if order.index(other) < order.index(name)
    ]


def test_architecture_lists_every_module_above_those_that_it_imports():
    assert sorted(story()) == sorted(set(parse(PACKAGE)) - {"__init__", "__main__", "_holders/__init__"})
    assert upward(PACKAGE) == []


def test_import_against_the_order_of_the_readme_is_noticed(tmp_path):
    assert upward(copied(tmp_path, "_recorder", "from . import _snapshots")) == ["_recorder -> _snapshots"]


def too_long(package: pathlib.Path) -> List[str]:
    return [path.stem for path in package.rglob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > LINES_MAX]


def test_no_module_is_too_long():
    assert too_long(PACKAGE) == []


def test_long_module_is_noticed(tmp_path):
    assert too_long(copied(tmp_path, "_warn", "#\n" * LINES_MAX)) == ["_warn"]
