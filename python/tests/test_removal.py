"""What the program's code does to a holder is told only where that is so: generated programs that empty a container some time, or never."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Dict, List, Tuple

import pytest

from conftest import ROOT
from removal.programs import Program, healthy, leaking

HERE = ROOT / "python/tests/removal"
PART = 90
"""Programs that one process runs."""


def searched(programs: List[Program], folder: pathlib.Path) -> List[Tuple[Program, Dict[str, Any]]]:
    """Returns the first holder of each program that has one."""
    names = []
    for number, program in enumerate(programs):
        names.append(f"program_{number}")
        for name, text in {"": program.text, **program.modules}.items():
            own = text.replace("program_", f"program_{number}_")
            (folder / f"program_{number}{name[len('program') :]}.py").write_text(own)
    command = [sys.executable, str(HERE / "search_all.py"), str(folder), *names]
    ended = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["name"] for each in results] == names
    return [(program, each["holders"][0]) for program, each in zip(programs, results) if each["holders"]]


def parts(programs: List[Program]) -> List[List[Program]]:
    return [programs[begin : begin + PART] for begin in range(0, len(programs), PART)]


HEALTHY, LEAKING = list(healthy()), list(leaking())


@pytest.mark.parametrize("programs", parts(HEALTHY), ids=range(len(parts(HEALTHY))))
def test_no_container_that_is_emptied_some_time_is_told_as_one_from_which_nothing_removes(programs, tmp_path):
    found = searched(programs, tmp_path)
    assert len(found) >= 0.9 * len(programs)
    for program, holder in found:
        removal = holder["removal"]
        assert removal is None or removal["outcome"] != "nothing", program
        if removal is not None and removal["outcome"] == "emptied":
            assert removal["line"] in program.lines or program.modules, (program, removal)


@pytest.mark.parametrize("programs", parts(LEAKING), ids=range(len(parts(LEAKING))))
def test_container_from_which_nothing_removes_is_never_told_as_emptied_and_mostly_so(programs, tmp_path):
    found = searched(programs, tmp_path)
    assert len(found) >= 0.9 * len(programs)
    outcomes = [None if holder["removal"] is None else holder["removal"]["outcome"] for _, holder in found]
    wrong = [program for (program, _), outcome in zip(found, outcomes) if outcome == "emptied"]
    assert wrong == []
    assert outcomes.count("nothing") >= 0.8 * len(found)


def test_there_are_as_many_programs_as_are_promised():
    assert len(HEALTHY) >= 300 and len({program.text for program in HEALTHY}) == len(HEALTHY)


def told(text: str, folder: pathlib.Path) -> Any:
    """Returns what is told of `items` of a module, in a process that has no other."""
    (folder / "program.py").write_text(text)
    code = "import program; from stepmem._holders.removal import Link, removal\n"
    code += "print(removal((Link('items', modules=(('program', 'items'),), id=id(program.items)),)))"
    path = f"{folder}:{ROOT / 'python'}"
    ended = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


ADDS = "items = []\ndef add(item):\n    items.append(item)\n"


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ("", True),
        ("".join(f"def f{n}(): return {n}\n" for n in range(4_000)), True),
        ("class Many:\n" + "".join(f"    def f{n}(self): return {n}\n" for n in range(4_000)) + "class More:\n" + "".join(f"    def g{n}(self): return {n}\n" for n in range(200)), False),
        ("def long():\n" + "    len(items)\n" * 3_000, False),
        ("".join(f"def f{n}():\n" + "    len(items)\n" * 400 for n in range(60)), False),
        ("def odd(): return getattr(odd, odd.__name__)\n", False),
    ],
    ids=["little", "many functions", "too many functions", "a long function", "too many instructions", "attribute by a variable"],
)
def test_nothing_is_told_of_a_program_of_which_not_all_is_read(more, is_told, tmp_path):
    said = told(ADDS + more, tmp_path)
    if is_told:
        assert said == f"Removal(outcome='nothing', file='{tmp_path}/program.py', line=None)"
    else:
        assert said == "None" or "handed_on" in said
