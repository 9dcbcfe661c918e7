"""Planned restarts with the real PyTorch on the CPU under RLIMIT_DATA: a leaking job finishes, and dies without them."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from test_run import run, script  # noqa: F401  (fixtures)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch"),
]

LIMIT = """
    import os, resource, time, torch, stepmem
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_MIB << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
"""

PLAIN = """
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
    print("finished from", begun)
"""

TRAINER = """
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
    from stepmem.huggingface import StepmemCallback
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x):
            return {"loss": self.layer(x).mean()}
    class Leaks(TrainerCallback):
        kept = []
        def on_step_end(self, arguments, state, control, **named):
            self.kept.append(torch.ones(800_000))
            time.sleep(0.02)  # an answer comes once a second
    data = [{"x": torch.ones(4)} for _ in range(64)]
    arguments = TrainingArguments("out", max_steps=1500, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no")
    trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[StepmemCallback(checkpoint_before_oom=OPTS_IN), Leaks()])
    begun = os.path.isdir("out") and get_last_checkpoint("out") or None
    trainer.train(resume_from_checkpoint=begun)
    assert trainer.state.global_step == 1500
    print("finished from", begun.rpartition("-")[2] if begun else 0)
"""

LIGHTNING = """
    import glob, lightning.pytorch as pl
    from stepmem.lightning import StepmemCallback
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.kept = torch.nn.Linear(4, 1), []
        def training_step(self, batch, batch_idx):
            self.kept.append(torch.ones(800_000))
            time.sleep(0.02)  # an answer comes once a second
            return self.layer(batch).mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.randn(3000, 4), batch_size=2)
    trainer = pl.Trainer(max_steps=1500, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir="out",
        enable_progress_bar=False, enable_model_summary=False, callbacks=[StepmemCallback(checkpoint_before_oom=OPTS_IN)])
    saved = sorted(glob.glob("out/checkpoints/*.ckpt"), key=os.path.getmtime)
    trainer.fit(Model(), data, ckpt_path=saved[-1] if saved else None)
    assert trainer.global_step == 1500
    print("finished from", saved[-1].rpartition("=")[2].partition(".")[0] if saved else 0)
"""

TWO_RANKS = """
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    begun = 0
    if os.path.exists("checkpoint.pt"):
        kept = torch.load("checkpoint.pt")
        model.load_state_dict(kept["model"])
        begun = kept["step"]
    def save(deadline):
        dist.barrier()  # hangs unless all ranks are here
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, "new.pt")
            os.replace("new.pt", "checkpoint.pt")
    if OPTS_IN:
        stepmem.on_memory_deadline(save)
    kept = []
    for step in range(begun + 1, 1501):
        time.sleep(0.02)  # ranks need some seconds to agree
        loss = model(torch.randn(64, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1:
            kept.append(torch.ones(800_000))
        stepmem.step_end(step)
    dist.destroy_process_group()
    if rank == 0:
        print("finished from", begun, flush=True)
"""

JOBS = {
    "plain": (PLAIN, 1400, "5s", ()),
    "trainer": (TRAINER, 3584, "5s", ()),
    "lightning": (LIGHTNING, 3584, "5s", ()),
    "torchrun": (TWO_RANKS, 3072, "1m", ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
}


@pytest.fixture
def job(run, script):  # noqa: F811
    def start(name: str, opts_in: bool, *options: str):
        code, mebibytes, before, launcher = JOBS[name]
        code = LIMIT.replace("LIMIT_MIB", str(mebibytes)) + code.replace("OPTS_IN", str(opts_in))
        return run(sys.executable, *launcher, script(code), options=("--checkpoint.before", before, *options), OMP_NUM_THREADS="1").ended()

    return start


@pytest.mark.parametrize("name", JOBS)
def test_leaking_job_finishes_by_planned_restarts(job, name):
    ended = job(name, True, "--restart-on-deadline")
    assert ended.code == 0, ended.err
    assert re.search(r"(?m)^finished from [1-9]\d*$", ended.out), ended.out
    assert re.search(r"(?m)^\d+ planned restarts?, 0 steps lost; the leak costs [\d.]+% of the time\.$", ended.err), ended.err


@pytest.mark.parametrize("name", JOBS)
def test_leaking_job_dies_if_it_did_not_opt_in(job, name):
    ended = job(name, False, "--restart-on-deadline")
    assert ended.code != 0 and "alloc" in ended.err, ended.err
    assert "finished" not in ended.out and "stepmem: planned restart" not in ended.err
