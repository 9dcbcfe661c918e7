"""Shared memory that a rank holds, and the memory of its child processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Iterator

import pytest
from conftest import Reply, await_true

from stepmem import _children, _procfs
from stepmem._wire import HOST_PARTS, UNKNOWN

MIB = 1 << 20

KEPT = """
    import mmap, os, stepmem

    def of_file(path, unlink):
        with open(path, "wb+") as file:
            file.write(b"x" * n)
            file.flush()
            memory = mmap.mmap(file.fileno(), n)
        try:
            assert sum(memory[at] for at in range(0, n, 4096))
            if not unlink:
                report()
        finally:
            os.unlink(path)
        return memory

    def filled(memory):
        memory[:n] = b"x" * n
        return memory

    def of_memfd(n_bytes):
        file = os.memfd_create("buffer")
        os.ftruncate(file, n_bytes)
        return filled(mmap.mmap(file, n_bytes))

    def report():
        stepmem.step_end(1)
        assert stepmem.flush(60)

    n, own = 64 << 20, f"{os.getpid()}_4711_0"
    small = mmap.mmap(-1, 1 << 12)
    small[:] = b"x" * (1 << 12)
    kept = %s
    report()
"""
"""Holds 64 MiB when it takes its first step."""

COUNTED = {
    "anonymous": "filled(mmap.mmap(-1, n))",
    "memfd with a hole": "of_memfd(4 * n)",
    "unlinked": "of_file('/dev/shm/data' + own, True)",
    "torch, file_system": "of_file('/dev/shm/torch_' + own, False)",
    "torch, file_descriptor": "of_file('/dev/shm/torch_' + own, True)",
    "beside a data set": "[of_memfd(n), of_file('/dev/shm/data' + own, False)]",
}

NOT_COUNTED = {
    "data set on tmpfs": "of_file('/dev/shm/data' + own, False)",
    "data set like torch's": "of_file('/dev/shm/torch_data_' + own, False)",
    "object store of Ray": "of_file('/dev/shm/plasma' + own, True)",
    "file on a disk": "of_file('data', False)",
}


@pytest.mark.parametrize("kind", [*COUNTED, *NOT_COUNTED])
def test_shared_memory_counts_unless_it_is_a_file(fake, train, kind):
    exporter = fake(200)
    ended = train(KEPT % {**COUNTED, **NOT_COUNTED}[kind], exporter.url).ended()
    assert ended.code == 0, ended.err
    record = exporter.records[0]
    n_bytes = 64 * MIB if kind in COUNTED else 0
    assert record.get("host_shared_bytes", 0) == pytest.approx(n_bytes, abs=MIB), kind
    assert n_bytes < record["allocated_bytes"] < n_bytes + 40 * MIB, "a part of what is allocated, next to private memory"
    assert record["reserved_bytes"] == record["allocated_bytes"]
    assert "host_split_bytes" not in record or record["host_split_bytes"] == 0


def test_shared_memory_grows_step_by_step(fake, train):
    exporter = fake(200)
    ended = train(
        """
        import mmap, stepmem
        kept = []
        for step in range(1, 201):
            kept.append(mmap.mmap(-1, 1 << 20))
            kept[-1][:] = b"x" * (1 << 20)
            stepmem.step_end(step)
            if step % 20 == 0:
                assert stepmem.flush(60)
        """,
        exporter.url,
    ).ended()
    assert ended.code == 0, ended.err
    allocated = {record["step"]: record["allocated_bytes"] for record in exporter.records}
    assert len(allocated) == 200
    increments = sorted(allocated[step] - allocated[step - 1] for step in range(41, 201))
    assert increments[8] == pytest.approx(MIB, rel=0.2) and increments[-8] == pytest.approx(MIB, rel=0.2)
    assert (allocated[200] - allocated[40]) / 160 == pytest.approx(MIB, rel=0.05)


def test_program_without_shared_memory_pushes_no_part_of_it(fake, train):
    exporter = fake(200)
    ended = train("import stepmem\nfor step in range(9): stepmem.step_end(step)\nassert stepmem.flush(60)", exporter.url).ended()
    assert ended.code == 0, ended.err
    assert not [key for record in exporter.records for key in record if key.startswith(("host_", "workers", "child_"))]


def test_exporter_of_before_gets_all_but_the_parts(fake, train):
    exporter = fake(Reply(400, refuses=HOST_PARTS))
    ended = train(KEPT % COUNTED["anonymous"], exporter.url).ended()
    assert ended.code == 0, ended.err
    assert exporter.refused and exporter.records
    assert all(record["instance"] and record["allocated_bytes"] > 64 * MIB for record in exporter.records)


SHARING = """
    import mmap, os, stepmem, time
    memory = mmap.mmap(-1, 64 << 20)
    memory[:] = b"x" * len(memory)
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ["STEPMEM_RANK"] = str(rank)
            assert sum(memory[at] for at in range(0, len(memory), 4096))
            while not os.path.exists("over"):
                stepmem.step_end()
                time.sleep(0.02)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
