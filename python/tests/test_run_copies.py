"""`stepmem run` started once a rank, as by srun and mpirun: each copy says which ranks it has, and none overwrites another."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import socket
import subprocess

import pytest
from conftest import BINARY
from test_run import python, run, script  # noqa: F401

RANKS = 4

CODE = """
    import os, resource, sys, time
    from torch.optim.optimizer import Optimizer
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    rank = int(sys.argv[1])
    optimizer, kept = Optimizer(), []
    for step in range(700 if rank == 2 else 50 + rank):
        if step == 10:
            print("ready", flush=True)
            sys.stdin.readline()
        if rank == 2:
            kept.append(b"x" * (1 << 20))
        optimizer.step()
        time.sleep(0.003)
"""

LAUNCHERS = {
    "srun on four nodes": lambda rank: {
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": RANKS,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": rank,
        "SLURM_NNODES": RANKS,
        "SLURM_JOB_ID": 7,
        "SLURM_JOB_NAME": "job",
    },
    "mpirun on one": lambda rank: {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": RANKS,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": RANKS,
    },
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_copies_that_start_at_once_write_one_directory_that_reads_as_one_run(run, script, without_cuda, tmp_path, launcher):
    path = script(CODE)
    options = (f"--web.listen-address=127.0.0.1:{free_port()}", "--summary-json=out.json")
    copies = []
    for rank in range(RANKS):
        variables = {name: str(value) for name, value in LAUNCHERS[launcher](rank).items()}
        copies.append(python(run, path, str(rank), options=options, PYTHONPATH=without_cuda, **variables))
    for copy in copies:
        assert copy.line() == "ready"
    copies[1].kill(signal.SIGKILL)  # its command runs on, and its exporter with it
    for copy in copies:
        copy.process.stdin.write("\n")
        copy.process.stdin.flush()
    ended = [copy.ended() for copy in copies]
    assert [each.code for each in ended] == [0, -signal.SIGKILL, 0, 0], ended[0].err
    (folder,) = tmp_path.glob("logs/*/2*")
    for rank, each in enumerate(ended):
        assert f"1 of {RANKS} ranks" in each.err, each.err
        (name,) = re.findall(rf"Written to {re.escape(str(folder.relative_to(tmp_path)))}/(\S+)\.txt and \.json", each.err)
        assert [of["rank"] for of in json.loads((folder / f"{name}.json").read_text())["ranks"]] == [rank]
        assert f"stepmem summary {folder.relative_to(tmp_path)}" in each.err
    written = [json.loads(path.read_text()) for path in tmp_path.glob("out*.json")]
    assert sorted(of["ranks"][0]["rank"] for of in written) == [0, 1, 2, 3], "a copy has overwritten another"
    pages = {re.search(r"page http://127\.0\.0\.1:(\d+)/", each.err)[1] for each in ended}
    assert len(pages) == RANKS

    for shown in (folder, folder.parent):
        card = subprocess.run([BINARY, "summary", str(shown)], capture_output=True, text=True)
        assert card.returncode == 0 and f"{RANKS} of {RANKS} ranks, steps 1 to 700" in card.stdout, card
        assert re.search(r"(?m)^MEMORY CREEP \((warning|critical)\) on rank 2$", card.stdout), card.stdout
        assert "Never pushed" not in card.stdout
    whole = json.loads(subprocess.run([BINARY, "summary", "--json", str(folder)], capture_output=True, text=True).stdout)
    assert [(of["rank"], of["steps"]) for of in whole["ranks"]] == [(0, 50), (1, 51), (2, 700), (3, 53)]
    assert whole["diagnosis"]["ranks"] == [2] and whole["coverage"]["ranks_missing"] == []
    assert whole["worst_rank"] == 2


def test_directory_of_two_launches_is_not_one_run(run, script, without_cuda, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for rank in (0, 1):
        assert python(
            run, script(CODE), str(rank), PYTHONPATH=without_cuda, options=(f"--summary-json=mixed/final_summary.{rank}.json",)
        ).ended().code == 0
    said = subprocess.run([BINARY, "summary", str(folder)], capture_output=True, text=True)
    assert said.returncode != 0 and "they belong to different runs: " in said.stderr, said


def test_directory_without_a_summary_is_said_to_have_none(tmp_path: pathlib.Path):
    said = subprocess.run([BINARY, "summary", str(tmp_path)], capture_output=True, text=True)
    assert said.returncode != 0 and f"{tmp_path}: the directory has no summary (final_summary.json) and no recording (" in said.stderr, said
