"""`stepmem run`: which signals the command gets and from whom, its stops, and the dispositions that it begins with."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import time
from typing import Iterator

import pytest
from conftest import BINARY, DEADLINE, STUB, await_true, is_alive, is_stopped, start_on_terminal
from test_run import OPTIONS, STEPS, Run, run, script  # noqa: F401

SIGNALED = """
    import os, signal, sys, time
    names = sys.argv[1:]
    def note(number, frame):
        os.write(1, f"{signal.Signals(number).name}\\n".encode())
    for name in names:
        signal.signal(getattr(signal, name), note)
    os.write(1, b"ready\\n")
    sys.stdin.read()
"""


CAUGHT = ["SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT"]


def signaled(run, script) -> Run:  # noqa: F811
    started = run(sys.executable, script(SIGNALED), *CAUGHT)
    assert started.line() == "ready"
    return started


def await_taken(started: Run, name: str) -> None:
    """Awaits that `stepmem run` has read a signal: the system merges it with the next of its kind while it waits to be read."""
    bit = 1 << (getattr(signal, name) - 1)

    def is_taken() -> bool:
        lines = pathlib.Path(f"/proc/{started.pid}/status").read_text().splitlines()
        return not any(int(line.split()[1], 16) & bit for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))

    await_true(f"{name} in stepmem run", is_taken)


def rest(started: Run, last: str = "") -> str:
    """What the command says until its end. Signals reach it in their order: once it says the last one, it has all before."""
    if last:
        await_taken(started, last)
        started.kill(getattr(signal, last))
        assert started.line() == last
    ended = started.ended()
    assert ended.code == 0, ended.err
    return ended.out


def test_signal_to_stepmem_alone_reaches_the_command_once(run, script):  # noqa: F811
    started = signaled(run, script)
    for name in CAUGHT:
        started.kill(getattr(signal, name))
        assert started.line() == name
    assert rest(started) == ""


def test_signal_to_the_whole_group_reaches_the_command_once(run, script):  # noqa: F811
    started = signaled(run, script)
    for name in CAUGHT:
        os.killpg(started.pid, getattr(signal, name))
        assert started.line() == name
    assert rest(started, last="SIGUSR1") == ""


def test_signal_to_each_process_that_names_the_command_reaches_it_once(run, script):  # noqa: F811
    started = signaled(run, script)
    for _ in range(3):
        await_taken(started, "SIGUSR1")
        subprocess.run(["pkill", "-USR1", "-g", str(started.pid), "-f", "script0.py"], check=True)
        assert started.line() == "SIGUSR1"
    assert rest(started, last="SIGUSR2") == ""


def test_signal_reaches_the_command_without_a_signal_monitor(run, script):  # noqa: F811
    started = signaled(run, script)
    monitor = started.child("signal-monitor")
    os.kill(monitor, signal.SIGKILL)
    await_true("the end of the monitor", lambda: not is_alive(monitor))
    started.kill(signal.SIGTERM)
    assert started.line() == "SIGTERM"
    assert rest(started) == ""


class Terminal:
    """A terminal whose session's first process is `stepmem run`."""

    def __init__(self, cwd: pathlib.Path, *command: str) -> None:
        self.pid, self.fd = start_on_terminal((BINARY, "run", *OPTIONS, "--", *command), cwd, dict(os.environ))
        self.seen = ""

    def await_text(self, text: str) -> None:
        while text not in self.seen:
            self.seen += os.read(self.fd, 4096).decode()

    def code(self) -> int:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError("it did not end")


IN_A_FILE = """
    import os, signal, sys
    log = os.open("log", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    def note(number, frame):
        os.write(log, f"{signal.Signals(number).name}\\n".encode())
    for name in sys.argv[1:]:
        signal.signal(getattr(signal, name), note)
    os.write(log, b"ready\\n")
    while "SIGTERM" not in open("log").read():
        signal.pause()
"""


