"""`stepmem run --live`: the table of ranks at the foot of a terminal, drawn by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Any, Callable, Iterator, List, Optional

import pyte
import pytest
from conftest import BINARY, DEADLINE, LEAK, STUB, command_line, is_alive, is_stopped, start_on_terminal
from test_run import OPTIONS, script  # noqa: F401

BAR = re.compile(r"^ *\d+%\|#* *\| \d+/9999$")
HEADS = re.compile(r"^ RANK +STEP +ALLOCATED")

TRAINING = """
    import os, sys, time
    from torch.optim.optimizer import Optimizer
    optimizer, step = Optimizer(), 0
    while not os.path.exists("stop"):
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"\\repoch {step // 50}" + " " * 40, flush=True)
        bar = "#" * (step // 5 % 20)
        print(f"\\r{step // 100:3d}%|{bar:20}| {step}/9999", end="", file=sys.stderr, flush=True)
        time.sleep(0.005)
    print(file=sys.stderr)
"""
"""Prints lines, and a progress bar as tqdm does."""

MANY_RANKS = """
    import json, os, socket, time
    path = os.environ["STEPMEM_PUSH_URL"][len("unix://"):]
    def push(step):
        full = {"allocated_bytes": 1 << 30, "reserved_bytes": 1 << 30, "total_bytes": 1 << 30, "free_bytes": 0}
        lines = [json.dumps({"run": "fleet", "rank": rank, "step": step, "allocated_bytes": 1 << 20, **(full if rank == 1000 else {})}) for rank in range(1024)]
        body = "\\n".join(lines).encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(b"POST /v1/steps HTTP/1.1\\r\\nHost: a\\r\\nContent-Type: application/x-ndjson\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
            answer = connection.makefile("rb").read()
        assert b" 200 " in answer.split(b"\\r\\n")[0], answer
    step = 0
    while not os.path.exists("stop"):
        step += 1
        push(step)
        time.sleep(0.5)
"""


class Screen(pyte.Screen):
    """A screen that takes another size as VTE and xterm do: all of it scrolls, lines below the cursor go first."""

    def resize(self, lines: Optional[int] = None, columns: Optional[int] = None) -> None:
        n_lines = lines or self.lines
        self.set_margins()
        n_above = max(0, self.cursor.y + 1 - n_lines)
        if n_above:
            y = self.cursor.y
            self.cursor.y = 0
            self.delete_lines(n_above)
            self.cursor.y = y - n_above
        for line in range(n_lines, self.lines):
            self.buffer.pop(line, None)
        self.lines = n_lines
        super().resize(n_lines, columns)


class Terminal:
    """A terminal and the program that has it."""

    def __init__(self, cwd: pathlib.Path, home: pathlib.Path, program: str, *arguments: str, lines: int = 24, term: str = "xterm") -> None:
        self.screen = Screen(100, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.cwd = cwd
        self.code: Optional[int] = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "XDG_"))}
        environment = {**kept, "HOME": str(home), "PYTHONPATH": STUB, "PS1": "shell> ", "TERM": term}
        self.pid, self.fd = start_on_terminal((program, *arguments), cwd, environment, lines)

    def await_screen(self, subject: str, condition: Callable[[], Any]) -> Any:
        """Reads what is written to the terminal until `condition` returns something true, and returns that."""
        deadline = time.monotonic() + DEADLINE
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{subject} did not appear:\n" + "\n".join(self.screen.display)
            if select.select([self.fd], [], [], 0.05)[0]:
                self._read()
        return value

    def _read(self) -> bool:
        try:
            data = os.read(self.fd, 4096)
        except OSError:  # the last program that had the terminal has ended
            return False
        self.output += data
        self._stream.feed(data)
        return bool(data)

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def print(self, text: str) -> None:
        """Prints as a program that comes later."""
        self._stream.feed(text.encode())

    def resize(self, lines: int, columns: int) -> None:
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def lines(self) -> List[str]:
        return [line.rstrip() for line in self.screen.display]

    def heads(self) -> List[int]:
        """The lines that begin a table."""
        return [idx for idx, line in enumerate(self.screen.display) if HEADS.match(line)]

    def table(self, n_rows: int = 1) -> Optional[List[str]]:
        """The table's rows, if the only table stands at the foot, and the lines above it scroll."""
        n_above = self.screen.lines - n_rows - 1
        margins = self.screen.margins
        if self.heads() != [n_above] or margins is None or (margins.top, margins.bottom) != (0, n_above - 1):
            return None
        rows = self.lines()[n_above + 1 :]
        return rows if all(rows) else None

    def has_no_table(self) -> bool:
        return not self.heads() and self.screen.margins is None

    def bars(self) -> List[str]:
        return [line for line in self.lines() if BAR.match(line)]

    def epochs(self) -> List[int]:
        return [int(line.split()[1]) for line in self.lines() if re.match(r"epoch \d+$", line)]

    def is_readable(self) -> bool:
        """Whether there are consecutive epochs and one bar behind them, in which the cursor stands."""
        epochs = self.epochs()
        bars = self.bars()
        is_last = len(bars) == 1 and self.lines()[self.screen.cursor.y] == bars[0]
        return is_last and len(epochs) > 1 and epochs == list(range(epochs[0], epochs[-1] + 1))

    def stop(self) -> None:
        (self.cwd / "stop").touch()

    def ended(self) -> int:
        """Reads until no program has the terminal, and returns the exit code of the first one."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.05)[0] and not self._read():
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return self.code
        raise AssertionError("it did not end")


@pytest.fixture
def terminal(tmp_path: pathlib.Path, home: pathlib.Path) -> Iterator[Callable[..., Terminal]]:
    """Starts programs: `terminal(program, arguments…, lines=24)`."""
    started: List[Terminal] = []

    def start_one(program: str, *arguments: str, **named: Any) -> Terminal:
        started.append(Terminal(tmp_path, home, program, *arguments, **named))
        return started[-1]

    yield start_one
    for each in started:
        if each.code is None:
            each.stop()
            each.write("exit\n")  # to a shell
            each.ended()
        os.close(each.fd)


def live(terminal: Callable[..., Terminal], *command: str, **named: Any) -> Terminal:
    return terminal(BINARY, "run", *OPTIONS, "--live", "--", *command, **named)


def training(terminal, script, **named) -> Terminal:
    started = live(terminal, sys.executable, script(TRAINING), **named)
    started.await_screen("the table", started.table)
    return started


def child(pid: int, words: str) -> int:
    """The child whose command line holds these words. The witness's ends with the command's."""
    children = [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return next(each for each in children if words in command_line(each) and "--part=witness" not in command_line(each))


def job_of_shell(terminal, script, ending: str = "") -> Terminal:
    """A shell that runs the training in the foreground, or else as `ending` says."""
    started = terminal("/bin/bash", "--norc", "--noprofile", "-i")
    started.await_screen("the shell", lambda: "shell>" in started.lines()[0])
    started.write(f"{BINARY} run {' '.join(OPTIONS)} --live -- {sys.executable} {script(TRAINING)}{ending}\n")
    return started


def await_shell(started: Terminal) -> None:
    started.await_screen("the shell", lambda: started.has_no_table() and started.lines()[started.screen.cursor.y] == "shell>")


def test_table_stands_at_the_foot_while_lines_and_a_bar_go_on_above(terminal, script):
    started = training(terminal, script)
    step = int(started.table()[0].split()[1])
    started.await_screen("lines that have scrolled", lambda: (started.epochs() or [0])[0] > 5 and started.is_readable())
    rows = started.await_screen("a later step", lambda: (rows := started.table()) and int(rows[0].split()[1]) > step and rows)
    assert rows[0].startswith("    0 "), rows
    started.await_screen("the bar", started.is_readable)


def test_end_of_the_command_leaves_a_terminal_that_scrolls_as_a_whole(terminal, script):
    started = training(terminal, script)
    started.stop()
    assert started.ended() == 0
    assert started.has_no_table()
    assert any("final_summary" in line or "stepmem" in line for line in started.lines())
    assert started.screen.cursor.x == 0
    assert not any(started.lines()[started.screen.cursor.y :]), "what comes next is below"
    started.print("".join(f"later {number}\r\n" for number in range(23)))
    assert started.lines() == [f"later {number}" for number in range(23)] + [""]


def test_table_follows_the_size_of_the_terminal(terminal, script):
    started = training(terminal, script)
    for lines, columns in ((40, 120), (18, 60), (12, 45), (24, 100)):
        started.resize(lines, columns)
        rows = started.await_screen(f"the table in {lines} by {columns}", started.table)
        assert all(len(line) <= columns for line in rows)
        started.await_screen("the bar", started.is_readable)
    started.resize(11, 100)
    started.await_screen("the end of a table on a terminal that is too low", started.has_no_table)
    started.await_screen("the bar", started.is_readable)
    started.stop()
    assert started.ended() == 0


def test_worst_of_many_ranks_are_shown_and_the_others_counted(terminal, script):
    started = live(terminal, sys.executable, script(MANY_RANKS), lines=30)
    rows = started.await_screen("the table", lambda: (rows := started.table(9)) and "HIGH PRESSURE" in rows[0] and rows)
    assert [row.split()[0] for row in rows] == ["1000", *map(str, range(7)), "…"]
    assert rows[-1] == " … 1,016 more"


def test_finding_stands_above_the_table_and_in_it(terminal, script, without_cuda, tmp_path):
    path = tmp_path / "leak.py"
    path.write_text(f"import sys; sys.path.insert(0, {without_cuda!r})\n" + "\n".join(line[4:] for line in LEAK.splitlines()))
    started = live(terminal, sys.executable, str(path))

    def is_found() -> bool:
        rows = started.table() or [""]
        above = "\n".join(started.lines()[: -len(rows) - 1])
        return "MEMORY CREEP" in rows[0] and "stepmem: MEMORY CREEP" in above

    started.await_screen("the finding", is_found)


def test_killed_exporter_leaves_a_terminal_that_scrolls_as_a_whole(terminal, script):
    started = training(terminal, script)
    exporter = child(started.pid, "--part=exporter")
    os.kill(exporter, signal.SIGKILL)
    started.await_screen("the end of the table", started.has_no_table)
    started.await_screen("the bar", started.is_readable)
    started.stop()
    assert started.ended() == 0
    assert "no summary" in " ".join(started.lines())


@pytest.mark.parametrize("stop", ["Ctrl-Z", "SIGSTOP"])
def test_stopped_job_leaves_the_terminal_to_the_shell(terminal, script, stop):
    started = job_of_shell(terminal, script)
    started.await_screen("the table", started.table)
    if stop == "Ctrl-Z":
        started.write("\x1a")
    else:
        os.killpg(child(started.pid, " run "), signal.SIGSTOP)
    started.await_screen("the shell's word", lambda: any("Stopped" in line for line in started.lines()))
    started.await_screen("the end of the table", started.has_no_table)
    started.write("clear; echo $((6 * 7))\n")
    started.await_screen("the shell's answer", lambda: "42" in started.lines())
    assert started.has_no_table()
    started.write("fg\n")
    started.await_screen("the table again", started.table)
    started.await_screen("the bar", started.is_readable)
    started.stop()
    await_shell(started)
    started.write("exit\n")
    assert started.ended() == 0


def test_job_that_is_continued_before_its_table_is_gone_runs_on(terminal, script):
    started = job_of_shell(terminal, script)
    started.await_screen("the table", started.table)
    run = child(started.pid, " run ")
    command, exporter = child(run, "script"), child(run, "--part=exporter")
    os.kill(exporter, signal.SIGSTOP)  # the table stays for now
    os.killpg(run, signal.SIGTSTP)
    started.await_screen("the stop", lambda: is_stopped(command))
    os.killpg(run, signal.SIGCONT)
    started.await_screen("its end", lambda: not is_stopped(command))
    os.kill(exporter, signal.SIGCONT)
    step = int(started.await_screen("the table again", started.table)[0].split()[1])
    started.await_screen("a later step", lambda: (rows := started.table()) and int(rows[0].split()[1]) > step)
    started.stop()
    await_shell(started)
    assert b"Stopped" not in started.output


def test_command_goes_on_and_the_shell_has_the_terminal_if_run_is_killed(terminal, script):
    started = job_of_shell(terminal, script)
    started.await_screen("the table", started.table)
    run = child(started.pid, " run ")
    command = child(run, "script")
    os.kill(run, signal.SIGKILL)
    started.await_screen("the shell's word", lambda: b"Killed" in started.output)
    started.await_screen("the end of the table", started.has_no_table)
    step = started.epochs()[-1]
    started.await_screen("later lines", lambda: started.epochs()[-1] > step)
    assert is_alive(command) and started.has_no_table()
    started.stop()
    started.await_screen("the summary", lambda: b"final_summary" in started.output)
    assert started.has_no_table()


def test_job_in_the_background_draws_nothing(terminal, script):
    started = job_of_shell(terminal, script, " &")
    started.await_screen("lines", lambda: len(started.epochs()) > 10)
    assert started.has_no_table()
    started.write("fg\n")
    started.await_screen("the table", started.table)


def test_two_runs_on_one_terminal_have_the_table_one_after_the_other(terminal, script, tmp_path):
    training = script(TRAINING)
    (tmp_path / "3").mkdir()
    (tmp_path / "7").mkdir()
    run = f"{BINARY} run {' '.join(OPTIONS)} --live -- {sys.executable} {training}"
    started = terminal("/bin/sh", "-c", f"(cd 3; RANK=3 {run}) & (cd 7; RANK=7 {run}) & wait")

    def shown() -> Optional[List[str]]:
        rows = started.table()
        return rows and rows[0].split()

    first, step = started.await_screen("a table", shown)[:2]
    ranks = set()

    def is_drawn_again() -> bool:
        row = shown()
        ranks.update(row[:1] if row else [])
        return bool(row) and row[0] == first and int(row[1]) > int(step) + 500

    started.await_screen("a later step", is_drawn_again)
    assert ranks == {first}, "the other one waits"
    (tmp_path / first / "stop").touch()
    other = started.await_screen("the other table", lambda: (row := shown()) and row[0] != first and row)
    assert {first, other[0]} == {"3", "7"}
    (tmp_path / other[0] / "stop").touch()
    assert started.ended() == 0
    assert started.has_no_table()


@pytest.mark.parametrize("stop", ["Ctrl-C", "SIGTERM to run", "SIGKILL to the command"])
def test_ended_by_a_signal_leaves_a_terminal_that_scrolls_as_a_whole(terminal, script, stop):
    started = training(terminal, script)
    if stop == "Ctrl-C":
        started.write("\x03")
    elif stop == "SIGTERM to run":
        os.kill(started.pid, signal.SIGTERM)
    else:
        os.kill(child(started.pid, "script"), signal.SIGKILL)
    assert started.ended() == {"Ctrl-C": 130, "SIGTERM to run": 143, "SIGKILL to the command": 137}[stop]
    assert started.has_no_table()
    assert not any(started.lines()[started.screen.cursor.y :]), "what comes next is below"


def test_terminal_that_is_too_low_has_a_table_once_it_is_higher(terminal, script):
    started = live(terminal, sys.executable, script(TRAINING), lines=5)
    word = b"stepmem: no table of ranks while the terminal has fewer than 12 rows\r\n"
    started.await_screen("a line that says so", lambda: word in started.output)
    started.await_screen("lines", lambda: (started.epochs() or [0])[-1] > 5 and started.is_readable())
    assert started.has_no_table()
    started.resize(24, 100)
    started.await_screen("the table", started.table)
    started.await_screen("the bar", started.is_readable)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_terminal_that_prints_sequences_gets_none_and_a_line_says_so(terminal, script, term):
    started = live(terminal, sys.executable, script(TRAINING), term=term)
    started.await_screen("lines", lambda: len(started.epochs()) > 3)
    started.stop()
    assert started.ended() == 0
    assert b"\x1b" not in started.output
    assert started.output.count(b"stepmem: no table of ranks: TERM is unset or dumb\r\n") == 1


def test_without_a_terminal_nothing_is_drawn_and_that_is_said_once(script, tmp_path, home):
    path = script("for _ in range(300):\n        import torch, time\n        from torch.optim.optimizer import Optimizer\n        o = globals().setdefault('o', Optimizer())\n        o.step(); time.sleep(0.005)")
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": STUB}
    ended = subprocess.run([BINARY, "run", *OPTIONS, "--live", "--", sys.executable, path], stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, timeout=DEADLINE)
    assert ended.returncode == 0
    assert "\x1b" not in ended.stderr
    assert ended.stderr.count("stepmem: no table of ranks: standard error is not a terminal\n") == 1
