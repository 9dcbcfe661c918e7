"""Fixtures: the real exporter on free ports, a fake one, and training scripts in processes of their own."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import threading
import time
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _program() -> str:
    """The program under test: a second link to what cargo built, since maturin moves the first one away while it packs."""
    built, link = ROOT / "target/debug/stepmem", ROOT / "target/debug/under-test/stepmem"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if not built.exists():  # as for tests of a wheel that is there
            return str(built)
        link.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=link.parent) as folder:
            os.link(built, pathlib.Path(folder) / "stepmem")
            os.replace(pathlib.Path(folder) / "stepmem", link)
    return str(link)


BINARY = os.environ.get("STEPMEM_BINARY") or _program()
STUB = str(ROOT / "python/tests/stub")
# pytest-xdist tells its workers how wide its terminal is; tables are fitted to that.
os.environ.pop("COLUMNS", None)

DEADLINE = 300.0
"""Seconds after which something that is awaited counts as hanging: far beyond what a busy machine needs."""

ASKED = """
    import os, time, torch, stepmem
    for step in range(1, 100_000):
        torch.malloc(1000)
        torch.free(1000)
        stepmem.step_end(step)
        time.sleep(0.002)
        if step % 20 == 0:
            stepmem.flush(5)
        if os.path.exists("over"):
            break
    stepmem.flush(5)
"""
"""Takes steps that allocate and free, until there is a file `over`."""

LEAK = """
    import resource, time
    from torch.optim.optimizer import Optimizer
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    optimizer, kept = Optimizer(), []
    for _ in range(700):
        kept.append(b"x" * (1 << 20))
        optimizer.step()
        time.sleep(0.003)
"""
"""A script whose process grows by 1 MiB a step, and may take 1 GiB."""


def await_true(subject: str, condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Polls until `condition` returns something true and returns it. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{subject} did not appear within {seconds} s"
        time.sleep(0.02)


def command_line(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def start_on_terminal(command: "tuple[str, ...]", cwd: pathlib.Path, environment: "Dict[str, str]", lines: int = 24) -> "tuple[int, int]":
    """Starts a program that has a terminal of its own. Returns its process and the terminal's other side."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            # `nohup make test &` ignores these, which a child inherits; what a person's terminal starts does not.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 100, 0, 0))
            os.execve(command[0], command, environment)
        finally:
            os._exit(127)  # it would go on as a second pytest
    return pid, fd


def shown_on_terminal(command: "tuple[str, ...]", cwd: pathlib.Path, environment: "Dict[str, str]") -> str:
    """Returns what a program wrote to a terminal of its own until its end, which it reaches with success."""
    pid, fd = start_on_terminal(command, cwd, environment)
    shown = b""
    try:
        while True:
            part = os.read(fd, 65536)
            if not part:
                break
            shown += part
    except OSError:  # the other side is closed
        pass
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert status == 0, shown
    return shown.decode().replace("\r\n", "\n")


