"""The plugin of pytest, by pytest itself: in a fresh environment with the wheel of the client, and with the packages of this one."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import textwrap
from typing import Any, Callable, List

import pytest
from conftest import DEADLINE, ROOT, STUB

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch"),
]


def installed(folder: pathlib.Path) -> str:
    """Returns the Python of the environment. Makes it, unless another worker has: a folder with a file `done`."""
    folder.mkdir(exist_ok=True)
    python = folder / "venv/bin/python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(ROOT / "python")], check=True)
            (wheel,) = folder.glob("*.whl")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
            (packages,) = (folder / "venv/lib").glob("python*/site-packages")
            subprocess.run([*pip, "install", "--no-index", "--no-deps", "--target", str(packages), str(wheel)], check=True)
            (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
            (folder / "done").touch()
    return str(python)


class Ended:
    """A pytest that has ended."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code, self.out = done.returncode, done.stdout + done.stderr

    def lines(self, beginning: str) -> List[str]:
        return [line for line in self.out.splitlines() if line.startswith(beginning)]

    @property
    def last(self) -> str:
        """The counts of the last line."""
        return self.out.splitlines()[-1].strip("= ").partition(" in ")[0]


@pytest.fixture
def run(tmp_path: pathlib.Path, tmp_path_factory: Any, worker_id: str) -> Callable[..., Ended]:
    """Runs tests: `run(code, "--stepmem")`, with other files by name."""
    base = tmp_path_factory.getbasetemp()
    python = installed((base if worker_id == "master" else base.parent) / "pytest")

    def run_one(code: str, *arguments: str, paths: str = "", **files: str) -> Ended:
        for name, text in {"test_it": code, **files}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *arguments]
        return Ended(subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=DEADLINE))

    return run_one


LEAK = """
    import pytest
    kept = []
    runs = []

    @pytest.mark.memory(growth="none")
    def test_leaks():
        kept.append(bytearray(100_000))

    @pytest.mark.memory(growth="none")
    def test_keeps_numbers():
        runs.append(len(runs))
        [bytearray(100_000) for _ in range(3)]

    def test_is_run_once():
        assert len(runs) in (1, 16)
"""


def test_test_that_leaks_fails_with_the_holder_and_its_line(run, tmp_path):
    ended = run(LEAK, "--stepmem")
    assert ended.code == 1 and ended.last == "1 failed, 2 passed", ended.out
    [grows] = ended.lines("Memory grows: host memory by ")
    assert "97.7 KiB a step (steps 5 to 16); growth='none' allows less than 1.00 KiB" in grows
    assert ended.lines("  `") == [f"  `test_it.kept`, list, {tmp_path}/test_it.py:8, in test_leaks: 97.7 KiB a step"], ended.out
    assert "test_it.py::test_keeps_numbers: no growth in 16 steps" in ended.out.splitlines()


def test_nothing_is_judged_without_the_option(run):
    ended = run(LEAK)
    assert ended.code == 0 and ended.last == "3 passed" and ended.out.count("stepmem") == 1, ended.out  # among the plugins


def test_plugin_that_is_not_asked_for_imports_nothing_that_judges(run):
    ended = run("import sys\ndef test_it(): assert not [n for n in sys.modules if n.startswith('stepmem._growth')], sys.modules\n")
    assert ended.code == 0, ended.out


def test_without_the_plugin_the_marker_is_unknown(run):
    assert "'memory' not found in `markers`" in run(LEAK, "-p", "no:stepmem").out
    assert "unrecognized arguments: --stepmem" in run(LEAK, "-p", "no:stepmem", "--stepmem").out


STEPS = """
    import pytest

    class Trainer:
        def __init__(self):
            self.history = []
        def train(self, keeps):
            loss = [bytearray(10_000)]
            if keeps:
                self.history.append(loss)

    @pytest.mark.parametrize("keeps", [False, True])
    def test_training(memory, keeps):
        trainer = Trainer()
        for _ in range(STEPS):
            with memory.step():
                trainer.train(keeps)

    def test_training_by_calls(memory):
        kept = {}
        for n in range(STEPS):
            kept[n] = bytearray(10_000)
            memory.step_end()
"""


@pytest.mark.parametrize("n_steps", [16, 40, 1000])
def test_steps_that_the_fixture_marks_are_judged(n_steps, run, tmp_path):
    ended = run(STEPS.replace("STEPS", str(n_steps)), "--stepmem", "-n", "2")
    assert ended.code == 1 and ended.last == "2 failed, 1 passed", ended.out
    assert f"test_it.py::test_training[False]: no growth in {n_steps} steps" in ended.out
    holders = sorted(line.partition(": ")[0] for line in ended.lines("  `"))
    file = f"{tmp_path}/test_it.py"
    assert holders == [f"  `Trainer.history`, list, {file}:10, in train", f"  `kept`, dict, {file}:22, in test_training_by_calls"], ended.out


