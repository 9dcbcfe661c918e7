"""What child processes hold: leaks in workers and environments are findings of their rank; what has an end is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from typing import Any, Dict, List

import pytest
from conftest import BINARY, await_true

from stepmem import _children, _shared_memory
from stepmem._settings import LAUNCHERS
from stepmem._shared_memory import SharedFiles
from stepmem._wire import UNKNOWN

MIB = 1 << 20

LOOP = """
    import multiprocessing, os, sys, time, stepmem

    MIB = 1 << 20

    def kept(n_bytes):
        return bytearray(b"x") * n_bytes

    %s

    def train(at_step=lambda step: None):
        step = 0
        while not os.path.exists("over"):
            step += 1
            at_step(step)
            stepmem.step_end(step)
            time.sleep(0.05)

    if __name__ == "__main__":
        main()
"""

PERSISTENT = """
    def work(connection):
        cache = []
        for item in iter(connection.recv, None):
            cache.append(kept(MIB // 8))
            connection.send(item)

    def main():
        context, ends = multiprocessing.get_context("fork"), []
        for _ in range(3):
            own, other = context.Pipe()
            context.Process(target=work, args=(other,), daemon=True).start()
            ends.append(own)

        def fetch(step):
            for end in ends:
                end.send(step)
            assert [end.recv() for end in ends] == [step] * 3

        train(fetch)
"""
"""Three workers that keep 128 KiB of each batch: 384 KiB a step."""

ENVIRONMENTS = """
    def play(n, connection):
        history = []
        for action in iter(connection.recv, None):
            if n == 1:
                history.append(kept(MIB // 4))
            connection.send(action)

    def main():
        context, ends = multiprocessing.get_context("spawn"), []
        for n in range(3):
            own, other = context.Pipe()
            context.Process(target=play, args=(n, other), daemon=True).start()
            ends.append(own)

        def act(step):
            for end in ends:
                end.send(step)
            assert [end.recv() for end in ends] == [step] * 3

        train(act)
"""
"""Three environments, of which one keeps 256 KiB of each step."""

REPLACED = """
    def work(stop):
        batches = []
        while not stop.is_set() and not os.path.exists("over"):
            batches.append(kept(8 * MIB))
            del batches[:-6]
            time.sleep(0.1)

    def main():
        context, started = multiprocessing.get_context("fork"), []

        def begin(step):
            if step % 120 == 1:
                for stop, process in started:
                    stop.set()
                    process.join()
                stop = context.Event()
                started[:] = [(stop, context.Process(target=work, args=(stop,), daemon=True)) for _ in range(2)]
                for _, process in started:
                    process.start()

        train(begin)
"""
"""Workers that are replaced every six seconds. Each holds six batches."""

FILLING = """
    def work():
        queue = []
        while not os.path.exists("over"):
            if len(queue) < 40:
                queue.append(kept(MIB))
            time.sleep(0.3)

    def main():
        for _ in range(2):
            multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
        train()
"""
"""Workers whose queues fill within 12 seconds."""

COPYING = """
    def work(data):
        time.sleep(3)
        for at in range(0, len(data), 4096):
            data[at] = 1  # as a count of references does
            if at % (8 * MIB) == 0:
                time.sleep(1)
        while not os.path.exists("over"):
            time.sleep(0.05)

    def main():
        data = kept(200 * MIB)
        multiprocessing.get_context("fork").Process(target=work, args=(data,), daemon=True).start()
        train()
"""
"""A worker that touches each page of the data of its parent within half a minute."""


@pytest.fixture
def runs(exporter, train, tmp_path):
    """Trains programs side by side, each in a run and a folder of its own, until the test ends."""
    jobs: List[Any] = []

    def start(**programs: str) -> None:
        for name, program in programs.items():
            (tmp_path / name).mkdir()
            code = f"    import os\n    os.chdir({str(tmp_path / name)!r})\n" + LOOP % program.strip()
            jobs.append(train(code, exporter.url, STEPMEM_RUN=name, STEPMEM_CAPACITY="1GiB"))

    yield start
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            (folder / "over").touch()
    for job in jobs:
        assert job.ended().code == 0


def findings(exporter, run: str) -> List[Dict[str, Any]]:
    return [finding for finding in exporter.status()["findings"] if finding["run"] == run]


def test_leaks_of_workers_and_environments_are_found_and_what_ends_is_not(exporter, runs):
    runs(persistent=PERSISTENT, environments=ENVIRONMENTS, replaced=REPLACED, filling=FILLING, copying=COPYING)

    def creep(run: str) -> Any:
        return [of for of in findings(exporter, run) if of["kind"] == "HOST_CREEP_CONFIRMED"]

    persistent = await_true("the leak of the workers", lambda: creep("persistent"))[0]
    assert persistent["sentence"].startswith("the memory of 3 workers grows by "), persistent
    assert persistent["evidence"]["slope_bytes_per_step"] == pytest.approx(3 * MIB / 8, rel=0.1)
    environments = await_true("the leak of one environment", lambda: creep("environments"))[0]
    assert environments["evidence"]["slope_bytes_per_step"] == pytest.approx(MIB / 4, rel=0.1)
    for healthy in ("replaced", "filling", "copying"):
        assert findings(exporter, healthy) == [], healthy

    def copied() -> Any:
        (rank,) = [rank for rank in exporter.status()["ranks"] if rank["run"] == "copying"]
        sentence = rank["host"]["sentence"]
        return sentence if "stopped being shared" in sentence else None

    # It is read once a minute.
    sentence = await_true("the pages that stopped being shared", copied)
    assert " MiB of that are pages that stopped being shared, at most " in sentence, sentence
    assert 200 <= float(sentence.split("; ")[1].split(" MiB")[0]) < 230, sentence
    assert findings(exporter, "copying") == []


HANDED_OVER = """
    from multiprocessing import shared_memory

    def main():
        made = []

        def hand_over(step):
            block = shared_memory.SharedMemory(create=True, size=MIB)
            block.buf[:] = bytes(MIB)
            block.close()
            made.append(block)

        try:
            train(hand_over)
        finally:
            for block in made:
                block.unlink()
"""
"""Hands over blocks of 1 MiB that are closed and not unlinked until the end."""


def test_files_that_stay_in_shared_memory_are_a_finding(exporter, runs):
    runs(shm=HANDED_OVER)

    def part() -> Any:
        ranks = exporter.status()["ranks"]
        sentence = ranks[0].get("host", {}).get("sentence", "") if ranks else ""
        return [part for part in sentence.split("; ") if part.startswith("/dev/shm") and part.endswith("/step")]

    (told,) = await_true("the growth of /dev/shm", part)
    assert 512 < float(told.rpartition("+")[2].split()[0]) * (1024 if "MiB/step" in told else 1) < 2048, told
    (finding,) = await_true("the finding", lambda: [of for of in findings(exporter, "shm") if of["kind"] == "HOST_CREEP_CONFIRMED"])
    assert finding["sentence"].startswith("what is in /dev/shm grows by 1"), finding
    assert finding["evidence"]["signal"] == "shm"
    assert finding["evidence"]["slope_bytes_per_step"] == pytest.approx(MIB, rel=0.1)


@pytest.mark.parametrize(("local_rank", "reads"), [("", True), ("0", True), ("3", False)])
def test_first_rank_of_a_machine_reads_the_files(monkeypatch, local_rank, reads):
    for name in [name for variables in LAUNCHERS for name in variables]:
        monkeypatch.delenv(name, raising=False)
    if local_rank:
        monkeypatch.setenv("RANK", "11")
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(_shared_memory, "FILES_GROWN", 0)
    assert (SharedFiles().read(0.0) is not None) == reads


def test_child_processes_beyond_the_bound_are_counted(monkeypatch):
    monkeypatch.setattr(_children, "PROCESSES_MAX", 2)
    monkeypatch.setattr(_children, "AGE_SECONDS_MIN", 0.0)
    children = _children.ChildProcesses()
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        few = children.read(0.0)
        assert few is not None and few.others == 2 and few.unread == UNKNOWN
        started += [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
        many = children.read(100.0)
        assert many is not None and many.unread == 3 and many.others_bytes == many.others_own == UNKNOWN
        for process in started[2:]:
            process.kill()
            process.wait()
        again = children.read(200.0)
        assert again is not None and again.others == 2 and again.unread == 0 and again.others_bytes > 0
    finally:
        for process in started:
            process.kill()
            process.wait()


LOADER = """
    import sys, time, torch

    class Samples(torch.utils.data.Dataset):
        def __init__(self):
            self.decoded = {}

        def __len__(self):
            return 1 << 30

        def __getitem__(self, idx):
            self.decoded[idx] = torch.randn(1 << 17)
            return self.decoded[idx][:64]

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=2, persistent_workers=True)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.1)
        if step == 700:
            break
"""
"""Two workers of a DataLoader, which keep 1 MiB of each batch."""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch")
def test_leak_of_a_data_loader_fails_a_gate(tmp_path):
    script = tmp_path / "leak.py"
    script.write_text(textwrap.dedent(LOADER))
    command = [BINARY, "run", "--fail-on", "creep:warning", "--", sys.executable, str(script)]
    environment = {**os.environ, "STEPMEM_CAPACITY": "3GiB", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 3, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert "MEMORY CREEP (host)" in last and "the memory of 2 workers gr" in last and last.endswith("(--fail-on creep:warning)"), ended.stderr
    assert "each worker keeps" in ended.stderr and "out of memory in about" in ended.stderr, ended.stderr
