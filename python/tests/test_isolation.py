"""The program and the client do not notice each other: builtins, modules, functions, threads and files that the program replaces or loses,
and a fork that warns of threads."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any, Dict, List

import pytest
from conftest import DEADLINE, ROOT, STUB, FakeExporter, await_true
from test_interpreters import INTERPRETERS
from test_run import python, run, script  # noqa: F401

SEARCH = {"type": "holders", "id": "h1", "run": "llm", "rank": 0, "steps": 5, "bytes_per_step": 100_000.0}

STEPS = """
kept, optimizer = [], Optimizer()
for n_steps in range(6000):
    if n_steps >= 400 and os.path.exists("over"):
        break
    kept.append(bytearray(100_000))
    optimizer.step()
    sleep(0.001)
"""
"""Takes steps until a search has named `kept`."""

IMPORTS = "import os, sys\nfrom time import sleep\nfrom torch.optim.optimizer import Optimizer\n"


def watched(run: Any, fake: Any, script: Any, code: str, **variables: Any) -> "tuple[FakeExporter, str]":  # noqa: F811
    """Runs a program below `stepmem run`, with a request for a search; returns the exporter and what the program printed."""
    exporter = fake(200)
    exporter.actions = [SEARCH]
    path = script(code)
    started = python(run, path, STEPMEM_PUSH_URL=exporter.url, **variables)
    await_true("the end of the search", lambda: named(exporter) or started.process.poll() is not None)
    pathlib.Path(path).with_name("over").touch()
    ended = started.ended()
    assert ended.code == 0, ended.err
    return exporter, ended.out


def named(exporter: FakeExporter) -> List[str]:
    return [holder["name"] for report in exporter.holders for holder in report.get("holders", [])]


def test_open_that_exits_neither_ends_the_program_nor_the_search(run, fake, script):  # noqa: F811
    replaced = "import builtins\ndef opens(*arguments, **named):\n    raise SystemExit(arguments)\n"
    exporter, out = watched(run, fake, script, replaced + IMPORTS + "builtins.open = opens\n" + STEPS + "print('end')")
    assert out == "end\n" and "`kept`" in named(exporter)


@pytest.mark.parametrize("name", ["open", "isinstance", "len", "getattr", "min", "__import__"])
def test_client_calls_no_builtin_that_the_program_replaced(run, fake, script, name):  # noqa: F811
    code = f"""
import builtins
Optimizer().step()
theirs, calls = builtins.{name}, []
def own(*arguments, **named):
    calls.append(1)
    return theirs(*arguments, **named)
builtins.{name} = own
{STEPS}
builtins.{name} = theirs
print(calls)
"""
    exporter, out = watched(run, fake, script, IMPORTS + code)
    assert out == "[]\n" and "`kept`" in named(exporter)


@pytest.mark.parametrize("when", ["before PyTorch", "after PyTorch"])
def test_client_calls_no_function_of_the_time_or_the_system_that_the_program_replaced(run, fake, script, when):  # noqa: F811
    patch = """
import os, time
def own(*arguments, **named):
    raise SystemExit("called")
sleep, kept_functions = time.sleep, {}
for module, names in ((time, ("time", "monotonic", "thread_time", "perf_counter")), (os, ("open", "write", "fstat", "getpid", "urandom", "pread"))):
    for name in names:
        kept_functions[module, name] = getattr(module, name)
        setattr(module, name, own)
"""
    code = patch + IMPORTS if when == "before PyTorch" else IMPORTS + patch
    restore = "for (module, name), value in kept_functions.items():\n    setattr(module, name, value)\nprint('end')"
    exporter, out = watched(run, fake, script, code + STEPS + restore)
    assert out == "end\n" and "`kept`" in named(exporter)


NAMES = ("array", "contextvars", "ctypes", "enum", "fcntl", "heapq", "json", "logging", "mmap", "queue", "random", "re", "select", "selectors",
         "signal", "socket", "struct", "threading", "typing", "weakref")  # fmt: skip


def test_modules_of_the_program_that_have_names_of_the_standard_library_are_its_own(run, fake, script, tmp_path):  # noqa: F811
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"print('runs', {name!r})\nOWN = True\n")
    code = f"""
import sys
before = set(sys.modules)
{IMPORTS}
{STEPS}
for name in {NAMES!r}:
    # Debian's Python has some of them in the interpreter itself, where no file comes first.
    if name not in before and name not in sys.builtin_module_names:
        assert __import__(name).OWN
