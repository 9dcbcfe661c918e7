"""The two examples of the README: one leaks, the other does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from conftest import ROOT


def test_leaking_example_has_the_only_finding(exporter):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "STEPMEM_PUSH_URL": exporter.url, "WORLD_SIZE": "4"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "stepmem", f"examples/{name}.py"],
            cwd=ROOT,
            env={**environment, "RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, rank in (("leak", "3"), ("fixed", "0"))
    ]
    assert [(run.communicate()[0], run.returncode) for run in runs] == [("mean loss 0.0064\n", 0)] * 2
    found = [(each["run"].split("-")[0], each["rank"], each["kind"]) for each in exporter.status()["findings"]]
    assert found == [("leak", 3, "CREEP_CONFIRMED")], json.dumps(exporter.status()["findings"], indent=1)
    lines = exporter.table().splitlines()
    creeping = [line for line in lines if line.endswith("MEMORY CREEP; ended (completed)")]
    assert [[line.split("-")[0].strip(), line.split()[1]] for line in creeping] == [["leak", "3"]]
    (evidence,) = [each["evidence"] for each in exporter.status()["findings"]]
    assert 0.9 < evidence["slope_bytes_per_step"] / (256 * 1024) < 1.1
