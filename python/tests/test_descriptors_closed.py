"""A program that closes all descriptors between any two lines of the client, and has its own files under their numbers at once: those are
neither closed, written to nor read from."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import time
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import pytest

from stepmem import _cgroup, _children, _launch, _procfs, _readers, _settings, _shared_memory, _snapshot_file, _stats
from stepmem._connection import Connection
from stepmem._descriptors import KeptFile
from stepmem._holders import source
from stepmem._wire import JSON_LINES, STEPS_PATH, Request

CONTENT = b"of the program"


class Program:
    """Closes what was opened since it began, and opens a file of its own under each of the numbers."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._before = numbers()
        self.files: Dict[int, int] = {}
        """The inodes of its files, by number."""

    def closes_all(self) -> None:
        taken = numbers() - self._before - set(self.files)
        for number in taken:
            path = self._path / f"file{len(self.files)}"
            path.write_bytes(CONTENT)
            own = os.open(path, os.O_RDWR)
            os.dup2(own, number)
            if own != number:
                os.close(own)
            self.files[number] = os.fstat(number).st_ino

    def harm(self) -> List[str]:
        """Returns what became of its files, and closes them."""
        found: List[str] = []
        for number, inode in self.files.items():
            try:
                status = os.fstat(number)
            except OSError:
                found.append(f"{number} is closed")
                continue
            if status.st_ino != inode:
                found.append(f"{number} is another file")
                continue
            if os.lseek(number, 0, os.SEEK_CUR) or os.pread(number, 100, 0) != CONTENT:
                found.append(f"{number} was read or written to")
            os.close(number)
        for number in numbers() - self._before:
            os.close(number)  # a reading that the program ended cannot close what is left of it
        return found


def numbers() -> Set[int]:
    found = set()
    for number in range(256):
        try:
            os.fstat(number)
            found.add(number)
        except OSError:
            pass
    return found


class Raised(TimeoutError):
    """What a signal handler of the program raises; an OSError, as those of the system."""


def raises() -> None:
    raise Raised


def interrupted(run: Callable[[], Any], program: Callable[[], None], at: int) -> bool:
    """Runs a function of the client, and one of the program before the line `at` of the client. Returns whether there was such a line.

    What the program's function raises must come out of the client's."""
    n_lines = 0
    is_on_its_way = False

    def trace(frame: FrameType, event: str, _: Any) -> Optional[Callable[..., Any]]:
        nonlocal n_lines, is_on_its_way
        if "/stepmem/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            n_lines += 1
            if n_lines == at:
                is_on_its_way = True
                program()
                is_on_its_way = False
        return trace

    sys.settrace(trace)
    try:
        run()
    except Raised:
        is_on_its_way = False
    except (OSError, ValueError):
        pass
    finally:
        sys.settrace(None)
    assert not is_on_its_way, f"line {at}: what the program raised is lost"
    return n_lines >= at


SERVER = """
import socket, threading

def serve(connection):
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
"""An exporter that accepts everything, in a process of its own: its descriptors are not the client's."""


@pytest.fixture(scope="module")
def answering() -> Iterator[int]:
    """The port of an exporter."""
    started = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert started.stdout is not None
    yield int(started.stdout.readline())
    started.kill()
    started.wait()


def read_kept() -> None:
    kept = KeptFile("/proc/self/statm")
    for _ in range(3):
        kept.checked(kept.read(128))
    kept.close()


def connected(port: int) -> Connection:
    return Connection(_settings.Settings.read({"STEPMEM_PUSH_URL": f"http://127.0.0.1:{port}"}))


def push(port: int) -> None:
    connection = connected(port)
    try:
        for _ in range(2):
            connection.post(Request(STEPS_PATH, JSON_LINES, b"{}"), time.monotonic() + 60)
    finally:
        connection.close()


def forget(port: int) -> None:
    """A connection that nothing closes before it is freed."""
    connection = connected(port)
    connection.post(Request(STEPS_PATH, JSON_LINES, b"{}"), time.monotonic() + 60)
    del connection


USES: Dict[str, Callable[[pathlib.Path, int], Any]] = {
    "a small file": lambda folder, port: _procfs.read("/proc/self/status"),
    "mappings": lambda folder, port: list(_procfs.lines("/proc/self/smaps_rollup", (b"Rss",))),
    "a thread's name": lambda folder, port: _procfs.name_own_thread(),
    "threads and children": lambda folder, port: _procfs.children_of(os.getpid()),
    "child processes": lambda folder, port: _children.ChildProcesses().read(0.0),
    "shared memory": lambda folder, port: _shared_memory._devices(),
    "a control group": lambda folder, port: _cgroup.tightest(),
    "the machine": lambda folder, port: _readers._machine(),
    "the launch": lambda folder, port: (_launch._stat(os.getpid(), 4), _launch._is_rank(os.getpid()), _launch._boot_id(), _launch._started_at("1")),
    "a token": lambda folder, port: _settings.read_token(str(folder / "token")),
    "a source": lambda folder, port: source.line_of(str(folder / "token"), source.Binding(source.Form.GLOBAL, "secret")),
    "a snapshot": lambda folder, port: _snapshot_file._dump(str(folder / "snapshot"), {"a": ["b"] * 10}),
    "a peak": lambda folder, port: (_stats._peak(), _stats.reset_peak_memory("cpu")),
    "a kept file": lambda folder, port: read_kept(),
    "a connection": lambda folder, port: push(port),
    "a forgotten connection": lambda folder, port: forget(port),
}


@pytest.mark.parametrize("use", USES)
def test_files_of_the_program_under_the_clients_numbers_are_left_alone(use: str, tmp_path: pathlib.Path, answering: int) -> None:
    (tmp_path / "token").write_text("secret\n")
    USES[use](tmp_path, answering)  # what is opened once, is
    n_taken, at = 0, 1
    while True:
        program = Program(tmp_path)
        has_line = interrupted(lambda: USES[use](tmp_path, answering), program.closes_all, at)
        n_taken += len(program.files)
        harm = program.harm()
        assert not harm, f"line {at}: {harm}"
        if not has_line:
            break
        at += 1
    assert n_taken > 0, "the client had something open at some line"


@pytest.mark.parametrize("use", [use for use in USES if use != "a forgotten connection"])  # in `__del__`, Python ignores what is raised
def test_handler_that_raises_leaves_no_descriptor_of_the_client(use: str, tmp_path: pathlib.Path, answering: int) -> None:
    (tmp_path / "token").write_text("secret\n")
    USES[use](tmp_path, answering)
    at = 1
    while True:
        before = numbers()
        has_line = interrupted(lambda: USES[use](tmp_path, answering), raises, at)
        gc.collect()  # the error's traceback has what was open
        assert numbers() <= before, f"line {at}"
        if not has_line:
            break
        at += 1