"""
    exporter, out = watched(run, fake, script, code)
    alone = subprocess.run([sys.executable, "script0.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": STUB}, capture_output=True, text=True)
    assert (out, alone.returncode) == (alone.stdout, 0) and "runs json\nruns logging" in out
    assert "`kept`" in named(exporter)


def test_client_adds_no_modules_but_its_own(run, fake, script):  # noqa: F811
    code = f"import sys\nbefore = set(sys.modules)\n{IMPORTS}{STEPS}print(sorted(each for each in set(sys.modules) - before if 'stepmem' not in each))"
    exporter, out = watched(run, fake, script, code)
    assert "`kept`" in named(exporter)
    assert set(eval(out)) <= {"torch", "types", *(f"torch.{each}" for each in ("_C", "cuda", "cuda.graphs", "cuda.memory", "optim", "optim.optimizer"))}


def test_modules_that_the_program_forgets_or_refuses_are_the_clients_still(run, fake, script):  # noqa: F811
    code = """
for name in ("json", "socket", "ssl", "threading", "select", "ctypes", "struct", "re", "encodings.idna", "opcode"):
    sys.modules[name] = None
del sys.meta_path[:], sys.path[:], sys.path_hooks[:]
"""
    exporter, out = watched(run, fake, script, IMPORTS + code + STEPS + "print('end', sys.modules['opcode'])")
    assert out == "end None\n" and "`kept`" in named(exporter)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("lost", ["os.setgid(65534); os.setuid(65534)", "os.mkdir('root'); os.chroot('root'); os.chdir('/')"])
def test_program_that_loses_the_files_of_python_is_searched(run, fake, script, lost):  # noqa: F811
    exporter, out = watched(run, fake, script, IMPORTS + lost + STEPS + "print('end')")
    assert out == "end\n"
    assert len(exporter.records) > 50 and exporter.ends[0]["outcome"] == "completed"
    assert exporter.holders[0]["outcome"] == "began" and exporter.holders[-1].get("first_step"), exporter.holders
    assert "chroot" in lost or named(exporter), exporter.holders


def test_threads_of_the_client_are_not_among_the_programs(run, fake, script):  # noqa: F811
    code = """
import threading
names = []
threading.setprofile(lambda frame, event, argument: names.append(threading.current_thread().name))
threading.settrace(lambda frame, event, argument: names.append(threading.current_thread().name))
"""
    late = "print(threading.active_count(), [each.name for each in threading.enumerate()], names)\n"
    assert watched(run, fake, script, code + IMPORTS + STEPS + late)[1] == "1 ['MainThread'] []\n"


def test_line_in_a_log_makes_no_thread_of_the_client_known(fake, train):
    code = """
        import logging, sys, threading
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
        import stepmem
        for n in range(3):
            stepmem.step_end(n)
        stepmem.flush(60)
        print(threading.enumerate() == [threading.main_thread()])
    """
    ended = train(code, fake(500).url).ended()
    assert ended.out == "True\n" and "stepmem: " in ended.err


def test_hook_for_exceptions_is_not_replaced(run, fake, script):  # noqa: F811
    assert watched(run, fake, script, IMPORTS + STEPS + "print(sys.excepthook is sys.__excepthook__)")[1] == "True\n"


SAYS = """
import stepmem
class Says(Exception):
    def __str__(self):
        print("asked")
        return "said"
    def __getattribute__(self, name):
        print("asked for", name)
        return super().__getattribute__(name)
stepmem.step_end(1)
raise Says("argument")
"""


def test_exception_that_ends_the_program_is_not_asked_by_the_client(fake, train):
    alone = train(SAYS, None, STEPMEM_DISABLED="1").ended()
    exporter = fake(200)
    ended = train(SAYS, exporter.url).ended()
    assert (ended.code, ended.out) == (alone.code, alone.out)
    (end,) = exporter.ends
    assert (end["outcome"], end["error_type"], end["error_message"]) == ("failed", "__main__.Says", "argument")


def test_exit_code_of_the_program_is_not_asked_by_the_client(fake, train):
    code = """
        import stepmem, sys
        class Zero(int):
            def __eq__(self, other):
                print("compared")
                return True
            __hash__ = None
        stepmem.step_end(1)
        sys.exit(Zero(3))
    """
    exporter = fake(200)
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.out) == (3, "")
    assert exporter.ends[0]["outcome"] == "failed"


def test_exception_that_a_test_runner_kept_is_not_the_end(fake, train):
    code = """
        import stepmem, sys
        stepmem.step_end(1)
        def fails():
            raise ValueError
        def runner():
            try:
                fails()
            except ValueError as error:
                sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        runner()
    """
    exporter = fake(200)
    assert train(code, exporter.url).ended().code == 0
    assert exporter.ends[0]["outcome"] == "completed"


FORKS = """
import os, sys, time, warnings
import torch, stepmem
for n in range(1, 4):
    stepmem.step_end(n)