class Exporter:
    """`stepmem serve` without NVML, or another command that starts an exporter."""

    def __init__(self, *arguments: str, command: "tuple[str, ...]" = (BINARY, "serve", "--no-nvml")) -> None:
        self._process = subprocess.Popen(
            [*command, "--log.format", "json", "--web.listen-address", "127.0.0.1:0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("STEPMEM_")},
        )
        self._listening: Dict[str, str] = {}
        self._is_up = threading.Event()
        self._log: List[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        assert self._is_up.wait(DEADLINE), "".join(self._log)

    def _read(self) -> None:
        n_expected = 2
        for line in self._process.stderr or []:
            self._log.append(line)
            fields = json.loads(line).get("fields", {}) if line.startswith("{") else {}
            if fields.get("message") == "listening":
                kind = "unix" if fields["address"].startswith("/") else fields["what"]
                self._listening[kind] = fields["address"]
                if len(self._listening) >= n_expected:
                    self._is_up.set()

    @property
    def url(self) -> str:
        if "unix" in self._listening:
            return "unix://" + self._listening["unix"]
        return "http://" + self._listening["push"]

    @property
    def page(self) -> str:
        return f"http://{self._listening['web']}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._listening['web']}{path}", timeout=DEADLINE) as answer:
            return answer.read().decode()

    def status(self) -> Dict[str, Any]:
        return json.loads(self.get("/api/v1/status"))

    def rank(self, rank: int = 0) -> Dict[str, Any]:
        """Waits until the status has this rank and returns its entry."""

        def find() -> Optional[Dict[str, Any]]:
            ranks = [each for each in self.status()["ranks"] if each["rank"] == rank]
            return ranks[0] if ranks else None

        return await_true(f"rank {rank}", find)

    def metric(self, series: str) -> Optional[float]:
        for line in self.get("/metrics").splitlines():
            if line.startswith(series + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def table(self) -> str:
        """Returns the output of `stepmem status`."""
        arguments = [BINARY, "status", "--url", f"http://{self._listening['web']}"]
        return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)


@pytest.fixture
def start() -> Iterator[Callable[..., Exporter]]:
    """Starts exporters: `start("--flag", …)`. They are killed at the end of the test."""
    started: List[Exporter] = []

    def start_one(*arguments: str, **named: Any) -> Exporter:
        if "--push.listen-address" not in arguments:
            address = "" if "--push.unix-socket" in arguments else "127.0.0.1:0"
            arguments = ("--push.listen-address", address, *arguments)
        started.append(Exporter(*arguments, **named))
        return started[-1]

    yield start_one
    for exporter in started:
        exporter.kill()


@pytest.fixture
def exporter(start: Callable[..., Exporter]) -> Exporter:
    return start()


INFORMATION = re.compile(r"stepmem: (\[step \d+\] |run '.*', rank \d+(?: of \d+)?, pushes to |run '.*' has another live process|the exporter at \S+ is older than this client)")
"""Lines that the client writes at level info."""


class Ended:
    """Output, exit code and duration of a process that has ended. `err` has no lines of level info."""

    def __init__(self, process: "subprocess.Popen[str]", began: float) -> None:
        self.out, err = process.communicate(timeout=DEADLINE)
        lines = err.splitlines(keepends=True)
        self.information = [line.rstrip() for line in lines if INFORMATION.match(line)]
        self.err = "".join(line for line in lines if not INFORMATION.match(line))
        self.code = process.returncode
        self.seconds = time.monotonic() - began


class Training:
    """A training script in a process of its own."""

    def __init__(self, arguments: List[str], url: Optional[str], variables: Dict[str, str], cwd: pathlib.Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPMEM_")}
        paths = [*variables.pop("PATHS", "").split(), str(ROOT / "python")]
        environment = {**kept, "PYTHONPATH": os.pathsep.join(paths), **variables}
        if url is not None:
            environment["STEPMEM_PUSH_URL"] = url
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cwd,
            # `nohup make test &` ignores SIGINT, which a child inherits.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def write_line(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read_line(self) -> str:
        """Returns the next line of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ended(self) -> Ended:
        """Waits for the process to end."""
        return Ended(self.process, self._began)


@pytest.fixture
def without_cuda(tmp_path: pathlib.Path) -> str:
    """A stub of PyTorch without CUDA: a process has the memory of its host only."""
    shutil.copytree(pathlib.Path(STUB) / "torch/optim", tmp_path / "stub/torch/optim")
    (tmp_path / "stub/torch/__init__.py").write_text("from . import optim\n")
    return str(tmp_path / "stub")


@pytest.fixture
def certificates(tmp_path: pathlib.Path) -> pathlib.Path:
    """A certificate for 127.0.0.1 and its key, signed by itself."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=stepmem "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A home directory of this user alone."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def train(tmp_path: pathlib.Path) -> Iterator[Callable[..., Training]]:
    """Starts training scripts: `train(code, url, NAME=value…)`, with `through=["-m", "stepmem"]` before the script."""
    started: List[Training] = []

    def start_one(code: str, url: Optional[str], *arguments: str, through: "tuple[str, ...]" = (), **variables: str) -> Training:
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(textwrap.dedent(code))
        started.append(Training([*through, str(script), *arguments], url, variables, tmp_path))
        return started[-1]

    yield start_one
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
            training.process.communicate()


class Reply:
    """An answer of the fake exporter. `refuses` names fields: a push without them is accepted."""

    def __init__(self, status: int, retry_after: int = 0, refuses: "tuple[str, ...]" = (), **problem: Any) -> None:
        self.status = status
        self.retry_after = retry_after
        self.refuses = refuses
        self.problem = problem


OLD = Reply(400, refuses=("instance", "launch", "high_water_allocated_bytes", "high_water_reserved_bytes"))
"""Refuses what an exporter of before does not know, as that one does."""


class FakeExporter:
    """Answers pushes with the given replies in turn, the last one from then on. None: does not answer."""

    def __init__(self, *replies: "Optional[int | Reply]") -> None:
        self.replies = list(replies)
        self.received: List[str] = []
        """Paths of the requests that came, answered or not."""
        self.may_answer = threading.Event()
        """While it is clear, requests wait for their answers."""
        self.may_answer.set()
        self.actions: List[Dict[str, Any]] = []
        """What it asks for in every answer to a push of steps."""
        self.accepted: "List[tuple[str, str]]" = []
        self.refused: "List[tuple[str, str]]" = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: List[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def records(self) -> List[Dict[str, Any]]:
        """The accepted records."""
        return [json.loads(line) for path, body in self.accepted if path == "/v1/steps" for line in body.splitlines()]

    @property
    def ends(self) -> List[Dict[str, Any]]:
        """The accepted ends, each with the name of its run."""
        found = [(path.split("/"), body) for path, body in self.accepted if path.endswith("/end")]
        return [{"run": urllib.parse.unquote(path[3]), **json.loads(body)} for path, body in found]

    @property
    def holders(self) -> List[Dict[str, Any]]:
        """The accepted reports of searches for holders."""
        return [json.loads(body) for path, body in self.accepted if path == "/v1/holders"]

    def disconnect(self) -> None:
        """Closes all connections."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        file = connection.makefile("rwb")
        try:
            while self._answer(file):
                pass
        except OSError:
            pass

    def _answer(self, file: Any) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                return False
            head += line
        length = next(int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length"))
        path, body = head.split(b" ")[1].decode(), file.read(length).decode()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.received.append(path)
        self.may_answer.wait()
        if reply is None:
            threading.Event().wait()
        if not isinstance(reply, Reply):
            reply = Reply(reply, detail="because")
        objects = [json.loads(line) for line in body.splitlines()]
        objects += [holder for each in objects for holder in each.get("holders", [])]
        unknown = [name for each in objects for name in each if name in reply.refuses]
        problem = {"detail": f"record 0: {unknown[0]}: unknown field `{unknown[0]}`, expected `run`"} if unknown else reply.problem
        if reply.status == 200 or (reply.refuses and not unknown):
            actions = self.actions if path == "/v1/steps" else []
            status, text = 200, json.dumps({"accepted": 1, "actions": actions}, separators=(",", ":"))
            self.accepted.append((path, body))
        else:
            status, text = reply.status, json.dumps({"status": reply.status, **problem})
            self.refused.append((path, body))
        answer = f"HTTP/1.1 {status} Status\r\nRetry-After: {reply.retry_after}\r\nContent-Length: {len(text)}\r\n\r\n{text}"
        file.write(answer.encode())
        file.flush()
        return True

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeExporter]]:
    started: List[FakeExporter] = []

    def start_one(*replies: "Optional[int | Reply]") -> FakeExporter:
        started.append(FakeExporter(*replies))
        return started[-1]

    yield start_one
    for exporter in started:
        exporter.close()
