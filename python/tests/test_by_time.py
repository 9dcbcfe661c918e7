"""Programs that run a model without steps, and marks of what happens between steps, with modules that stand in for PyTorch's."""

from __future__ import annotations

import pytest
from conftest import STUB

from stepmem._event_markers import EVAL, NO_GRAD, EventMarkers
from stepmem._process import Process
from stepmem._wire import EVENT_MARKERS, FIGURES, PHASES, RECORD, UNKNOWN, Encoder

MODULES = """
    import sys, time, types
    import torch, torch.optim.optimizer
    module = types.ModuleType("torch.nn.modules.module")
    class Module:
        def _call_impl(self, seconds):
            time.sleep(seconds)
        __call__ = _call_impl
        def train(self, mode=True):
            return self
        def eval(self):
            return self
    module.Module = Module
    sys.modules["torch.nn.modules.module"] = module
    grad_mode = types.ModuleType("torch.autograd.grad_mode")
    class no_grad:
        def __enter__(self): pass
        def __exit__(self, *error): pass
    class set_grad_enabled:
        def __init__(self, mode): pass
        def __enter__(self): pass
        def __exit__(self, *error): pass
    grad_mode.no_grad, grad_mode.set_grad_enabled = no_grad, set_grad_enabled
    sys.modules["torch.autograd.grad_mode"] = grad_mode
    torch.save = lambda *arguments: None
    loaders = types.ModuleType("torch.utils.data.dataloader")
    class DataLoader:
        def __iter__(self): return iter(())
    loaders.DataLoader = DataLoader
    sys.modules["torch.utils.data.dataloader"] = loaders
    safetensors = sys.modules["safetensors.torch"] = types.ModuleType("safetensors.torch")
    safetensors.serialize_file = lambda *arguments: None
    safetensors.save_file = lambda *arguments: safetensors.serialize_file(*arguments)
    model, optimizer = Module(), torch.optim.Optimizer()
"""

RUN = ("-m", "stepmem")


def phases(exporter):
    return [record.get("phase", "train") for record in exporter.records]


