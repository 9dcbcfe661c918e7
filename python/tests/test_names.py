"""Names of runs that are not given: what Python was asked to run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

STEPS = """
import stepmem
stepmem.step_end()
assert stepmem.flush(5)
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train.py"], "train"),
        (["-c", STEPS], "python"),
        (["-"], "python"),
        (["-m", "vision.train"], "vision.train"),
        (["-m", "vision"], "vision"),
        (["-m", "stepmem", "train.py"], "train"),
        (["-m", "stepmem", "-m", "vision.train"], "vision.train"),
        (["-m", "stepmem", "-m", "vision"], "vision"),
    ],
    ids=["script", "c", "stdin", "module", "package", "stepmem-script", "stepmem-module", "stepmem-package"],
)
def test_run_is_named_after_the_program(exporter, tmp_path, arguments, expected):
    (tmp_path / "vision").mkdir()
    for name in ("train.py", "vision/__init__.py", "vision/train.py", "vision/__main__.py"):
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else STEPS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPMEM_")}
    kept.update(STEPMEM_PUSH_URL=exporter.url, PYTHONPATH=str(ROOT / "python"))
    ended = subprocess.run(
        [sys.executable, *arguments], env=kept, cwd=tmp_path, input=STEPS, text=True, capture_output=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert exporter.rank()["run"] == expected