def test_too_few_steps_are_no_proof(run):
    ended = run(STEPS.replace("STEPS", "15"), "--stepmem", "-k", "by_calls")
    assert ended.code == 1 and ended.lines("Growth cannot be judged: the test ended 15 steps, and 16 are needed"), ended.out
    assert run(STEPS.replace("STEPS", "15"), "-k", "by_calls").code == 0


def test_growth_that_is_allowed_is_none(run):
    allowed = STEPS.replace("STEPS", "20").replace("def test_training_by", '@pytest.mark.memory(growth="GROWTH")\n    def test_training_by')
    assert run(allowed.replace("GROWTH", "16 KiB"), "--stepmem", "-k", "by_calls").code == 0
    ended = run(allowed.replace("GROWTH", "8KiB"), "--stepmem", "-k", "by_calls")
    assert "growth='8KiB' allows less than 8.00 KiB" in ended.out, ended.out


LIMIT = """
    import pytest

    @pytest.fixture
    def data():
        return b"x" * (50 << 20)

    @pytest.mark.memory(limit="32MiB")
    def test_takes(data):
        b"x" * (N_MIB << 20)
"""


def test_limit_is_of_the_peak_without_what_fixtures_allocate(run):
    ended = run(LIMIT.replace("N_MIB", "20"), "--stepmem")
    assert ended.code == 0, ended.out
    [taken] = re.findall(r"^test_it.py::test_takes: peak (.+) MiB of host memory, limit 32.0 MiB$", ended.out, re.MULTILINE)
    assert float(taken) == pytest.approx(20, abs=2)
    ended = run(LIMIT.replace("N_MIB", "40"), "--stepmem")
    assert ended.code == 1, ended.out
    [taken] = re.findall(r"^The test takes (.+) MiB of host memory at once; limit='32MiB'$", ended.out, re.MULTILINE)
    assert float(taken) == pytest.approx(40, abs=2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('limit="9 EiB"', "memory: limit: '9 EiB' is not a number of bytes such as 2GiB, from 1 to 9007199254740992"),
        ('limit="-1"', "memory: limit: '-1' is not a number of bytes such as 2GiB, from 1 to 9007199254740992"),
        ("limit=True", 'memory: limit True is neither a text such as "2GiB" nor a number of bytes'),
        ('growth="some"', "memory: growth: 'some' is not a number of bytes such as 2GiB, from 1 to 9007199254740992"),
        ("growth=1.5", 'memory: growth 1.5 is neither a text such as "2GiB" nor a number of bytes'),
        ("rounds=15", "memory: rounds 15 is not an integer in 16..=10000"),
        ('most="2GiB"', "memory: 'most' is none of limit, growth and rounds"),
        ('"2GiB"', "memory: '2GiB' has no name: limit, growth or rounds"),
    ],
)
def test_argument_that_is_wrong_is_named(arguments, error, run):
    code = f"import pytest\n@pytest.mark.memory({arguments})\ndef test_it(): pass\n"
    ended = run(code, "--stepmem")
    assert ended.code == 1 and ended.last == "1 error" and error in ended.out.splitlines(), ended.out


OTHERS = """
    import asyncio, collections, gc, logging, unittest, warnings
    import pytest

    pytestmark = pytest.mark.memory
    kept, fills = [], collections.deque(maxlen=1000)

    class Cycle:
        def __init__(self):
            self.me, self.data = self, bytearray(50_000)

    @pytest.fixture
    def data():
        return [bytearray(100_000)]

    def test_fails_by_itself():
        kept.append(bytearray(100_000))
        assert 1 == 2

    def test_is_skipped():
        pytest.skip("not here")

    @pytest.mark.xfail(strict=True)
    def test_is_expected_to_leak():
        kept.append(bytearray(100_000))

    def test_reads_a_fixture(data):
        data[0] = bytearray(100_000)

    def test_leaks_into_a_fixture(data):
        data.append(bytearray(100_000))

    def test_fills_what_has_a_bound():
        fills.append(bytearray(100_000))

    def test_makes_garbage():
        Cycle()

    def test_makes_garbage_that_nothing_collects():
        gc.disable()
        Cycle()

    def test_collects_again():
        gc.enable()

    def test_logs_and_warns(caplog):
        for n in range(30):
            logging.getLogger("it").warning("step %d", n)
        warnings.warn("again", DeprecationWarning)
        assert len(caplog.records) == 30

    def test_logs_and_warns_in_steps(memory):
        for n in range(30):
            with memory.step():
                for each in range(5):
                    logging.getLogger("it").warning("step %d", n)
                    warnings.warn(f"in step {n}", UserWarning)

    def test_can_be_run_once(tmp_path):
        (tmp_path / "new").mkdir()

    async def test_of_coroutines():
        await asyncio.sleep(0)
        kept.append(bytearray(100_000))

    async def test_of_steps_in_coroutines(memory):
        mine = []
        for _ in range(20):
            with memory.step():
                await asyncio.sleep(0)
                mine.append(bytearray(100_000))

    class TestOfUnittest(unittest.TestCase):
        def test_leaks(self):
            kept.append(bytearray(100_000))

        def test_fails(self):
            kept.append(bytearray(100_000))
            self.fail("by itself")

        def test_is_fine(self):
            bytearray(100_000)
"""

