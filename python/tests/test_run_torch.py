"""`stepmem run` with the real PyTorch: nothing of stepmem is installed or imported by the programs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from typing import Any, Callable

import pytest
from conftest import BINARY, DEADLINE

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch"),
]

LEAK = """
    import os, resource, sys, torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    leaks = os.environ.get("RANK", "2") == "2"
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for step in range(700):
        loss = model(torch.randn(2048, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=leaks)
        optimizer.step()
        losses.append(loss if leaks else loss.item())
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
    sys.exit(CODE)
"""

HOLDS = LEAK.replace("range(700)", "range(1500)").replace("sys.exit(CODE)", "")

GROWS = r"rank {} of \S+: host memory grows by [\d.]+ \w+/step.*; .* left, out of memory in (?:about \d|less than a second)"
FOUND = r"stepmem: MEMORY CREEP \((?:warning|critical)\), " + GROWS
# A trainer knows its last step: growth that it outruns is told, and pages nobody.
ENDS_FIRST = r"stepmem: MEMORY CREEP \(info\), " + GROWS + r".*; the run ends at step 700 .* before memory does"


@pytest.fixture
def watched(tmp_path, home) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs `stepmem run -- COMMAND script.py` with the script's code."""

    def run(code: str, *command: str, **variables: Any) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "script.py").write_text(textwrap.dedent(code))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHONPATH"))}
        environment = {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
        full = [BINARY, "run", "--no-nvml", "--web.listen-address=127.0.0.1:0", "--", *command, "script.py"]
        return subprocess.run(full, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE)

    return run


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def test_plain_leak_is_found_and_the_exit_code_passed_on(watched, tmp_path):
    ended = watched(LEAK.replace("CODE", "5"), sys.executable)
    assert ended.returncode == 5, ended.stderr
    assert re.search(FOUND.format(0), ended.stderr), ended.stderr
    assert re.search(r"(?m)^MEMORY CREEP \((warning|critical)\) on rank 0$", ended.stderr), ended.stderr
    for name in ("final_summary.txt", "final_summary.json"):
        (path,) = (tmp_path / "logs").rglob(name)
    assert f"Written to {path.parent.relative_to(tmp_path)}/final_summary.txt" in ended.stderr


def test_list_that_holds_the_memory_is_named_on_a_cpu(watched, tmp_path):
    ended = watched(HOLDS, sys.executable)
    assert ended.returncode == 0, ended.stderr
    line = r"stepmem: MEMORY (?:CREEP|RISING) \((?:warning|critical)\), rank 0 of \S+: host memory grows by .*; held by `losses` \(list, [\d,]+ tensors and what they keep alive at step [\d,]+\) of .*script.py"
    assert re.search(line, ended.stderr), ended.stderr
    card = " ".join(ended.stderr.split("MEMORY CREEP (", 2)[-1].split())
    assert "held by `losses` (list, " in card, ended.stderr
    (path,) = (tmp_path / "logs").rglob("final_summary.json")
    (issue,) = [each for each in json.loads(path.read_text())["issues"] if each["kind"].startswith("CREEP")]
    assert issue["evidence"]["holder"]["name"] == "`losses`"


def test_leaking_rank_of_four_is_found_under_torchrun(watched):
    ended = watched(LEAK.replace("CODE", "0"), *TORCHRUN, "4")
    assert ended.returncode == 0, ended.stderr
    assert re.search(FOUND.format(2), ended.stderr), ended.stderr
    assert not re.search(FOUND.format("[013]"), ended.stderr), ended.stderr
    assert "4 of 4 ranks, steps 1 to 700" in ended.stderr, ended.stderr


def test_leak_is_found_under_accelerate(watched):
    code = """
        import resource, torch
        from accelerate import Accelerator
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        torch.set_num_threads(1)
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        losses = []
        for step in range(700):
            loss = model(torch.randn(2048, 64)).pow(2).mean()
            optimizer.zero_grad()
            accelerator.backward(loss, retain_graph=True)
            optimizer.step()
            losses.append(loss)
    """
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
    ended = watched(code, *launch)
    assert ended.returncode == 0, ended.stderr
    assert re.search(FOUND.format(0), ended.stderr), ended.stderr


TRAINER = """
    import resource, torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    resource.setrlimit(resource.RLIMIT_DATA, (7 << 29, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch.set_num_threads(1)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x):
            return {"loss": self.layer(x).mean()}
    class Leaks(TrainerCallback):
        kept = []
        def on_step_end(self, arguments, state, control, **named):
            self.kept.append(torch.ones(400_000))
    data = [{"x": torch.ones(4)} for _ in range(64)]
    arguments = TrainingArguments("out", max_steps=700, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no")
    Trainer(Model(), arguments, train_dataset=data, callbacks=[Leaks()]).train()
"""


def test_leak_is_found_in_a_trainer_of_hugging_face(watched):
    ended = watched(TRAINER, sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert re.search(ENDS_FIRST.format(0), ended.stderr), ended.stderr
    assert "MEMORY CREEP (critical) on rank 0" in ended.stderr, ended.stderr


def test_leak_is_found_in_a_trainer_of_lightning(watched):
    code = """
        import resource, torch, lightning.pytorch as pl
        resource.setrlimit(resource.RLIMIT_DATA, (7 << 29, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        torch.set_num_threads(1)
        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.kept = torch.nn.Linear(4, 1), []
            def training_step(self, batch, batch_idx):
                self.kept.append(torch.ones(400_000))
                return self.layer(batch).mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)
        data = torch.utils.data.DataLoader(torch.randn(1400, 4), batch_size=2)
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False)
        trainer.fit(Model(), data)
    """
    ended = watched(code, sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert re.search(ENDS_FIRST.format(0), ended.stderr), ended.stderr
    assert "MEMORY CREEP (critical) on rank 0" in ended.stderr, ended.stderr


def test_workers_of_a_data_loader_are_no_ranks(watched):
    code = """
        import torch
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.arange(400.0), batch_size=4, num_workers=2)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(2):
            for batch in loader:
                model(batch[:, None]).mean().backward()
                optimizer.step()
    """
    ended = watched(code, sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert "1 rank, steps 1 to 200" in ended.stderr, ended.stderr


def test_program_that_kills_itself_has_a_summary(watched):
    code = LEAK.replace("sys.exit(CODE)", "import stepmem; assert stepmem.flush(60); os.kill(os.getpid(), 9)")
    ended = watched(code, sys.executable)
    assert ended.returncode == 137
    assert re.search(r"(?m)^MEMORY CREEP \((warning|critical)\) on rank 0$", ended.stderr), ended.stderr


def test_program_in_a_virtual_environment_is_watched(watched, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(tmp_path / "venv")], check=True)
    packages = os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin))  # type: ignore[union-attr, type-var]
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "torch.pth").write_text(f"{packages}\n")
    code = "import torch\noptimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())\nfor _ in range(20):\n    optimizer.step()\n"
    ended = watched(code, "bash", "-c", f". {tmp_path}/venv/bin/activate && python $0")
    assert ended.returncode == 0, ended.stderr
    assert "1 rank, steps 1 to 20" in ended.stderr, ended.stderr


