"""A standard error that cannot be written leaves the program its exit code: Python exits with 120 where its buffers hold what it
could not write."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any, Iterator

import pytest
from conftest import BINARY, ROOT, STUB, await_true
from test_run import OPTIONS, STEPS, run, script  # noqa: F401

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""This environment, in which Python buffers what it writes, as by default."""

LOGS = {
    "none": "",
    "imported": "import logging",
    "configured": "import logging; logging.basicConfig(level=logging.INFO)",
    "to stdout": "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout)",
    "filtered": "import logging; logging.basicConfig(level=logging.DEBUG); logging.getLogger('stepmem').addFilter(lambda record: True)",
}

PROGRAM = """
    import sys, time
    {log}
    import torch, stepmem
    for step in range(1, 6):
        stepmem.step_end(step)
    stepmem.flush(0.3)
    sys.exit({code})
"""


@pytest.fixture(params=["full disk", "reader that is gone"])
def unwritable(request: Any) -> Iterator[int]:
    """A descriptor that takes no text."""
    if request.param == "full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("log", LOGS)
def test_warning_that_cannot_be_written_keeps_the_exit_code(tmp_path, unwritable, log, code):
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM.format(log=LOGS[log], code=code)))
    variables = {**BUFFERED, "PYTHONPATH": f"{STUB}:{ROOT}/python", "STEPMEM_PUSH_URL": "http://127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=variables, stdout=unwritable, stderr=unwritable, timeout=60
    )
    assert ended.returncode == code


@pytest.mark.parametrize("log", LOGS)
def test_warning_is_written_where_it_can_be(tmp_path, log):
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM.format(log=LOGS[log], code=7)))
    variables = {**BUFFERED, "PYTHONPATH": f"{STUB}:{ROOT}/python", "STEPMEM_PUSH_URL": "http://127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert ended.returncode == 7
    assert ended.stdout.count("stepmem: cannot push to http://127.0.0.1:1 ") == 1, ended.stdout
    n_lines = {"none": 2, "imported": 1}.get(log, 2)
    said = [line for line in ended.stdout.splitlines() if not line.startswith("DEBUG:")]  # a machine without NVML
    assert len(said) == n_lines, ended.stdout


def test_handlers_and_filters_of_the_program_decide_as_with_any_record(tmp_path):
    code = """
        import io, logging, sys
        import stepmem._warn as warn
        class Kept(logging.Handler):
            records = []
            def emit(self, record):
                self.records.append((record.name, record.levelname, record.getMessage()))
        memory = io.StringIO()
        above = logging.StreamHandler(memory)
        above.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
        above.addFilter(lambda record: "secret" not in record.getMessage())
        logging.getLogger().addHandler(above)
        logger = logging.getLogger("stepmem")
        logger.addHandler(Kept(logging.ERROR))
        logger.addHandler(Kept())
        for topic in ("one", "secret", "one"):
            warn.warn_once(topic, topic)
        warn.inform_once("info", "info")
        logger.propagate = False
        warn.warn_once("two", "two")
        logging.disable()
        warn.warn_once("three", "three")
        print(Kept.records, repr(memory.getvalue()))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**BUFFERED, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True
    )
    kept = [("stepmem", "WARNING", f"stepmem: {word}") for word in ("one", "secret", "two")]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{kept} {'WARNING|stepmem: one' + chr(10)!r}\n"


def test_reader_that_does_not_read_keeps_nothing_waiting(tmp_path):
    """A pipe that is full: the warning is lost, and the program ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM.format(log="import logging", code=7)))
    variables = {**BUFFERED, "PYTHONPATH": f"{STUB}:{ROOT}/python", "STEPMEM_PUSH_URL": "http://127.0.0.1:1"}
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=variables, stderr=writer, timeout=60)
    assert ended.returncode == 7
    os.close(reader)
    os.close(writer)


def test_program_that_lets_sigpipe_end_it_is_not_ended_by_a_warning(tmp_path):
    code = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); import logging"
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM.format(log=code, code=7)))
    variables = {**BUFFERED, "PYTHONPATH": f"{STUB}:{ROOT}/python", "STEPMEM_PUSH_URL": "http://127.0.0.1:1"}
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=variables, stderr=writer, timeout=60)
    os.close(writer)
    assert ended.returncode == 7


@pytest.mark.parametrize("arguments, code", [(["no-such-file.py"], 2), (["-m", "no_such_module"], 1)])
def test_program_that_is_not_there_has_the_exit_code_that_python_has_with_a_terminal(tmp_path, unwritable, arguments, code):
    variables = {**BUFFERED, "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-m", "stepmem", *arguments]
    assert subprocess.run(command, cwd=tmp_path, env=variables, stderr=unwritable, timeout=60).returncode == code


@pytest.mark.parametrize("command, code", [(["sh", "-c", "exit 7"], 7), (["no-such-command"], 127), ([sys.executable, "steps.py", "20"], 0)])
def test_run_keeps_the_exit_code(tmp_path, home, unwritable, command, code):
    (tmp_path / "steps.py").write_text(textwrap.dedent(STEPS))
    variables = {**BUFFERED, "HOME": str(home), "PYTHONPATH": STUB}
    ended = subprocess.run([BINARY, "run", *OPTIONS, "--", *command], cwd=tmp_path, env=variables, stderr=unwritable, timeout=60)
    assert ended.returncode == code


@pytest.mark.parametrize("arguments", [["no-such-command"], ["run", "--no-such-option", "--", "true"], ["compare", "one"]])
def test_mistake_on_the_command_line_keeps_its_exit_code(tmp_path, unwritable, arguments):
    assert subprocess.run([BINARY, *arguments], cwd=tmp_path, stderr=unwritable, timeout=60).returncode == 2


def test_exporter_whose_log_cannot_be_written_goes_on(tmp_path, unwritable):
    command = [BINARY, "serve", "--no-nvml", "--web.listen-address=127.0.0.1:0", "--push.listen-address=", f"--push.unix-socket={tmp_path}/push.sock"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=unwritable)
    await_true("the socket", (tmp_path / "push.sock").exists)
    variables = {**BUFFERED, "PYTHONPATH": f"{STUB}:{ROOT}/python", "STEPMEM_PUSH_URL": f"unix://{tmp_path}/push.sock"}
    code = "import stepmem\nfor step in range(1, 5):\n    stepmem.step_end(step)\nprint(stepmem.flush(30))"
    pushed = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    process.terminate()
    assert (pushed.stdout, process.wait(60)) == ("True\n", 0), pushed.stderr


def test_warning_does_not_wait_for_a_full_pipe_and_leaves_compressed_files_alone(tmp_path):
    code = """
        import gzip, io, logging, os, sys
        from stepmem._warn import _write_to, inform_once
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 65536)
        except BlockingIOError:
            os.set_blocking(writer, True)
        _write_to(writer, "lost\\n")
        with gzip.open("log.gz", "wt") as log:
            logging.basicConfig(level=logging.INFO, stream=log)
            inform_once("topic", "kept")
        print(gzip.open("log.gz", "rt").read())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=tmp_path, env={**BUFFERED, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "INFO:stepmem:stepmem: kept\n\n"), ended.stderr
