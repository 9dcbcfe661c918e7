"""`stepmem run` ends when the command and the exporter have, whatever the moment at which they do."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
from typing import Optional

import pytest
from conftest import await_true, is_alive
from test_run import Run, run, script  # noqa: F401

PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SYSCALL, PTRACE_SETOPTIONS, PTRACE_O_TRACESYSGOOD = 16, 17, 24, 0x4200, 1
AT_SYSCALL = signal.SIGTRAP | 0x80


def ptrace(request: int, pid: int, data: int = 0) -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes, call.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
    if call(request, pid, None, data) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def syscall(pid: int) -> "tuple[int, int, int]":
    """The number of the system call that a process is in, and its second and third argument."""
    number, _, second, third, *_ = pathlib.Path(f"/proc/{pid}/syscall").read_text().split()
    return int(number), int(second, 16), int(third, 16)


def written(pid: int) -> bytes:
    """What a process that writes is about to write; anything in other system calls."""
    _, address, n_bytes = syscall(pid)
    try:
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(address)
            return memory.read(min(n_bytes, 100))
    except (OSError, OverflowError, ValueError):
        return b""


def go_on(pid: int) -> Optional[int]:
    """Lets the traced process go on to the beginning or the end of its next system call. Returns its exit code once it ended."""
    passed_on = 0
    while True:
        ptrace(PTRACE_SYSCALL, pid, passed_on)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        if os.WSTOPSIG(status) == AT_SYSCALL:
            return None
        passed_on = os.WSTOPSIG(status)


def test_exporter_that_ends_at_once_is_noticed_without_another_signal(run):  # noqa: F811
    """The supervisor is held after it has told the exporter that the command ended, until the exporter has ended too. There is
    nothing left that it could wait for."""
    started: Run = run("sh", "-c", "echo ready; read line; exit 7")
    assert started.line() == "ready"
    pid, exporter = started.pid, started.child("stepmem run --part=exporter")
    await_true("the supervisor to wait", lambda: pathlib.Path(f"/proc/{pid}/syscall").read_text()[0].isdecimal())
    wait, _, _ = syscall(pid)
    try:
        ptrace(PTRACE_ATTACH, pid)
    except OSError as error:
        pytest.skip(f"processes cannot be traced here: {error}")
    os.waitpid(pid, 0)
    ptrace(PTRACE_SETOPTIONS, pid, PTRACE_O_TRACESYSGOOD)
    started.process.stdin.write("\n")  # type: ignore[union-attr]
    started.process.stdin.flush()  # type: ignore[union-attr]
    while b'"ended"' not in written(pid):
        assert go_on(pid) is None
    go_on(pid)
    await_true("the end of the exporter", lambda: not is_alive(exporter))
    calls = []
    while started.process.returncode is None:
        started.process.returncode = go_on(pid)
        if started.process.returncode is None:
            calls.append(syscall(pid)[0])
    assert started.process.returncode == 7
    assert calls and wait not in calls, "it waits for what has come"


def test_children_that_end_while_run_is_stopped_are_noticed_when_it_goes_on(run):  # noqa: F811
    started: Run = run("sh", "-c", "echo ready; read line; exit 7")
    assert started.line() == "ready"
    exporter, command = started.child("stepmem run --part=exporter"), started.child("sh -c")
    started.kill(signal.SIGSTOP)
    os.waitpid(started.pid, os.WUNTRACED)
    started.process.stdin.write("\n")  # type: ignore[union-attr]
    started.process.stdin.flush()  # type: ignore[union-attr]
    await_true("the end of the command", lambda: not is_alive(command))
    os.kill(exporter, signal.SIGKILL)
    await_true("the end of the exporter", lambda: not is_alive(exporter))
    started.kill(signal.SIGCONT)
    ended = started.ended()
    assert ended.code == 7
    assert "no summary: the exporter ended early (137)" in ended.err, ended.err
