"""Odd programs, drawn by a seed (tests/odd), do below `stepmem run` what they do alone: output, exit code or signal, files, warnings, and
the state of the interpreter at their end. A fake exporter requests a search for holders in each of its answers."""

from __future__ import annotations

import os
import pathlib
import sys
from collections import Counter
from typing import Iterator

import pytest
from conftest import BINARY

sys.path.append(str(pathlib.Path(__file__).parent / "odd"))

from compare import differences  # noqa: E402
from exporter import Asking  # noqa: E402
from programs import Program, programs  # noqa: E402

PROGRAMS = programs()


@pytest.fixture(scope="session")
def asking() -> Iterator[Asking]:
    started = Asking()
    yield started
    started.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_odd_program_is_the_same_below_run(program: Program, tmp_path: pathlib.Path, asking: Asking) -> None:
    if program.needs_root and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    found = differences(program, tmp_path, BINARY, asking)
    assert not found, found


def test_programs_have_the_kinds_that_are_promised() -> None:
    n_of = Counter(kind for program in PROGRAMS for kind in set(program.kinds))
    assert len(PROGRAMS) >= 150 and len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert n_of["long lines"] >= 20 and n_of["hostile heap"] >= 20 and n_of["forks with threads"] >= 10
    longest = [max(map(len, text.split("\n"))) for program in PROGRAMS for text in program.files.values() if "long lines" in program.kinds]
    assert sum(each >= 100_000 for each in longest) >= 20
    assert PROGRAMS == programs(), "by the seed alone"