"""


def test_each_of_two_ranks_counts_half_of_what_both_hold(exporter, train, tmp_path):
    job = train(SHARING, exporter.url, STEPMEM_RUN="shared")

    def parts():
        return [(rank.get("host") or {}).get("split_bytes") for rank in exporter.status()["ranks"]]

    try:
        await_true("each counts its half", lambda: parts() == [32 * MIB, 32 * MIB], 60.0)
        ranks = exporter.status()["ranks"]
        assert [rank["host"]["shared_bytes"] for rank in ranks] == [32 * MIB, 32 * MIB]
        assert not any("shared memory" in rank["host"]["sentence"] for rank in ranks), "so little is not worth a word"
    finally:
        (tmp_path / "over").touch()
    assert job.ended().code == 0


CHILDREN = """
    import multiprocessing, os, subprocess, sys, time, stepmem

    def work(n, own=None):
        held = bytearray(b"x") * n
        while not os.path.exists("over"):
            time.sleep(0.02)

    if __name__ == "__main__":
        context = multiprocessing.get_context(%r)
        workers = [context.Process(target=work, args=(48 << 20,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        code = "import os, time; held = bytearray(b'x') * (32 << 20)\\nwhile not os.path.exists('over'): time.sleep(0.02)"
        other = subprocess.Popen([sys.executable, "-c", code])
        rank = "import os, time, stepmem; held = bytearray(b'x') * (256 << 20)\\n" \\
            "while not os.path.exists('over'): stepmem.step_end(); time.sleep(0.02)"
        other_rank = subprocess.Popen([sys.executable, "-c", rank], env={**os.environ, "STEPMEM_RANK": "1"})
        with open("pids", "w") as file:
            file.write(f"{workers[0].pid} {other.pid}")
        while not os.path.exists("over"):
            stepmem.step_end()
            time.sleep(0.02)
        other.wait(), other_rank.wait()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_memory_of_workers_and_of_other_children_is_shown(exporter, train, tmp_path, method):
    job = train(CHILDREN % method, exporter.url, STEPMEM_RUN="family", STEPMEM_RANK="0")

    def host():
        ranks = [rank for rank in exporter.status()["ranks"] if rank["rank"] == 0]
        return ranks[0].get("host") or {} if ranks else {}

    def has_all():
        workers, others = host().get("workers") or {}, host().get("child_processes") or {}
        is_done = workers.get("count") == 2 and workers["bytes"] >= 96 * MIB and (others.get("bytes") or 0) >= 32 * MIB
        return is_done and others["bytes"] < 200 * MIB and len(exporter.status()["ranks"]) == 2

    try:
        await_true("both workers and the other child, but not the rank", has_all)
        assert host()["workers"]["bytes"] < 96 * MIB + 64 * MIB
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        os.kill(pids[0], signal.SIGKILL)
        await_true("a worker that died is gone", lambda: host()["workers"]["count"] == 1)
        assert "1 worker holds " in host()["sentence"]
    finally:
        (tmp_path / "over").touch()
    assert job.ended().code == 0


def test_memory_of_a_child_that_cannot_be_read_is_unknown(monkeypatch):
    inherited = bytearray(b"x") * (32 << 20)
    holding = Holding()  # it shares what this process holds
    pid = holding.process.pid or 0
    await_true("it shares what it inherited", lambda: (_children._shared_bytes(pid) or 0) > len(inherited))
    shared = _children._shared_bytes(pid)
    lines = _children.lines
    monkeypatch.setattr(_children, "lines", lambda path, marks: iter(()) if path.endswith("smaps_rollup") else lines(path, marks))
    assert _children._shared_bytes(pid) == pytest.approx(shared, rel=0.1), "an old kernel"
    monkeypatch.setattr(_children, "lines", lambda path, marks: iter(()))
    assert _children._shared_bytes(pid) == UNKNOWN, "the kernel refuses"
    assert _children._shared_bytes(2**22 + 1) is None, "it has ended"
    monkeypatch.setattr(_procfs, "read", lambda path: None)
    assert (_children._shared_bytes(pid), _children.anonymous_of(pid)) == (UNKNOWN, 0), "it is hidden"
    holding.end()


class Holding:
    """A worker that holds some memory until it is told to end."""

    def __init__(self) -> None:
        self._over = multiprocessing.get_context("fork").Event()
        self.process = multiprocessing.get_context("fork").Process(target=self._hold, daemon=True)
        self.process.start()

    def _hold(self) -> None:
        held = bytearray(b"x") * (32 * MIB)
        self._over.wait()
        del held

    def end(self) -> None:
        self._over.set()
        self.process.join()


@pytest.fixture
def worker(monkeypatch) -> Iterator[Holding]:
    monkeypatch.setattr(_children, "AGE_SECONDS_MIN", 0.0)
    holding = Holding()
    pid = holding.process.pid or 0
    await_true("it holds its memory", lambda: _children.anonymous_of(pid) - (_children._shared_bytes(pid) or 0) > 32 * MIB)
    yield holding
    holding.end()


def test_workers_that_end_between_two_readings_count_until_the_next_that_is_due(worker, monkeypatch):
    monkeypatch.setattr(_children, "children_of", lambda pid: None)  # only workers of this process, not of the tests'
    children = _children.ChildProcesses()
    first = children.read(100.0)
    assert first is not None and first.workers == 1 and first.workers_bytes > 32 * MIB
    worker.end()
    due_at = children._budget.due_at
    assert due_at >= 101.0 and children.read(due_at - 0.001) is None, "it is not time"
    assert children.read(due_at) == (*(0,) * 7, UNKNOWN), "all have ended"


def test_worker_that_ends_while_it_is_read_is_left_out(worker, monkeypatch):
    monkeypatch.setattr(_children, "children_of", lambda pid: None)
    lines = _children.lines

    def read_late(path, marks):
        worker.end()
        return lines(path, marks)

    monkeypatch.setattr(_children, "lines", read_late)
    children = _children.ChildProcesses()
    children.read(100.0)
    assert children._sum() == (*(0,) * 7, UNKNOWN)