def test_model_that_runs_without_steps_is_sampled(fake, train):
    exporter = fake(200)
    code = MODULES + "    for _ in range(200): model(0.01); time.sleep(0.01)\n    print('ran')"
    ended = train(code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "ran\n", "")
    assert len(exporter.records) > 3 and set(phases(exporter)) == {"sample"}
    first = exporter.records[0]
    assert first["step"] == 0 and first["allocated_bytes"] >= 0 and first["total_bytes"] > 0
    assert "step_seconds" not in first and "free_bytes" not in first
    assert [end["outcome"] for end in exporter.ends] == ["completed"]


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(3)",
        "kept = []\n    for _ in range(60): kept.append(bytes(1 << 20)); time.sleep(0.05)",
        "model(3)",
    ],
    ids=["imports", "loads", "runs once"],
)
def test_program_that_does_not_run_a_model_again_and_again_is_not_sampled(code, fake, train):
    exporter = fake(200)
    ended = train(MODULES + "    " + code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert ended.code == 0 and exporter.records == []


def test_data_loaders_worker_is_not_sampled(fake, train):
    exporter = fake(200)
    code = """
    import multiprocessing.process
    multiprocessing.process.parent_process = lambda: 1
    multiprocessing.current_process()._config["daemon"] = True
    for _ in range(150): model(0.01); time.sleep(0.01)
    """
    ended = train(MODULES + code.lstrip("\n"), exporter.url, through=RUN, PATHS=STUB).ended()
    assert ended.code == 0 and exporter.records == []


def test_steps_take_over_from_samples(fake, train):
    exporter = fake(200)
    code = "    for _ in range(150): model(0.01); time.sleep(0.01)\n    for _ in range(50): model(0.001); optimizer.step()"
    ended = train(MODULES + code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert ended.code == 0
    names = phases(exporter)
    assert names.count("train") == 50 and names[-50:] == ["train"] * 50
    assert [record["step"] for record in exporter.records[-50:]] == list(range(1, 51))


def test_samples_give_way_to_another_process(fake, train):
    exporter = fake(409)
    code = "    for _ in range(200): model(0.01); time.sleep(0.01)\n    print('ran')"
    ended = train(MODULES + code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "ran\n", "")


def test_packed_records_tell_phase_and_marks():
    encoder = Encoder(Process())
    encoder.add_device("cpu")
    figures = [1] + [UNKNOWN] * (len(FIGURES) - 1)
    record = RECORD.pack(1.0, -1.0, 0, 7, 1, 0, PHASES.index("sample"), 0, *figures)
    marked = RECORD.pack(1.0, -1.0, 0, 7, 1, 0, 0, (1 << len(EVENT_MARKERS)) - 1, *figures)
    assert '"phase": "sample"' in encoder.step(record, 0)
    assert '"marks": ["eval", "checkpoint", "epoch"]' in encoder.step(marked, 0)
    assert encoder.leave_out("marks") and "marks" not in encoder.step(marked, 0)


MARKED = """
    import stepmem
    def steps(n):
        for _ in range(n):
            optimizer.step()
            time.sleep(0.003)
    steps(30)
    DO
    steps(5)
"""


@pytest.mark.parametrize(
    ("code", "marks"),
    [
        ("model.eval()", ["eval"]),
        ("model.train(False)", ["eval"]),
        ("model.train(mode=False)", ["eval"]),
        ("model.train(); model.train(True)", None),
        ("with set_grad_enabled(False): pass", ["eval"]),
        ("set_grad_enabled(mode=False); set_grad_enabled(True)", ["eval"]),
        ("with set_grad_enabled(True): pass", None),
        ("for _ in range(3):\n        with no_grad(): time.sleep(0.1)", ["eval"]),
        ("with no_grad(): pass", ["eval"]),
        ("torch.save({}, 'x')", ["checkpoint"]),
        ("sys.modules['safetensors.torch'].save_file({}, 'x')", ["checkpoint"]),
        ("iter(DataLoader())", ["epoch"]),
        ("model.eval(); iter(DataLoader()); torch.save({})", ["eval", "checkpoint"]),
        ("model.eval(); iter(DataLoader()); iter(DataLoader())", ["eval", "epoch"]),
        ("stepmem.mark('epoch')", ["epoch"]),
        ("with stepmem.phase('eval'): model.eval()", None),
        ("time.sleep(0.1)", None),
    ],
)
def test_what_happens_between_steps_marks_the_next_one(code, marks, fake, train):
    exporter = fake(200)
    program = MODULES + MARKED.replace("DO", code)
    ended = train(program, exporter.url, through=RUN, PATHS=STUB, STEPMEM_EVERY_STEP="1").ended()
    assert (ended.code, ended.err) == (0, "")
    marked = [(record["step"], record["marks"]) for record in exporter.records if "marks" in record]
    assert marked == ([] if marks is None else [(31, marks)])


PICKLED = """
    import pickle
    serialization = sys.modules["torch.serialization"] = types.ModuleType("torch.serialization")
    def save(*arguments): pass
    save.__module__ = "torch.serialization"
    torch.save = serialization.save = save
    for _ in range(3): optimizer.step()
    assert torch.save is not save
    for each in (save, torch.save):
        assert pickle.loads(pickle.dumps(each)) is each
"""


def test_function_that_is_watched_can_be_pickled_as_before(fake, train):
    ended = train(MODULES + PICKLED, fake(200).url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")


def test_no_grad_that_each_step_uses_marks_nothing(fake, train):
    exporter = fake(200)
    code = "    for n in range(60):\n        with no_grad(): time.sleep(0.003 + 0.02 * (n % 20 == 19))\n        optimizer.step()"
    ended = train(MODULES + code, exporter.url, through=RUN, PATHS=STUB, STEPMEM_EVERY_STEP="1").ended()
    assert ended.code == 0 and not any("marks" in record for record in exporter.records)


def test_no_grad_that_some_steps_use_marks_only_the_first():
    """With times of its own: on a busy machine a step that uses it may take as long as an evaluation."""
    markers = EventMarkers()
    noted = [NO_GRAD if n >= 30 and n % 10 == 0 else 0 for n in range(90)]
    marks = [markers.of_record(uses, 0.003 * (n + 1), 1) for n, uses in enumerate(noted)]
    assert [n + 1 for n, marked in enumerate(marks) if marked & EVAL] == [31]


def test_gpu_is_sampled_without_touching_the_peaks_of_steps(fake, train):
    exporter = fake(200)
    code = """
        import time, torch, torch.optim.optimizer
        MIB = 1 << 20
        for _ in range(10): torch.malloc(MIB); time.sleep(0.1)   # a model is loaded
        for _ in range(25):
            torch.malloc(MIB); torch.free(MIB); time.sleep(0.1)
        print(torch._C.n_resets if hasattr(torch._C, "n_resets") else 0)
    """
    ended = train(code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "0\n" and set(phases(exporter)) == {"sample"}
    last = exporter.records[-1]
    assert last["device"].startswith("GPU-") and last["allocated_bytes"] == 10 << 20
    assert last["high_water_allocated_bytes"] == 11 << 20 and "peak_allocated_bytes" not in last
    assert min(record["allocated_bytes"] for record in exporter.records) == 10 << 20, "not while it is loaded"


def test_the_device_that_the_programs_thread_uses_is_watched(fake, train):
    """Which device is the current one differs by thread, so that the client's own thread is on GPU 0."""
    exporter = fake(200)
    code = """
        import time, torch
        MIB = 1 << 20
        read = torch._C._cuda_memoryStats
        def of_second(idx):
            unused = {"allocated_bytes": {"all": {"current": 0, "peak": 0}}}
            return {**read(idx), **(unused if idx == 0 else {})}
        torch._C._cuda_memoryStats, torch.cuda.device_count = of_second, lambda: 2
        torch.cuda.memory_allocated = lambda idx: torch._C.allocated if idx == 1 else 0
        torch.malloc(10 * MIB)
        for _ in range(25):
            torch.malloc(MIB); torch.free(MIB); time.sleep(0.1)
    """
    ended = train(code, exporter.url, through=RUN, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert set(phases(exporter)) == {"sample"}
    assert exporter.records[-1]["allocated_bytes"] == 10 << 20