ASYNCIO = """
    import asyncio, inspect, pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        if inspect.iscoroutinefunction(pyfuncitem.obj):
            named = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            asyncio.run(pyfuncitem.obj(**named))
            return True
"""
"""What pytest's plugins for coroutines do."""

LEAKING = {
    "test_leaks_into_a_fixture",
    "test_makes_garbage_that_nothing_collects",
    "test_of_coroutines",
    "test_of_steps_in_coroutines",
    "TestOfUnittest::test_leaks",
}


def test_tests_of_every_kind_are_judged_and_only_those_that_leak_fail_by_it(run):
    ended = run(OTHERS, "--stepmem", "-rA", conftest=ASYNCIO)
    outcomes = {}
    for outcome in ("PASSED", "FAILED", "SKIPPED", "XFAIL"):
        for line in ended.lines(f"{outcome} "):
            outcomes[line.split(" ")[1].partition("::")[2]] = outcome, line
    leaking = {name for name, (_, line) in outcomes.items() if "Memory grows" in line}
    assert leaking - {"test_is_expected_to_leak"} == LEAKING, ended.out
    own = {"test_fails_by_itself", "test_can_be_run_once", "TestOfUnittest::test_fails"}
    assert {name for name, (outcome, _) in outcomes.items() if outcome == "FAILED"} == LEAKING | own, ended.out
    assert outcomes["test_is_expected_to_leak"][0] == "XFAIL" and ended.lines("SKIPPED [1]"), ended.out
    assert "This is run 2 of 16 for growth, with the fixtures of the first one" in ended.out
    assert ended.out.count("of 16 for growth") == 1


def test_fixture_is_there_without_the_option(run):
    ended = run(STEPS.replace("STEPS", "3"))
    assert ended.code == 0, ended.out


DEVICE = """
    import pytest, torch

    @pytest.mark.memory(limit=1_000_000)
    def test_takes(memory):
        for _ in range(20):
            torch.malloc(N_BYTES)
            torch.free(N_BYTES)
            memory.step_end()

    def test_leaks(memory):
        for _ in range(20):
            torch.malloc(2000)
            memory.step_end()

    def test_host():
        pass
"""


@pytest.mark.parametrize(("n_bytes", "code"), [(900_000, 0), (1_100_000, 1)])
def test_memory_of_a_device_is_its_allocators(n_bytes, code, run):
    ended = run(DEVICE.replace("N_BYTES", str(n_bytes)), "--stepmem", "-k", "takes", paths=STUB)
    assert ended.code == code, ended.out
    assert ("The test takes 1.05 MiB of GPU memory at once; limit=1000000" in ended.out) == bool(code), ended.out
    ended = run(DEVICE.replace("N_BYTES", "10"), "--stepmem", "-k", "leaks", paths=STUB)
    assert "Memory grows: GPU memory by 1.95 KiB a step (steps 6 to 20); growth='none' allows less than 1.00 KiB" in ended.out, ended.out
    assert "No object of Python was found that holds it" in ended.out


TORCH = """
    import torch

    losses = []

    def train(keeps, n_steps, memory):
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(n_steps):
            with memory.step():
                loss = model(torch.randn(16, WIDTH)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(keeps(loss))

    def test_keeps_graphs(memory):
        train(lambda loss: loss, 30, memory)

    def test_keeps_numbers(memory):
        train(lambda loss: loss.item(), 30, memory)

    def test_keeps_scalars(memory):
        train(lambda loss: loss.detach(), 30, memory)
"""


@pytest.mark.parametrize("width", [pytest.param(8, marks=needs_torch), pytest.param(256, marks=needs_torch)])
def test_graphs_of_kept_losses_are_found_on_the_cpu(width, run, tmp_path):
    ended = run(TORCH.replace("WIDTH", str(width)), "--stepmem")
    assert ended.code == 1 and ended.last == "1 failed, 2 passed", ended.out
    assert "Memory grows: host memory by " in ended.out and "FAILED test_it.py::test_keeps_graphs" in ended.out, ended.out
    assert f"  `test_it.losses`, list, {tmp_path}/test_it.py:15, in train" in ended.out, ended.out
