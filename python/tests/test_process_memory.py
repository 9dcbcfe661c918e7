"""The memory of a training process on its GPU, as its driver lists it: with a fake driver, in PID namespaces of its own."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT, STUB, Reply, await_true

GIB = 1 << 30
NOT_AVAILABLE = None
GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"  # the stub's
NEW, OLD, HIDING = "580.159.04", "525.147.05", "550.54.15"

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

STEPS = """
    import os, threading, time, torch, stepmem
    from stepmem import _process_memory
    _process_memory.READ_EVERY = _process_memory.READ_MOVING_EVERY = 0.02
    def train(n_steps=100_000):
        for step in range(1, n_steps):
            stepmem.step_end(step)
            time.sleep(0.002)
            if os.path.exists("over"):
                break
        stepmem.flush(5)
"""


@pytest.fixture(scope="session")
def library() -> pathlib.Path:
    """The fake driver."""
    subprocess.run([os.environ.get("CARGO", "cargo"), "build", "--quiet", "--package", "fake-nvml"], cwd=ROOT, check=True)
    return ROOT / "target/debug/libfake_nvml.so"


@pytest.fixture
def driver(library, tmp_path):
    """Writes what the driver answers: `driver(version, compute, key=value…)`."""
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(library, folder / "libnvidia-ml.so.1")
    (folder / "libnvidia-ml.so.1.calls").touch()

    def answer(version, compute, uuid=GPU, scenario={}, **device):  # noqa: B006
        rows = [{"pid": pid} if used is None else {"pid": pid, "used": used} for pid, used in compute]
        gpu = {"uuid": uuid, "memory": {"total": 80 * GIB, "used": 30 * GIB}, "compute": rows, "graphics": [], "mps": [], **device}
        gpu = {key: value for key, value in gpu.items() if value is not None}
        fresh = folder / "fresh.json"
        fresh.write_text(json.dumps({"driver_version": version, "devices": [gpu], **scenario}))
        fresh.replace(folder / "libnvidia-ml.so.1.json")
        return folder

    return answer


@pytest.fixture
def pushed(fake, train, tmp_path):
    """Trains with a driver until a record has what it found, and returns that: bytes or a state."""

    def run(folder, body="train()", **variables):
        exporter = fake(200)
        if subprocess.run([*NAMESPACE, "true"], check=False).returncode != 0:
            pytest.skip("this machine does not let us make PID namespaces")
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(STEPS) + body)
        script = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        command = [*NAMESPACE, sys.executable, str(program)]
        paths = {"PATHS": STUB, "LD_LIBRARY_PATH": str(folder), **variables}
        training = train(script, exporter.url, *command, **paths)
        found = await_true("a reading", lambda: readings(exporter.records))
        (tmp_path / "over").touch()
        ended = training.ended()
        assert ended.code == 0, ended.err
        assert not ended.err
        run.records = exporter.records
        return found[0]

    return run


def readings(records):
    return [found for each in records for found in [each.get("process_used_bytes", each.get("process_used_state"))] if found is not None]


@pytest.mark.parametrize(
    "version, compute, expected",
    [
        (NEW, [(1, 7 * GIB)], 7 * GIB),
        (NEW, [(1, 2 * GIB), (9, 40 * GIB), (1, 7 * GIB)], 7 * GIB),
        ("565.57.01", [(1, 7 * GIB)], 7 * GIB),
        (HIDING, [(1, 0)], "memory_hidden"),
        (NEW, [(1, NOT_AVAILABLE)], "memory_hidden"),
        (NEW, [(9, 7 * GIB)], "foreign_pid_namespace"),
        (NEW, [], "foreign_pid_namespace"),
        (OLD, [(48_211, 7 * GIB)], "foreign_pid_namespace"),
        (OLD, [(1, 7 * GIB)], "foreign_pid_namespace"),
        (NEW, [(1, 81 * GIB)], "unsupported"),
        (NEW, [(1, 7 * GIB), (1 << 23, GIB)], "unsupported"),
    ],
)
def test_own_process_is_found_where_the_driver_lists_it_with_its_memory(driver, pushed, version, compute, expected):
    assert pushed(driver(version, compute)) == expected


@pytest.mark.parametrize(
    "device, expected",
    [
        ({}, None),
        ({"memory": None, "addressing": 2}, "unified"),  # GB10
        ({"memory": None}, "unified"),  # Jetson
        ({"addressing": 2, "numa_node": 4}, "numa_node"),  # Grace
        ({"addressing": 2}, None),
        ({"addressing": 1, "numa_node": 0}, None),
    ],
)
def test_kind_of_memory_that_a_gpu_does_not_have_for_itself_is_pushed(driver, pushed, device, expected):
    assert pushed(driver(NEW, [(1, 7 * GIB)], **device)) == 7 * GIB
    assert pushed.records[-1].get("device_memory") == expected


def test_integrated_gpu_is_known_without_a_driver_that_tells(pushed, tmp_path):
    body = """
