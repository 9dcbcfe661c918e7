"""The recording that `stepmem run` leaves: replayed, it gives the findings of the run."""

from __future__ import annotations

import json
import pathlib
import stat
import subprocess
from typing import Any, Dict, List

from conftest import BINARY, DEADLINE, LEAK
from test_run import python, run, script  # noqa: F401


def stepmem(*arguments: str) -> str:
    ended = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def compared(value: Any) -> Any:
    """A summary without when it was made, and without the snapshots that were asked for, which a recording does not have."""
    if isinstance(value, dict):
        return {key: compared(part) for key, part in value.items() if key not in ("generated_at", "snapshots")}
    return [compared(part) for part in value] if isinstance(value, list) else value


def only(paths: "List[pathlib.Path]") -> pathlib.Path:
    assert len(paths) == 1, paths
    return paths[0]


def test_recording_of_a_run_gives_its_findings_verdict_and_holder(tmp_path, run, script, without_cuda):  # noqa: F811
    ended = python(run, script(LEAK), options=("--holders.on-creep",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 0, ended.err
    recording = only(list(tmp_path.glob("logs/*/2*/steps.jsonl.zst")))
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600
    live: Dict[str, Any] = json.loads((recording.parent / "final_summary.json").read_text())
    assert live["diagnosis"]["status"] in ("MEMORY CREEP", "MEMORY RISING"), live["diagnosis"]
    for place in (recording, recording.parent):
        replayed = json.loads(stepmem("summary", "--json", str(place)))
        assert compared(replayed) == compared(live)
    last = json.loads(stepmem("replay", str(recording)).splitlines()[-1])
    assert last["status"]["ranks"][0]["end"]["outcome"] == "completed"
    rank = str(live["ranks"][0]["rank"])
    explained = stepmem("explain", "--rank", rank, str(recording))
    assert "MEMORY CREEP, critical" in explained and "700 train steps, from step 1 " in explained, explained


def test_no_record_leaves_no_recording(tmp_path, run, script, without_cuda):  # noqa: F811
    ended = python(run, script(LEAK), options=("--no-record",), PYTHONPATH=without_cuda).ended()
    assert ended.code == 0, ended.err
    assert list(tmp_path.glob("logs/*/2*/final_summary.json"))
    assert not list(tmp_path.glob("logs/**/*.zst"))


def test_directory_of_recordings_takes_the_place_of_the_launches(tmp_path, run, script, without_cuda):  # noqa: F811
    options = ("--record.directory", str(tmp_path / "recorded"))
    ended = python(run, script(LEAK), options=options, PYTHONPATH=without_cuda).ended()
    assert ended.code == 0, ended.err
    assert len(list((tmp_path / "recorded").glob("*.life1.jsonl.zst"))) == 1
    assert not list(tmp_path.glob("logs/**/*.zst"))
