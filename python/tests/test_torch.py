"""PyTorch on the CPU, Transformers, Accelerate, Lightning, and torchrun with four ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import textwrap

import pytest
from conftest import DEADLINE, ROOT, await_true
from test_peaks import Device, end_step, fake_torch

from stepmem import _peaks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch"),
]

PLAIN = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(12):
        loss = model(torch.randn(4, 8)).pow(2).mean() / 3
        loss.backward()
        if batch % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    print(f"{loss.item():.10f}")
"""


def test_optimizer_steps_are_counted_and_the_loss_is_the_same(exporter, train):
    plain = train(PLAIN, None).ended()
    ended = train(PLAIN, exporter.url, through=("-m", "stepmem"), STEPMEM_RUN="plain").ended()
    assert (ended.code, ended.out, ended.err) == (0, plain.out, plain.err)
    rank = exporter.rank()
    assert (rank["step"], rank["steps_total"], rank["device"]) == (4, 4, "cpu")


GRAPHED = """
    import inspect, torch
    from torch.cuda import graphs

    class Native:
        "Stands for PyTorch's own, which needs a GPU: what is captured runs at once."
        _has_graph_exec = True
        def __new__(cls, keep_graph=False): return object.__new__(cls)
        def capture_begin(self, *arguments, **named): pass
        def capture_end(self, *arguments): pass
        capture_end_pre = capture_end_post = instantiate = replay = capture_end
        def __getattr__(self, name):
            if name.startswith("capture_end_"): return lambda *arguments: None
            raise AttributeError(name)

    source = "from __future__ import annotations\\n" + inspect.getsource(graphs.CUDAGraph)
    graphs._CUDAGraph = Native
    exec(source, vars(graphs))
    AUTO
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(3):
        optimizer.step()
    graph = graphs.CUDAGraph()
    graph.capture_begin()
    optimizer.step()
    graph.capture_end()
    for _ in range(40):
        graph.replay()
    print(*(inspect.signature(getattr(graphs.CUDAGraph, name)) for name in ("capture_begin", "capture_end", "replay")))
"""


def test_captures_of_pytorchs_own_class_are_followed(fake, train):
    code = """
    import torch
    print([hasattr(vars(torch.cuda.CUDAGraph)[name], "__wrapped__") for name in ("capture_begin", "capture_end", "replay")])
    """
    ended = train(code, fake(200).url, through=("-m", "stepmem")).ended()
    assert (ended.code, ended.out) == (0, "[True, True, False]\n")


def test_replays_of_pytorchs_own_class_are_counted(exporter, train):
    plain = train(GRAPHED.replace("AUTO", ""), None).ended()
    ended = train(GRAPHED.replace("AUTO", "import stepmem; stepmem.auto()"), exporter.url, STEPMEM_RUN="graphed").ended()
    assert (ended.code, ended.out, ended.err) == (0, plain.out, plain.err)
    rank = exporter.rank()
    assert (rank["step"], rank["unit"]) == (40, "replays")


@pytest.fixture
def cuda_with(monkeypatch):
    """PyTorch's own functions, over allocators modeled on its own, as there is no GPU."""
    import torch

    def use(devices):
        functions = vars(fake_torch(devices)._C)
        for name, function in functions.items():
            assert hasattr(torch._C, name), f"PyTorch has no {name}"
            monkeypatch.setattr(torch._C, name, function)
        monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
        monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", lambda: True)
        monkeypatch.setattr(torch.accelerator.memory, "_get_device_index", lambda device, optional: device)
        monkeypatch.setattr(_peaks, "_counters", None)
        counters = _peaks.share_peak_counters(torch, 0)
        assert counters is not None
        return counters

    return use


def test_pytorch_gives_the_program_its_own_peaks(cuda_with, monkeypatch):
    import torch

    device, choice = Device(), random.Random(0)
    counters = cuda_with([device])
    paths = [path for path in device.model.stats if path[-1] != "all"]
    for n in range(400):
        device.change(choice.choice(paths), choice.randrange(-1000, 1000))
        if n % 3 == 0:
            end_step(counters, 0)
        if n % 41 == 0:
            device.model.reset_peaks()
            choice.choice([torch.cuda.reset_peak_memory_stats, torch.accelerator.reset_peak_memory_stats])(0)
        for kind, functions in (
            ("allocated_bytes", (torch.cuda.max_memory_allocated, torch.accelerator.max_memory_allocated)),
            ("reserved_bytes", (torch.cuda.max_memory_reserved, torch.accelerator.max_memory_reserved)),
        ):
            peak = device.model.stats[(kind, "all")]["peak"]
            assert [function(0) for function in functions] == [peak, peak]
        expected = {".".join((*path, name)): value for path, stat in device.model.stats.items() for name, value in stat.items()}
        for read in (torch.cuda.memory_stats, torch.accelerator.memory_stats):
            assert {name: value for name, value in read(0).items() if not name.startswith("num_")} == expected
    end_step(counters, 0)
    summary = torch.cuda.memory_summary(0)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda idx: device.model.read())
    assert summary == torch.cuda.memory_summary(0)


