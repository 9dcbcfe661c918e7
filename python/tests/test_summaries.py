"""Summaries of real runs: a leak, its fix under the same name, and a death by out-of-memory."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any, Dict, List

import pytest
from conftest import BINARY, ROOT, STUB, await_true


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    return tmp_path / "summaries"


def launches(run: pathlib.Path) -> List[pathlib.Path]:
    """Returns the directories of the launches of a run that have a summary, the oldest first."""
    return sorted(path.parent for path in run.glob("2*/final_summary.json"))


def read(launch: pathlib.Path) -> Dict[str, Any]:
    return json.loads((launch / "final_summary.json").read_text())


def example(name: str) -> str:
    """Returns an example, five times as fast."""
    code = (ROOT / f"examples/{name}.py").read_text()
    assert "time.sleep(0.02)" in code
    return code.replace("time.sleep(0.02)", "time.sleep(0.004)")


def test_fix_of_a_leak_compares_as_an_improvement(start, train, folder):
    exporter = start("--summary.dir", str(folder))
    run = folder / "my-run"
    for n, name in enumerate(("leak", "fixed"), 1):
        ended = train(example(name), exporter.url, through=("-m", "stepmem"), STEPMEM_RUN="my-run").ended()
        assert (ended.code, ended.out) == (0, "mean loss 0.0064\n"), ended.err
        # The moment it ends: long before anything times out.
        await_true("the summary", lambda: len(launches(run)) == n, 5)
    leak, fixed = launches(run)
    assert (run / "latest").resolve() == fixed
    assert read(leak)["diagnosis"]["status"] == "MEMORY CREEP" and read(fixed)["diagnosis"]["status"] == "BALANCED"
    assert read(leak)["launch"] != read(fixed)["launch"]
    compared = subprocess.run([BINARY, "compare", str(leak), str(run / "latest")], capture_output=True, text=True)
    assert compared.returncode == 0, compared.stdout
    assert compared.stdout.startswith("Verdict: IMPROVEMENT\n"), compared.stdout
    assert "MEMORY CREEP" in compared.stdout and "is gone." in compared.stdout
    # A gate that compares the other way stops, and says why.
    compared = subprocess.run([BINARY, "compare", str(fixed), str(leak)], capture_output=True, text=True)
    assert compared.returncode == 1
    assert "exit code 1 because of this: MEMORY CREEP" in compared.stdout, compared.stdout


FILLING = """
    import torch, stepmem
    for step in range(1, 100):
        with stepmem.step(step):
            torch.malloc(10 << 20 if step < 40 else 200 << 20)
"""


def test_death_by_oom_is_the_verdict_of_status_and_summary(start, train, folder):
    exporter = start("--summary.dir", str(folder))
    ended = train(FILLING, exporter.url, PATHS=STUB, STEPMEM_RUN="dying").ended()
    assert ended.code == 1 and ended.err.splitlines()[-1].startswith("torch.OutOfMemoryError")
    rank = exporter.rank()
    assert (rank["state"], rank["end"]["outcome"], rank["oom_events_total"]) == ("ended", "oom", 1)
    (found,) = [each for each in exporter.status()["findings"] if each["kind"] == "OUT_OF_MEMORY"]
    assert (found["severity"], found["evidence"]["requested_bytes"]) == ("critical", 200 << 20)
    assert exporter.metric('stepmem_rank_oom_events_total{run="dying",rank="0",uuid="%s"}' % rank["device"]) == 1
    (line,) = [line for line in exporter.table().splitlines() if line.lstrip().startswith("dying")]
    assert "OUT OF MEMORY" in line and "ended (oom)" in line, line
    (launch,) = await_true("the summary", lambda: launches(folder / "dying"), 5)
    summary = read(launch)
    assert summary["diagnosis"]["kind"] == "OUT_OF_MEMORY", summary["text"]
    assert (summary["ranks"][0]["state"], summary["ranks"][0]["ooms"]) == ("ended", 1)
    assert "Out-of-memory errors: 1." in (launch / "final_summary.txt").read_text()


def test_run_that_is_too_short_to_judge_is_not_called_balanced(start, train, folder):
    exporter = start("--summary.dir", str(folder))
    code = "import stepmem\nfor step in range(1, 20):\n    stepmem.step_end(step)\n"
    assert train(code, exporter.url, STEPMEM_RUN="short").ended().code == 0
    (launch,) = await_true("the summary", lambda: launches(folder / "short"), 5)
    assert (launch / "final_summary.txt").read_text().startswith("TOO FEW STEPS\n")
    (line,) = [line for line in exporter.table().splitlines() if line.lstrip().startswith("short")]
    assert line.endswith("TOO FEW STEPS; ended (completed)"), line
