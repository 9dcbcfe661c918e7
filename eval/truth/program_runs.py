"""Runs a drawn program under `stepmem run`, and collects what stepmem says while it runs and after its end."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .limits import within
from .observed import Moment, Observed
from .programs import Program

POLL_SECONDS = 0.7

TIMEOUT_SECONDS = 120.0

ANSWER_SECONDS = 5.0
"""How long the exporter may take for one answer."""

PAGE = re.compile(r"^stepmem: watching; page (http://\S+?)/?$", re.M)
"""The line with the address of the exporter."""

TRUTH_FILE = "truth.jsonl"


class RunFailed(Exception):
    """A program could not be run, or its documents are missing."""


class Answer(NamedTuple):
    """The two documents of a running exporter."""

    status: Dict[str, Any]
    metrics: str


def run(stepmem: pathlib.Path, python: pathlib.Path, program: Program, folder: pathlib.Path) -> Tuple[Observed, List[Dict[str, Any]]]:
    """Runs a program in a new folder, and returns what was said of it and the lines that it counted."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in program.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    # The link of a virtual environment's interpreter must not be resolved: it tells Python where the environment is.
    command = [os.path.abspath(stepmem), "run", "--web.listen-address=127.0.0.1:0", *program.arguments, "--", os.path.abspath(python), "main.py"]
    with within(program.truth.limit, program.truth.capacity, folder.name) as limited:
        with open(folder / "terminal.txt", "wb") as terminal:
            streams = {"stdin": subprocess.DEVNULL, "stdout": terminal, "stderr": terminal}
            started = subprocess.Popen(command, cwd=folder, env=_environment(program, folder), preexec_fn=limited, start_new_session=True, **streams)
        try:
            answers = _poll(started, program, folder / "terminal.txt")
        finally:
            _end(started)
    said = (folder / "terminal.txt").read_text(errors="replace")
    counted = _counted(program, folder, said)
    summary, card = _summary(program, folder, said)
    observed = Observed(tuple(_moments(answers, counted)), summary, card, started.returncode)
    return observed, counted


def _environment(program: Program, folder: pathlib.Path) -> Dict[str, str]:
    """Returns the environment of the program: this one without settings of stepmem and Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON"))}
    return {**kept, **program.environment, "TRUTH": str((folder / TRUTH_FILE).resolve())}


def _poll(started: "subprocess.Popen[bytes]", program: Program, terminal: pathlib.Path) -> List[Answer]:
    """Asks the exporter until the command has ended."""
    answers: List[Answer] = []
    until = time.monotonic() + TIMEOUT_SECONDS
    due = time.monotonic() + POLL_SECONDS
    while True:
        try:
            started.wait(max(0.0, due - time.monotonic()))
            return answers
        except subprocess.TimeoutExpired:
            due = time.monotonic() + POLL_SECONDS
        if time.monotonic() > until:
            got = _tail(terminal.read_text(errors="replace"))
            raise RunFailed(f"{program.name}: not ended after {TIMEOUT_SECONDS:.0f} s; the terminal got:\n{got}")
        page = PAGE.search(terminal.read_text(errors="replace"))
        answer = _ask(page[1]) if page else None
        if answer is None and page and started.poll() is None and _is_refused_for_long(answers, until):
            raise RunFailed(f"{program.name}: the exporter at {page[1]} never answered")
        if answer is not None:
            answers.append(answer)


def _is_refused_for_long(answers: List[Answer], until: float) -> bool:
    """Returns whether an exporter that is up by its line has answered nothing for half of the time."""
    return not answers and time.monotonic() > until - TIMEOUT_SECONDS / 2


def _ask(page: str) -> Optional[Answer]:
    """Returns the documents of the exporter; None where it does not answer any more (or not yet)."""
    try:
        return Answer(json.loads(_get(f"{page}/api/v1/status")), _get(f"{page}/metrics"))
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def _end(started: "subprocess.Popen[bytes]") -> None:
    """Ends the command and all that it started, which is in a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in _groups(started.pid):
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 2.0
        while _groups(started.pid) and time.monotonic() < deadline:
            started.poll()
            time.sleep(0.02)
    started.wait()


def _groups(session: int) -> List[int]:
    """Returns the process groups of a session that have a live process."""
    found = set()
    for each in pathlib.Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                state, _, group, of = (each / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(of) == session and state != "Z":
                found.add(int(group))
    return sorted(found)


def _counted(program: Program, folder: pathlib.Path, card: str) -> List[Dict[str, Any]]:
    """Returns the lines that the program counted."""
    path = folder / TRUTH_FILE
    if not path.exists():
        raise RunFailed(f"{program.name}: it counted no step; the terminal got:\n{_tail(card)}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def _summary(program: Program, folder: pathlib.Path, said: str) -> Tuple[Dict[str, Any], str]:
    """Returns the summary as JSON and as text: there has to be one."""
    paths = sorted(folder.glob("logs/*/2*/final_summary.json"))
    if len(paths) != 1:
        raise RunFailed(f"{program.name}: {len(paths)} summaries; the terminal got:\n{_tail(said)}")
    summary: Dict[str, Any] = json.loads(paths[0].read_text())
    return summary, paths[0].with_suffix(".txt").read_text()


def _moments(answers: List[Answer], counted: List[Dict[str, Any]]) -> List[Moment]:
    """Returns the answers after the first step, with the newest step that the exporter had."""
    moments = []
    for answer in answers:
        ranks = answer.status["ranks"]
        if len(ranks) == 1:
            moments.append(Moment(_step(ranks[0], counted), *answer))
        elif ranks:
            raise RunFailed(f"{len(ranks)} ranks in the status of a program that is one process: {[each['run'] for each in ranks]}")
    return moments


def _step(rank: Dict[str, Any], counted: List[Dict[str, Any]]) -> int:
    """Returns the step of a rank; of one that is watched by time or by calls, the last that the program had counted when it pushed."""
    if not rank.get("is_by_time") and rank.get("unit") != "calls":
        return int(rank["step"])
    return max((line["step"] for line in counted if line["time"] <= rank["last_push_time"]), default=0)


def _tail(text: str) -> str:
    return text[-2000:]