MARKED = """
    import time
    import safetensors.torch, torch
    import torch.distributed.checkpoint as checkpoint
    from safetensors.torch import save_file
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4)

    def step(batch):
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        time.sleep(0.003)

    @torch.no_grad()
    def score():
        return model(torch.randn(4, 8)).sum()

    @torch.inference_mode()
    def infer():
        return model(torch.randn(4, 8)).sum()

    def validate():
        model.eval()
        score()
        model.train()

    def evaluate():
        model.train(False)
        model(torch.randn(4, 8))
        model.train(True)

    def run(is_training):
        with torch.set_grad_enabled(is_training):
            return model(torch.randn(4, 8)).sum()

    def switch():
        torch.set_grad_enabled(False)
        model(torch.randn(4, 8))
        torch.set_grad_enabled(True)

    def nothing():
        model.train()
        run(True)

    for between in (
        nothing, score, infer, validate, evaluate, lambda: run(False), switch,
        lambda: torch.save(model.state_dict(), "model.pt"),
        lambda: save_file(model.state_dict(), "model.safetensors"),
        lambda: safetensors.torch.save_model(model, "again.safetensors"),
        lambda: checkpoint.save({"model": model.state_dict()}, checkpoint_id="checkpoint", no_dist=True),
    ):
        for batch in loader:
            step(batch)
        between()
        for n in range(20):
            step(torch.randn(4, 8))
"""