properties = torch.cuda.get_device_properties(0)
properties.is_integrated = 1
torch.cuda.get_device_properties = lambda device: properties
train()
"""
    assert pushed(tmp_path, body) == "unsupported"
    assert pushed.records[-1]["device_memory"] == "unified"


def test_process_in_several_lists_counts_once(driver, pushed):
    folder = driver(NEW, [(1, 5 * GIB)], graphics=[{"pid": 1, "used": 6 * GIB}], mps=[{"pid": 1, "used": GIB}])
    assert pushed(folder) == 6 * GIB


def test_process_on_a_mig_device_is_found(driver, pushed):
    instance = {"uuid": "MIG-x", "gpu_instance": 7, "memory": {"total": 10 * GIB, "used": 4 * GIB}, "compute": [{"pid": 1, "used": 3 * GIB}]}
    folder = driver(NEW, [(1, 7 * GIB)], mig=[None, instance])
    assert pushed(folder, CUDA_VISIBLE_DEVICES="MIG-x") == 3 * GIB


@pytest.mark.parametrize(
    "scenario",
    [
        {"process_stride": 32},
        {"calls": {"nvmlInit_v2": {"code": 18}}},
        {"calls": {"nvmlDeviceGetComputeRunningProcesses_v3": {"code": 3}}},
        {"calls": {"nvmlDeviceGetHandleByUUID": {"code": 15}}},
    ],
)
def test_driver_without_a_usable_list_is_reported(driver, pushed, scenario):
    assert pushed(driver(NEW, [(1, 7 * GIB), (9, GIB)], scenario=scenario)) == "unsupported"


def test_machine_without_a_driver_is_reported(pushed, tmp_path):
    assert pushed(tmp_path) == "unsupported"


@pytest.mark.parametrize("symbol", ["nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses_v3"])
def test_hanging_driver_delays_neither_steps_nor_the_exit(driver, pushed, symbol):
    folder = driver(NEW, [(1, 7 * GIB)], scenario={"calls": {symbol: {"hang": True}}})
    assert pushed(folder, "_process_memory.ANSWER_SECONDS = 0.05\ntrain()") == "no_answer"


PAUSES = """
_process_memory.READ_EVERY, _process_memory.READ_MOVING_EVERY, _process_memory.READ_SLOWLY_EVERY = every = (0.011, 0.012, 0.013)
pauses, pause = [], _process_memory.Thread.pause
def noted(thread, event, seconds):
    if seconds in every:
        pauses.append(["level", "moving", "slow"][every.index(seconds)])
    return pause(thread, event, seconds)
_process_memory.Thread.pause = noted
step = 0
while len(pauses) < 5 or not os.path.exists("over"):
    step += 1
    stepmem.step_end(step)
    time.sleep(0.002)
stepmem.flush(5)
print(*pauses[:5], file=open("pauses", "w"))
"""


def test_reading_comes_more_often_while_its_value_moves(driver, pushed, tmp_path):
    body = f"""
_process_memory.SLOW_SECONDS = 3600.0
values = [7 * {GIB}] * 2 + [8 * {GIB}] * 2 + [9 * {GIB}] * 100_000
_process_memory.Driver.used_by = lambda driver, pid, device: values.pop(0)
"""
    pushed(driver(NEW, [(1, 7 * GIB)]), body + PAUSES)
    assert (tmp_path / "pauses").read_text().split() == ["moving", "level", "moving", "level", "moving"]


def test_driver_that_is_slow_is_asked_less_often(driver, pushed, tmp_path):
    folder = driver(NEW, [(1, 7 * GIB)], scenario={"calls": {"nvmlDeviceGetComputeRunningProcesses_v3": {"delay_ms": 20}}})
    assert pushed(folder, PAUSES) == 7 * GIB
    assert (tmp_path / "pauses").read_text().split() == ["slow"] * 5


def test_nvml_is_not_touched_before_the_program_uses_cuda_and_stays_open(driver, pushed):
    folder = driver(NEW, [(1, 7 * GIB)])
    body = f"""
calls = {str(folder / "libnvidia-ml.so.1.calls")!r}
torch.cuda.is_up = False
train(200)
assert not open(calls).read()
torch.cuda.is_up = True
train()
"""
    assert pushed(folder, body) == 7 * GIB
    calls = (folder / "libnvidia-ml.so.1.calls").read_text().split()
    assert calls.count("nvmlInit_v2") == 1
    assert "nvmlShutdown" not in calls


def test_forked_child_never_calls_nvml(driver, pushed):
    folder = driver(NEW, [(1, 7 * GIB), (2, 7 * GIB), (3, 7 * GIB)])
    body = f"""
calls = {str(folder / "libnvidia-ml.so.1.calls")!r}
pid = os.fork()
if pid == 0:
    train()
    assert not open(calls).read()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert pushed(folder, body) == "unsupported"


def test_exporter_that_does_not_know_the_reading_gets_records_without_it(driver, fake, train, tmp_path):
    folder = driver(NEW, [(os.getpid(), 7 * GIB)], memory=None)
    exporter = fake(Reply(400, refuses=("process_used_bytes", "process_used_state", "device_memory")))
    training = train(STEPS + "    train()\n", exporter.url, PATHS=STUB, LD_LIBRARY_PATH=str(folder))
    await_true("a refusal", lambda: exporter.refused)
    await_true("records", lambda: exporter.records)
    (tmp_path / "over").touch()
    assert training.ended().code == 0
    assert not readings(exporter.records)


def test_exporter_in_another_container_shows_the_memory_and_finds_what_is_outside_the_allocator(driver, exporter, train, tmp_path):
    folder = driver(NEW, [(1, 7 * GIB)])
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(STEPS) + "torch.malloc(1000)\ntrain()")
    script = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    variables = {"PATHS": STUB, "LD_LIBRARY_PATH": str(folder), "STEPMEM_RUN": "llm"}
    training = train(script, exporter.url, *NAMESPACE, sys.executable, str(program), **variables)
    series = f'stepmem_process_memory_used_bytes{{uuid="{GPU}",pid="1",rank="0",run="llm"}}'
    await_true("the process", lambda: exporter.metric(series) == 7 * GIB)
    await_true("the finding", lambda: [each["kind"] for each in exporter.status()["findings"]] == ["OUTSIDE_ALLOCATOR"])
    (tmp_path / "over").touch()
    assert training.ended().code == 0