COMPILED = """
    import json, sys, torch, torch._dynamo
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    n_graphs = 0
    def count(graph, inputs):
        global n_graphs
        n_graphs += 1
        return graph.forward
    @torch.compile(backend=count)
    def train(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    @torch.compile(backend=count)
    def step():
        optimizer.step()
    for _ in range(12):
        train(torch.randn(8, 4))
    for _ in range(12):
        step()
    counters = torch._dynamo.utils.counters
    n_breaks, n_frames = sum(counters["graph_break"].values()), counters["frames"]["total"]
    print(json.dumps([n_graphs, n_breaks, n_frames, sorted(counters["recompiles"].items())]))
"""


def test_compiled_step_is_compiled_as_without_stepmem(watched, tmp_path):
    """As many graphs, graph breaks, frames that the compiler looked at, and recompiles; and every step is counted."""
    ended = watched(COMPILED, sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert "1 rank, steps 1 to 24" in ended.stderr, ended.stderr
    bare = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=True)
    assert json.loads(ended.stdout) == json.loads(bare.stdout)


COMPILED_CALLS = """
    import json, sys, time, torch, torch._dynamo
    from torch import nn
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        def forward(self, x):
            return self.b(self.a(x))
    n_graphs = 0
    def count(graph, inputs):
        global n_graphs
        n_graphs += 1
        return graph.forward
    torch.set_grad_enabled(False)
    plain, model, placed = Net().eval(), Net().eval(), Net().eval()
    for _ in range(80):  # the class is counted before anything is compiled
        plain(torch.ones(2, 4))
        time.sleep(0.01)
    compiled = torch.compile(model, backend=count)
    def answer(x):
        return plain(x) + 1
    answers = torch.compile(answer, backend=count)
    placed.compile(backend=count)
    for n in range(60):
        for call in (compiled, answers, placed):
            call(torch.ones(2 + n // 30, 4))
    print("_compiled_call_impl" in vars(Net), file=sys.stderr)
    counters = torch._dynamo.utils.counters
    def guards(function):
        return [len(str(entry.guard_manager).splitlines()) for entry in _debug_get_cache_entry_list(function)]
    n_breaks, n_frames = sum(counters["graph_break"].values()), counters["frames"]["total"]
    print(json.dumps([n_graphs, n_breaks, n_frames, sorted(counters["recompiles"].items()), guards(Net.forward), guards(answer)]))
"""


def test_model_whose_calls_count_is_compiled_as_without_stepmem(watched, tmp_path):
    """As many graphs, graph breaks, frames, recompiles and guards, whether the model, a function that calls it or its call is compiled."""
    ended = watched(COMPILED_CALLS, sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert "\nTrue\n" in f"\n{ended.stderr}" and re.search(r"1 rank, calls \d+ to \d+", ended.stderr), ended.stderr
    bare = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=True)
    assert json.loads(ended.stdout) == json.loads(bare.stdout)