def test_evaluations_checkpoints_and_epochs_are_marked_also_where_they_take_no_time(fake, train):
    exporter = fake(200)
    ended = train(MARKED, exporter.url, STEPMEM_EVERY_STEP="1", through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    marked = {record["step"]: record["marks"] for record in exporter.records if "marks" in record}
    epochs = {step: ["epoch"] for step in range(41, 440, 40)}
    evaluations = {step: ["eval"] for step in range(61, 262, 40)}
    checkpoints = {step: ["checkpoint"] for step in (301, 341, 381, 421)}
    marked.pop(1, None)
    assert marked == {**epochs, **evaluations, **checkpoints}


RUNS = """
    import os, sys, time, torch
    from torch.nn.modules import module
    hooks = module._global_forward_pre_hooks
    def until(condition):
        while not condition():
            time.sleep(0.01)
    def is_awaited():
        return vars(torch.nn.Module)["_compiled_call_impl"] is not None
    def is_counted():
        return "_compiled_call_impl" in vars(torch.nn.Sequential)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    transform = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid())
    x = torch.randn(2, 8)
    def run(module):
        until(lambda: is_awaited() or is_counted())
        module(x)
    RUN
"""
"""Waits until the client awaits a model's call, since a machine may be busy, or counts the calls of its class."""


def test_model_whose_calls_are_short_is_noticed_and_its_calls_are_counted(fake, train, tmp_path):
    exporter = fake(200)
    code = "with torch.inference_mode(): until(lambda: run(model) or os.path.exists('over'))"
    program = train(RUNS.replace("RUN\n", code + "\n"), exporter.url, through=("-m", "stepmem"))
    units = lambda: [record.get("unit") or record["phase"] for record in exporter.records]  # noqa: E731
    await_true("records of calls", lambda: units().count("calls") >= 5)
    (tmp_path / "over").touch()
    ended = program.ended()
    assert (ended.code, ended.err) == (0, "")
    first = units().index("calls")
    assert set(units()[:first]) <= {"sample"} and set(units()[first:]) == {"calls"}


def test_function_that_notes_a_call_removes_itself_at_the_first(fake, train):
    code = """for _ in range(2):
        until(is_awaited)
        model(x)
        until(lambda: not is_awaited())"""
    ended = train(RUNS.replace("RUN\n", code + "\n"), fake(200).url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err


def test_transforms_of_data_are_no_runs_of_a_model(fake, train):
    exporter = fake(200)
    code = "for _ in range(60): run(transform)"
    ended = train(RUNS.replace("RUN\n", code + "\n"), exporter.url, through=("-m", "stepmem")).ended()
    assert (ended.code, exporter.records) == (0, []), ended.err


def test_compiler_meets_no_hook_and_has_nothing_to_warn_of(fake, train):
    code = """until(is_awaited)
    import torch._dynamo
    model = torch.compile(model, backend="eager")
    end = time.monotonic() + 2
    until(lambda: model(x) is None or hooks or time.monotonic() > end)
    print(dict(hooks), any("stepmem" in type(each).__module__ for each in sys.meta_path))"""
    ended = train(RUNS.replace("RUN\n", code + "\n"), fake(200).url, through=("-m", "stepmem")).ended()
    assert (ended.code, ended.out) == (0, "{} False\n"), ended.err
    assert "global hooks" not in ended.err, "PyTorch warns of a hook of all modules"


def test_data_loader_workers_push_nothing(exporter, train):
    code = """
        import torch, stepmem
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.arange(40.0), batch_size=4, num_workers=2)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(3):
            for batch in loader:
                with stepmem.step():
                    model(batch[:, None]).mean().backward()
                    optimizer.step()
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url, through=("-m", "stepmem")).ended()
    assert (ended.code, ended.err) == (0, "")
    (rank,) = exporter.status()["ranks"]
    assert (rank["step"], rank["steps_total"]) == (30, 30)


TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from stepmem.huggingface import StepmemCallback
    import stepmem
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
    arguments = TrainingArguments("out", max_steps=10, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=5, save_steps=5, logging_steps=5, report_to=[], use_cpu=True, disable_tqdm=True)
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[CALLBACKS]).train()
    assert stepmem.flush(60)
"""


@pytest.mark.parametrize("through", [(), ("-m", "stepmem")], ids=["callback", "callback and hook"])
def test_steps_evaluations_and_checkpoints_of_trainer_are_recorded(fake, train, through):
    exporter = fake(200)
    ended = train(TRAINER.replace("CALLBACKS", "StepmemCallback()"), exporter.url, through=through).ended()
    assert ended.code == 0, ended.err
    pushed = [(record.get("phase", "train"), record["step"]) for record in exporter.records]
    steps = [("train", step) for step in range(1, 11)]
    expected = [*steps[:5], ("eval", 5), ("checkpoint", 5), *steps[5:], ("eval", 10), ("checkpoint", 10)]
    assert pushed[: len(expected)] == expected and set(pushed[len(expected) :]) <= {("checkpoint", 10)}
    assert {record["total_steps"] for record in exporter.records} == {10}
    assert [end["outcome"] for end in exporter.ends] == ["completed"]


def test_second_trainer_and_a_loop_after_it_go_on_counting(fake, train):
    exporter = fake(200)
    code = """
        import torch
        from types import SimpleNamespace
        from stepmem.huggingface import StepmemCallback
        for fold in range(2):
            callback, state = StepmemCallback(), SimpleNamespace(global_step=0)
            callback.on_train_begin(None, state, None)
            for state.global_step in range(1, 11):
                callback.on_step_end(None, state, None)
            callback.on_train_end(None, state, None)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
        for _ in range(5):
            optimizer.step()
    """
    ended = train(code, exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    assert [record["step"] for record in exporter.records] == list(range(1, 26))


def test_optimizer_steps_of_trainer_without_a_callback_are_counted(exporter, train):
    ended = train(TRAINER.replace("CALLBACKS", ""), exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    assert (exporter.rank()["step"], exporter.rank()["steps_total"], exporter.rank()["total_steps"]) == (10, 10, 10)


def test_optimizer_steps_of_accelerate_are_counted(exporter, train):
    code = """
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=2)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
    """
    ended = train(code, exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    assert (exporter.rank()["step"], exporter.rank()["steps_total"]) == (4, 4)


def test_steps_evaluations_and_checkpoints_of_lightning_are_recorded(fake, train):
    exporter = fake(200)
    code = """
        import torch, lightning.pytorch as pl, stepmem
        from lightning.pytorch.callbacks import ModelCheckpoint
        from stepmem.lightning import StepmemCallback
        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, batch_idx):
                return self.layer(batch).mean()
            def validation_step(self, batch, batch_idx):
                self.layer(batch)
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)
        data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=2)
        trainer = pl.Trainer(max_steps=6, accumulate_grad_batches=2, accelerator="cpu", val_check_interval=6, logger=False,
            check_val_every_n_epoch=None, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            callbacks=[StepmemCallback(), ModelCheckpoint("out", every_n_train_steps=3, save_top_k=-1)])
        trainer.fit(Model(), data, data)
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url).ended()
    assert ended.code == 0, ended.err
    pushed = [(record.get("phase", "train"), record["step"]) for record in exporter.records]
    assert [step for phase, step in pushed if phase == "train"] == [1, 2, 3, 4, 5, 6]
    assert [step for phase, step in pushed if phase == "eval"] == [3, 6]
    assert [step for phase, step in pushed if phase == "checkpoint"] == [3, 6]
    assert [end["outcome"] for end in exporter.ends] == ["completed"]


@pytest.mark.parametrize("callbacks", ["[StepmemCallback()]", "[]"])
@pytest.mark.parametrize(("arguments", "last"), [("max_epochs=3", 18), ("max_epochs=9, max_steps=20", 20), ("max_epochs=-1, max_steps=7", 7)])
def test_last_step_of_lightning_is_known_with_a_callback_and_without(fake, train, arguments, last, callbacks):
    exporter = fake(200)
    code = f"""
        import torch, lightning.pytorch as pl, stepmem
        from stepmem.lightning import StepmemCallback
        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, batch_idx):
                return self.layer(batch).mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)
        data = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=2)
        trainer = pl.Trainer({arguments}, accumulate_grad_batches=3, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks={callbacks})
        trainer.fit(Model(), data)
        assert stepmem.flush(60)
    """
    ended = train(code, exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    steps = [record for record in exporter.records if record.get("phase", "train") == "train"]
    assert (steps[-1]["step"], steps[-1]["total_steps"]) == (last, last)


def test_loop_after_a_training_of_lightning_that_failed_is_counted(fake, train):
    exporter = fake(200)
    code = """
        import torch
        from types import SimpleNamespace
        from stepmem.lightning import StepmemCallback
        callback, trainer = StepmemCallback(), SimpleNamespace(global_step=0)
        callback.on_train_start(trainer, None)
        callback.on_exception(trainer, None, ValueError("caught"))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
        for _ in range(5):
            optimizer.step()
    """
    ended = train(code, exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    assert [record["step"] for record in exporter.records] == list(range(1, 6))


FAILING = """
    import torch, stepmem, sys, os, time
    from transformers import Trainer, TrainingArguments, TrainerCallback
    from stepmem.huggingface import StepmemCallback
    class Fails(TrainerCallback):
        def on_step_end(self, arguments, state, control, **named):
            if state.global_step == 3:
                raise MemoryError("no memory")
    data = [{"x": torch.ones(4)} for _ in range(64)]
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x):
            return {"loss": self.layer(x).mean()}
    arguments = TrainingArguments("out", max_steps=10, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")
    Trainer(Model(), arguments, train_dataset=data, callbacks=[StepmemCallback(), Fails()]).train()
"""


@pytest.mark.parametrize("n_trainings", [1, 2])
def test_loop_after_trainings_of_trainer_that_failed_is_counted(fake, train, n_trainings):
    exporter = fake(200)
    head, _, training = FAILING.rpartition("    Trainer(")
    code = f"""
    for _ in range({n_trainings}):
        try:
            Trainer({training.strip()}
        except MemoryError:
            pass
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    for _ in range(5):
        optimizer.step()
    """
    ended = train(head + code.lstrip("\n"), exporter.url, through=("-m", "stepmem")).ended()
    assert ended.code == 0, ended.err
    steps = [record["step"] for record in exporter.records if record.get("phase", "train") == "train"]
    assert steps == list(range(1, 3 * n_trainings + 6))


def test_error_in_trainer_is_reported_as_the_end(fake, train):
    exporter = fake(200)
    ended = train(FAILING, exporter.url).ended()
    assert ended.code == 1 and "MemoryError: no memory" in ended.err
    assert [(end["outcome"], end["error_type"], end["step"]) for end in exporter.ends] == [("oom", "MemoryError", 3)]


TWO_RANKS = """
    import os, pathlib, time, stepmem
    stepmem.step_end(1)
    assert stepmem.flush(60)
    attempt, rank, flushed = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], pathlib.Path("flushed")
    if attempt == "0" and rank == "0":
        flushed.touch()
    while attempt == "0" and (rank == "0" or not flushed.exists()):
        time.sleep(0.1)
    if attempt == "0":
        raise ValueError("bad batch")
"""


def test_ranks_of_torchrun_report_their_ends_and_keep_their_launch(fake, tmp_path):
    exporter = fake(200)
    script = tmp_path / "two.py"
    script.write_text(textwrap.dedent(TWO_RANKS))
    environment = {**os.environ, "STEPMEM_PUSH_URL": exporter.url, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    ended = subprocess.run([*torchrun, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    ends = sorted((end["rank"], end["outcome"], end.get("error_message", "")) for end in exporter.ends)
    assert ends == [(0, "completed", ""), (1, "completed", ""), (1, "failed", "bad batch")], "rank 0 was ended by a signal once"
    assert sorted((each["rank"], each["attempt"]) for each in exporter.records) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({(each["run"], each["launch"]) for each in exporter.records}) == 1
    assert len({each["instance"] for each in exporter.records}) == 4


LEAKY_RANK = """
    import os, resource, torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # Limits the memory of each rank, so that a leak would exhaust it soon.
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for step in range(800):
        loss = model(torch.randn(2048, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=rank == LEAKS)
        optimizer.step()
        losses.append(loss if rank == LEAKS else loss.item())
    dist.destroy_process_group()
"""


def test_one_leaking_rank_of_four_under_torchrun_has_the_only_findings(exporter, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(textwrap.dedent(LEAKY_RANK.replace("LEAKS", "2")))
    environment = {**os.environ, "STEPMEM_PUSH_URL": exporter.url, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "-m", "stepmem", str(script)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    status = exporter.status()
    assert [(rank["rank"], rank["step"]) for rank in status["ranks"]] == [(rank, 800) for rank in range(4)]
    (name,) = {rank["run"] for rank in status["ranks"]}
    assert name.startswith("ddp-")
    found = {(finding["rank"], finding["kind"]) for finding in status["findings"]}
    assert (2, "CREEP_CONFIRMED") in found, json.dumps(status["findings"], indent=1)
    assert {rank for rank, _ in found} == {2}, "the other three ranks have no finding"


ASK = {"type": "checkpoint", "id": "1", "run": "job", "reason": "it grows", "seconds_left": 9.0, "steps_left": 90.0, "every_seconds": 600.0}


@pytest.mark.parametrize(("callback", "saved"), [("StepmemCallback()", 0), ("StepmemCallback(checkpoint_before_oom=True)", 1)])
def test_trainer_saves_once_before_memory_runs_out_if_it_opted_in(fake, train, tmp_path, callback, saved):
    exporter = fake(200)
    exporter.actions = [{**ASK, "rank": 0, "id": str(n)} for n in range(3)]
    code = TRAINER.replace("save_steps=5", "save_strategy='no'").replace("max_steps=10", "max_steps=30").replace("CALLBACKS", f"{callback}, Flush()")
    flush = """
    from transformers import TrainerCallback
    class Flush(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            assert stepmem.flush(60)
            assert not control.should_training_stop or state.global_step == 30
    """
    ended = train(code.replace("    torch.manual_seed(0)\n", flush + "torch.manual_seed(0)\n"), exporter.url).ended()
    assert ended.code == 0, ended.err
    assert len(list((tmp_path / "out").glob("checkpoint-*/*.safetensors"))) == saved
    assert any("on_deadline" in record for record in exporter.records) == bool(saved)
    phases = [record["phase"] for record in exporter.records if record.get("phase") == "checkpoint"]
    assert len(phases) == saved
    assert max(record["step"] for record in exporter.records) == 30


LIGHTNING = """
    import torch, lightning.pytorch as pl, stepmem
    from stepmem.lightning import StepmemCallback
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, batch_idx):
            return self.layer(batch).mean()
        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert stepmem.flush(60)
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=2)
    trainer = pl.Trainer(max_steps=30, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir="out",
        enable_progress_bar=False, enable_model_summary=False, callbacks=[CALLBACK])
    PROGRAM
    trainer.fit(Model(), data)
    assert trainer.global_step == 30 and stepmem.flush(60)
"""


@pytest.mark.parametrize(("callback", "saved"), [("StepmemCallback()", 0), ("StepmemCallback(checkpoint_before_oom=True)", 1)])
def test_lightning_saves_once_before_memory_runs_out_if_it_opted_in(fake, train, tmp_path, callback, saved):
    exporter = fake(200)
    exporter.actions = [{**ASK, "rank": 0, "id": str(n)} for n in range(3)]
    ended = train(LIGHTNING.replace("CALLBACK", callback).replace("PROGRAM", ""), exporter.url).ended()
    assert ended.code == 0, ended.err
    files = list(tmp_path.rglob("*.ckpt"))
    assert [file.parent for file in files] == [tmp_path / "out/checkpoints"] * saved
    assert any("on_deadline" in record for record in exporter.records) == bool(saved)
    assert [record["phase"] for record in exporter.records if "phase" in record] == ["checkpoint"] * saved


def test_lightning_that_cannot_save_goes_on(fake, train):
    exporter = fake(200)
    exporter.actions = [{**ASK, "rank": 0}]
    program = "trainer.save_checkpoint = lambda path: open('/nowhere/' + path)"
    ended = train(LIGHTNING.replace("CALLBACK", "StepmemCallback(checkpoint_before_oom=True)").replace("PROGRAM", program), exporter.url).ended()
    assert ended.code == 0, ended.err
    assert ended.err.count("no checkpoint before memory runs out, and training goes on") == 1, ended.err


COLLECTIVE = """
    import os, time, torch, torch.distributed as dist, stepmem
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if "group" in os.environ["HOW"]:
        dist.init_process_group("gloo")
    def save(deadline):
        step = torch.tensor([float(stepmem._client.CLIENT.process.step)])
        steps = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(steps, step)  # hangs unless all ranks are here
        os.write(1, f"saved {int(steps[0])} {int(steps[1])} {deadline.reason}\\n".encode())  # in one piece
    if "alone" not in os.environ["HOW"] or rank == 0:
        stepmem.on_memory_deadline(save)
    total = torch.zeros(1)
    for step in range(1, 60):
        time.sleep(0.1)
        if "group" in os.environ["HOW"]:
            dist.all_reduce(total)
        stepmem.step_end(step)
"""


@pytest.mark.parametrize(("how", "n_saved"), [("group", 2), ("group alone", 0), ("", 0)])
def test_two_ranks_of_torchrun_save_in_the_same_step_or_not_at_all(fake, tmp_path, how, n_saved):
    exporter = fake(200)
    exporter.actions = [{**ASK, "rank": 1}]  # the other rank's answers are lost
    script = tmp_path / "two.py"
    script.write_text(textwrap.dedent(COLLECTIVE))
    environment = {**os.environ, "STEPMEM_PUSH_URL": exporter.url, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "HOW": how}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run([*torchrun, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    saved = [line.split(" ", 3) for line in ended.stdout.splitlines() if line.startswith("saved")]
    assert len(saved) == n_saved, ended.stdout + ended.stderr
    assert all(line[1] == line[2] and line[3] == "it grows" for line in saved), saved
    assert ended.stderr.count("the ranks cannot agree on a step") == (not how), ended.stderr


LEAKING = """
    import os, resource, sys, torch, stepmem
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEBIBYTES << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    begun = 0
    if os.path.exists("checkpoint.pt"):
        kept = torch.load("checkpoint.pt")
        model.load_state_dict(kept["model"])
        begun = kept["step"]
    def save(deadline):
        torch.save({"model": model.state_dict(), "step": step}, "new.pt")
        os.replace("new.pt", "checkpoint.pt")
        sys.exit(77)
    if OPTS_IN:
        stepmem.on_memory_deadline(save)
    losses = []
    for step in range(begun + 1, 10_001):
        loss = model(torch.randn(64, 256)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        stepmem.step_end(step)
    print("finished", begun)
"""


def test_leaking_job_of_10000_steps_finishes_with_restarts_and_dies_without_them(start, train, tmp_path):
    exporter = start("--checkpoint.before", "5s")
    code = LEAKING.replace("MEBIBYTES", "1400")
    alone = train(code.replace("OPTS_IN", "False"), exporter.url, STEPMEM_RUN="alone").ended()
    assert alone.code == 1 and "alloc" in alone.err, alone.err
    for attempt in range(20):
        ended = train(code.replace("OPTS_IN", "True"), exporter.url, STEPMEM_RUN="opted", STEPMEM_ATTEMPT=str(attempt)).ended()
        if ended.code == 0:
            break
        assert ended.code == 77, ended.err
    assert ended.code == 0 and attempt > 0, (attempt, ended.err)
