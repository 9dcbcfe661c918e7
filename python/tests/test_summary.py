"""`stepmem.summary()`: flat figures for a tracker, and the two examples of docs/coming-from.md with the real packages, offline."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import textwrap
from typing import Any, Dict

import pytest
from conftest import DEADLINE, ROOT

TRACKERS = str(ROOT / "target/tools/trackers-venv/bin/python")
PAGE = ROOT / "docs/coming-from.md"

LEAK = """
    import stepmem
    kept = []
    for step in range(1, 601):
        kept.append(b"x" * (1 << 20))
        stepmem.step_end(step)
"""


def example(heading: str) -> str:
    """The lines of Python below a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    return code


def ran(tmp_path: pathlib.Path, code: str, **variables: str) -> str:
    """Returns the output of a script that leaks and then goes on with this code, in the environment of the trackers."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(LEAK) + code)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON", "WANDB_", "MLFLOW_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT / "python"), "STEPMEM_RUN": "llm", "STEPMEM_CAPACITY": "1GiB", **variables}
    ended = subprocess.run([TRACKERS, str(path)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def addresses(exporter: Any) -> Dict[str, str]:
    return {"STEPMEM_PUSH_URL": exporter.url, "STEPMEM_WEB_URL": exporter.page}


def test_summary_has_the_runs_diagnosis_and_the_figures_of_the_process(tmp_path, addresses):
    found = json.loads(ran(tmp_path, "import json; print(json.dumps(stepmem.summary()))\n", **addresses))
    assert (found["stepmem/step"], found["stepmem/rank"], found["stepmem/run/name"]) == (600, 0, "llm")
    assert (found["stepmem/run/diagnosis"], found["stepmem/run/ranks"]) == ("MEMORY CREEP", 1)
    assert 0.9 < found["stepmem/run/slope_bytes_per_step"] / (1 << 20) < 1.1
    assert found["stepmem/allocated_bytes"] > 600 << 20
    assert all(isinstance(figure, (str, int, float)) for figure in found.values())
    assert None not in found.values()


def test_summary_without_an_exporter_has_the_figures_of_the_process(tmp_path):
    nowhere = {"STEPMEM_PUSH_URL": "http://127.0.0.1:1", "STEPMEM_WEB_URL": "http://127.0.0.1:1"}
    found = json.loads(ran(tmp_path, "import json; print(json.dumps(stepmem.summary(seconds=0.1)))\n", **nowhere))
    assert found["stepmem/step"] == 600 and found["stepmem/allocated_bytes"] > 600 << 20
    assert not [name for name in found if name.startswith("stepmem/run/")]


def test_summary_of_a_run_that_the_exporter_does_not_know_is_that_of_the_process(tmp_path, exporter):
    unknown = {"STEPMEM_PUSH_URL": "http://127.0.0.1:1", "STEPMEM_WEB_URL": exporter.page}
    found = json.loads(ran(tmp_path, "import json; print(json.dumps(stepmem.summary(seconds=0.1)))\n", **unknown))
    assert found["stepmem/step"] == 600 and "stepmem/run/name" not in found


def test_example_of_wandb_logs_every_figure(tmp_path, addresses):
    read = """
import json
found = dict(run.summary)
run.finish()
print(json.dumps({name: found[name] for name in found if name.startswith("stepmem/")}))
"""
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path)}
    found = json.loads(ran(tmp_path, example("Weights & Biases") + read, **addresses, **offline).splitlines()[-1])
    assert found["stepmem/run/diagnosis"] == "MEMORY CREEP" and found["stepmem/step"] == 600
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_example_of_mlflow_logs_figures_as_metrics_and_words_as_tags(tmp_path, addresses):
    read = """
import json
data = mlflow.get_run(mlflow.active_run().info.run_id).data
print(json.dumps({"metrics": data.metrics, "tags": data.tags}))
"""
    offline = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true", "HOME": str(tmp_path)}
    found = json.loads(ran(tmp_path, example("MLflow") + read, **addresses, **offline).splitlines()[-1])
    assert found["metrics"]["stepmem/step"] == 600
    assert found["tags"]["stepmem/run/diagnosis"] == "MEMORY CREEP"