SERVED = """
    import copy, io, sys, threading, time, torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=None)
    model, prompt = GPT2LMHeadModel(config).eval(), torch.zeros(1, 4, dtype=torch.long)
    before = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    done = [0, 0]
    def serve(idx):
        while time.monotonic() < ends:
            answer = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
            assert torch.equal(answer, before)
            done[idx] += 1
    ends = time.monotonic() + 6
    threads = [threading.Thread(target=serve, args=(idx,)) for idx in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    torch.save(model.state_dict(), io.BytesIO())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.lm_head.weight.zero_()
    assert twin(prompt).logits.abs().sum() == 0 and model(prompt).logits.abs().sum() > 0  # each is itself
    print(sum(done))
"""


def test_generate_of_transformers_on_several_threads_is_the_call(watched):
    pytest.importorskip("transformers")
    ended = watched(SERVED, sys.executable)
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"1 rank, calls \d+ to (\d+)", ended.stderr)
    assert found, ended.stderr
    # Not one for each of the eight tokens; the first are not seen yet, and one is the call of the copy.
    assert 0.4 * int(ended.stdout) < int(found[1]) <= int(ended.stdout) + 4, ended.stderr
    assert "step" not in ended.stderr.split("Run ")[-1].split("RANK")[0], ended.stderr


APPLICATION = """
    import asyncio, threading, time, torch
    from torch import nn
    torch.set_num_threads(1)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        def forward(self, x):
            time.sleep(0.004)
            return self.layers(x)
    class Application:  # by the protocol of ASGI
        def __init__(self):
            self.models, self.answers = [Net().eval(), Net().eval()], []
        async def __call__(self, scope, receive, send):
            if scope["type"] == "lifespan":
                return await receive()
            with torch.inference_mode():
                [model(torch.ones(4, 64)) for model in self.models]  # two calls of a model, one request
                self.answers.append(torch.ones(32 << 10))
            await send({"type": "http.response.start", "status": 200})
    async def main():
        application, n = Application(), 0
        async def receive(): return {"type": "http.request"}
        async def send(message): await asyncio.sleep(0)
        ends = time.monotonic() + 40
        while time.monotonic() < ends:
            await asyncio.gather(*(application({"type": "http"}, receive, send) for _ in range(4)))
            n += 4
        print(n)
    asyncio.run(main())
"""


def test_leak_of_an_asgi_application_is_told_by_requests_with_its_holder(watched):
    ended = watched(APPLICATION, sys.executable, STEPMEM_CAPACITY="2GiB")
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"1 rank, calls \d+ to ([\d,]+)", ended.stderr)
    assert found, ended.stderr
    assert 0.5 * int(ended.stdout) < int(found[1].replace(",", "")) <= 1.3 * int(ended.stdout), ended.stderr
    assert re.search(r"grew by 12\d MiB per 1,000 calls", " ".join(ended.stderr.split())), ended.stderr
    assert "`Application.answers`" in ended.stderr and "from call to call" not in ended.stderr.split("Why")[0], ended.stderr


PREDICTED = """
    import sys, torch
    from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer, TrainingArguments
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=64, num_labels=2, pad_token_id=0)
    data = [{"input_ids": [1, 2, 3, 4], "labels": 0}] * 64
    arguments = TrainingArguments("out", per_device_eval_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True)
    trainer = Trainer(GPT2ForSequenceClassification(config), arguments)
    for _ in range(60):
        trainer.predict(data)
"""


def test_predict_of_transformers_is_the_call(watched):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    ended = watched(PREDICTED, sys.executable)
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"1 rank, calls \d+ to (\d+)", ended.stderr)
    assert found and 10 < int(found[1]) <= 61 + 16, ended.stderr  # one for each of 960 batches only in the first that is seen


COPIED = """
    import copy, json, pickle, sys, time, torch, torch.fx
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
        def forward(self, x):
            return self.a(x)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, x = Net().eval(), torch.ones(1, 4)
    for _ in range(80):
        model(x)
        time.sleep(0.01)
    print("_compiled_call_impl" in vars(Net), file=sys.stderr)
    read, twin = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    twin.a.weight.zero_()
    twin.a.bias.zero_()
    replica = model._replicate_for_data_parallel()
    graph = torch.fx.symbolic_trace(nn.Sequential(model, nn.ReLU()))
    others = [read, twin, replica, torch.jit.script(model), torch.jit.trace(model, x), graph, torch.export.export(model, (x,)).module()]
    handle = model.register_forward_hook(lambda module, inputs, output: output + 1)
    answers = [each(x).sum().item() for each in (model, *others)]
    print(json.dumps([answers, sorted(model.__dict__), [node.op for node in graph.graph.nodes]]))
"""


def test_model_whose_calls_count_is_copied_scripted_traced_and_exported_as_without_stepmem(watched, tmp_path):
    ended = watched(COPIED, sys.executable, PYTHONWARNINGS="ignore")
    assert ended.returncode == 0 and "\nTrue\n" in f"\n{ended.stderr}", ended.stderr
    bare = subprocess.run([sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=True)
    assert json.loads(ended.stdout) == json.loads(bare.stdout)