assert stepmem.flush(60)
filters = list(warnings.filters)
n_silent = 0
deadline = time.monotonic() + 60
while n_silent < 10 and time.monotonic() < deadline:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        child = os.fork()
        if child == 0:
            os._exit(len(os.listdir("/proc/self/task")) - 1)
        n_silent += not caught
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.02)
assert warnings.filters == filters
stepmem.step_end(4)
print(n_silent, stepmem.flush(60), len(os.listdir("/proc/self/task")))
"""

WARNING = [name for name, (_, is_known) in INTERPRETERS.items() if is_known and tuple(map(int, name.split("-")[1].split("."))) >= (3, 12)]


@pytest.mark.skipif(not WARNING, reason="needs Python 3.12 or newer, which warns of threads at a fork")
@pytest.mark.parametrize("name", WARNING)
def test_fork_does_not_warn_of_idle_threads_of_the_client(fake, tmp_path, name):
    exporter = fake(200)
    variables: Dict[str, str] = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{STUB}", "STEPMEM_PUSH_URL": exporter.url, "STEPMEM_HOLDERS": "off"}
    command = [INTERPRETERS[name][0], "-B", "-c", FORKS]
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout) == (0, "10 True 3\n"), ended.stderr
    assert [record["step"] for record in exporter.records] == [1, 2, 3, 4]


WATCHES = """
import os, sys
sys.path.insert(0, os.environ["CLIENT"])
first = dict(sys.modules)
seen = {}
def trace(frame, event, argument):
    for name in set(sys.modules) - set(first) - set(seen):
        module = sys.modules[name]
        if not name.startswith("stepmem"):
            seen[name] = name in sys.builtin_module_names or (getattr(module, "__file__", None) or "").endswith(".so")
    return trace
sys.settrace(trace)
import stepmem
sys.settrace(None)
replaced = [name for name in first if sys.modules.get(name) is not first[name]]
print(sorted(name for name, is_in_c in seen.items() if not is_in_c), replaced, len(set(sys.modules) - set(first)) > 20)
"""

KNOWN = [name for name, (_, is_known) in INTERPRETERS.items() if is_known]


@pytest.mark.parametrize("name", KNOWN)
def test_another_thread_never_finds_a_module_that_the_client_loads(tmp_path, name):
    """Between any two lines. A module in C, which is complete, may be there."""
    command = [INTERPRETERS[name][0], "-I", "-B", "-c", WATCHES]
    ended = subprocess.run(command, env={**os.environ, "CLIENT": str(ROOT / "python")}, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout) == (0, "[] [] True\n"), ended.stderr


@pytest.mark.parametrize("name", KNOWN)
def test_copies_of_modules_do_what_the_modules_do(tmp_path, name):
    """What the client imports late, too, and what it loads instead of `typing`."""
    code = """
import os, sys
sys.path.insert(0, os.environ["CLIENT"])
import stepmem
from stepmem._isolation import isolations
load = isolations[0].import_
pickle, ssl, dis = load("pickle"), load("ssl"), load("dis")
assert pickle.loads(pickle.dumps({"a": [1, "b"]})) == {"a": [1, "b"]}
assert ssl.TLSVersion.TLSv1_2.name == "TLSv1_2" and ssl.create_default_context().check_hostname
assert dis.stack_effect(dis.opmap["NOP"]) == 0
from stepmem._readers import Capacity
assert Capacity(3, free=4).remaining(1) == 4 and repr(Capacity(1, 2, 3)) == "Capacity(total=1, free=2, reserved_limit=3)" and isinstance(Capacity(1, 2), tuple)
import copyreg, enum, json, typing, signal
assert typing.NamedTuple is not isolations[0].import_("typing").NamedTuple or "typing" in sys.modules
assert enum is sys.modules["enum"] and json.loads("[1]") == [1] and signal.Signals(2).name == "SIGINT"
print("as ever")
"""
    command = [INTERPRETERS[name][0], "-I", "-B", "-c", code]
    ended = subprocess.run(command, env={**os.environ, "CLIENT": str(ROOT / "python")}, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout) == (0, "as ever\n"), ended.stderr