def test_keys_of_the_terminal_reach_the_command_once(tmp_path, script):  # noqa: F811
    terminal = Terminal(tmp_path, sys.executable, script(IN_A_FILE), *CAUGHT)
    log = tmp_path / "log"
    await_true("the command", lambda: log.exists() and "ready" in log.read_text())
    for key, name in ((b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT"), (b"\x1a", "SIGTSTP"), (b"\x03", "SIGINT")):
        n_lines = len(log.read_text().splitlines())
        os.write(terminal.fd, key)
        await_true(name, lambda: len(log.read_text().splitlines()) > n_lines)
        assert log.read_text().splitlines()[-1] == name
    os.kill(terminal.pid, signal.SIGUSR1)  # reaches the command after all before
    await_true("SIGUSR1", lambda: "SIGUSR1" in log.read_text())
    assert log.read_text().split() == ["ready", "SIGINT", "SIGQUIT", "SIGTSTP", "SIGINT", "SIGUSR1"]
    os.close(terminal.fd)  # the line is cut: the kernel tells only the session's first process
    await_true("SIGHUP", lambda: "SIGHUP" in log.read_text())
    os.kill(terminal.pid, signal.SIGUSR2)
    await_true("SIGUSR2", lambda: "SIGUSR2" in log.read_text())
    assert log.read_text().split().count("SIGHUP") == 1
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.code() == 0


def check_that_it_goes_on(started: Run) -> None:
    """Has the command answer a line, and end."""
    assert started.process.stdin is not None
    started.process.stdin.write("on\n")
    started.process.stdin.flush()
    assert started.line() == "on"
    assert started.ended().code == 0


def test_command_that_is_stopped_stops_the_job_and_goes_on_with_it(run):  # noqa: F811
    started = run("sh", "-c", "echo ready; read line; echo $line")
    assert started.line() == "ready"
    for stop in (signal.SIGTSTP, signal.SIGSTOP):
        os.killpg(started.pid, stop)
        pid, status = os.waitpid(started.pid, os.WUNTRACED)
        assert pid == started.pid and os.WIFSTOPPED(status) and os.WSTOPSIG(status) == stop
        os.killpg(started.pid, signal.SIGCONT)
    started.kill(signal.SIGTSTP)  # stepmem alone
    _, status = os.waitpid(started.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTSTP
    started.kill(signal.SIGCONT)
    check_that_it_goes_on(started)


@pytest.fixture
def busy_cpu() -> Iterator[int]:
    """A processor on which a process at normal priority works all the time."""
    cpu = max(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    yield cpu
    process.kill()
    process.wait()


def test_stop_of_run_alone_is_not_mixed_up_with_what_a_slow_monitor_saw_before(run, busy_cpu):  # noqa: F811
    started = run("sh", "-c", "echo ready; read line; echo $line")
    assert started.line() == "ready"
    monitor = started.child("signal-monitor")
    os.sched_setaffinity(monitor, {busy_cpu})
    os.sched_setscheduler(monitor, os.SCHED_IDLE, os.sched_param(0))
    for _ in range(5):
        os.killpg(started.pid, signal.SIGSTOP)
        os.waitpid(started.pid, os.WUNTRACED)
        os.killpg(started.pid, signal.SIGCONT)
        started.kill(signal.SIGTSTP)
        os.waitpid(started.pid, os.WUNTRACED)
        started.kill(signal.SIGCONT)
        command = started.child("sh -c")
        await_true("the command to go on", lambda: not is_stopped(command), 5)
    check_that_it_goes_on(started)


def test_blocked_and_ignored_signals_stay_so(tmp_path, run, script):  # noqa: F811
    path = script("print([line.split()[1] for line in open('/proc/self/status') if line[:6] in ('SigBlk', 'SigIgn')])")
    shell = f"import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [12]); signal.signal(1, signal.SIG_IGN); signal.signal(17, signal.SIG_IGN); os.execv({BINARY!r}, ['stepmem', 'run', '--no-nvml', '--', {sys.executable!r}, {path!r}])"
    ended = subprocess.run([sys.executable, "-c", shell], capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE)
    blocked, ignored = eval(ended.stdout)
    assert int(blocked, 16) == 1 << 11
    assert int(ignored, 16) & 1, "SIGHUP, as nohup has it"
    assert ended.returncode == 0


@pytest.mark.parametrize("n_files", [1024, 4])
@pytest.mark.parametrize("ignored", [(), (signal.SIGPIPE,), (signal.SIGCHLD,), (signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP)])
def test_command_has_the_dispositions_that_run_was_given(tmp_path, home, ignored, n_files):
    changed = (signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP)

    def dispose() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))  # with few files, `run` becomes the command
        for number in changed:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    # Python and shells would change some of them themselves.
    command = [BINARY, "run", *OPTIONS, "--", "grep", "SigIgn", "/proc/self/status"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        restore_signals=False,
        preexec_fn=dispose,
        timeout=60,
    )
    found = int(ended.stdout.split()[1], 16)
    assert [number for number in changed if found >> (number - 1) & 1] == list(ignored), (ended.stdout, ended.stderr)


def test_command_whose_caller_ignores_sigchld_has_its_exit_code_and_its_summary(tmp_path, home, script):  # noqa: F811
    path = script(textwrap.dedent(STEPS) + "sys.exit(7)")
    ended = subprocess.run(
        [BINARY, "run", *OPTIONS, "--", sys.executable, path, "30"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(home), "PYTHONPATH": STUB},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        timeout=60,
    )
    assert ended.returncode == 7 and "steps 1 to 30" in ended.stderr, ended.stderr
