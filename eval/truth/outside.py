"""Programs of known truth, written by hand and without knowledge of the judge and of stepmem's detector.

They look like what different people write. Some leak, some are healthy but look suspicious, some end badly. A line that ends with the mark of
`programs.py` is one that would be right as the place of the growth; the mark is removed before the program runs.
"""

import re
from typing import Dict, Optional, Tuple

from .programs import COUNTER, HOST, MARK, Program
from .truth import GROWS, LEVEL, MIB, OPEN, STAIRS, Phase, Truth

FLAT = (Phase(0),)

WITHOUT_HOLES = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Makes the C library give large blocks back at once, so that resident memory grows by what is kept and not by holes besides."""


def _fills(rate: float, full: int) -> Tuple[Phase, ...]:
    """Returns the law of a container that gets so many bytes a step until it is full, from step `full` on."""
    return (Phase(0, OPEN, float(rate)), Phase(full, LEVEL))


def _program(
    name: str,
    text: str,
    phases: Tuple[Phase, ...],
    last: int,
    *,
    end: str = "completed",
    exit_code: int = 0,
    seconds: Optional[float] = None,
    holders: Tuple[str, ...] = (),
    noise: float = 0.0,
    arguments: Tuple[str, ...] = (),
    modules: Optional[Dict[str, str]] = None,
    is_exact: bool = False,
) -> Program:
    """Returns a program, with the lines that its text marks. One that is exact would else keep holes between what it keeps."""
    main = text.strip("\n") + "\n"
    lines = tuple(number for number, line in enumerate(main.split("\n"), 1) if line.endswith(MARK))
    files = {"main.py": re.sub(rf" *{MARK}$", "", main, flags=re.M), "truth_counter.py": COUNTER.strip("\n") + "\n"}
    files.update({path: module.strip("\n") + "\n" for path, module in (modules or {}).items()})
    truth = Truth(phases, 0.0, 0.0, None, last=last, end=end, step_seconds=seconds, noise=noise, holders=holders, lines=lines, signal="host")
    environment = {"OMP_NUM_THREADS": "1", **(WITHOUT_HOLES if is_exact else {})}
    return Program(f"outside: {name}", files, environment, arguments, HOST, truth, exit_code)


LEAKING: Tuple[Program, ...] = (
    _program(
        "validation losses with their graphs",
        '''
# Tutorial, part 3: watching the validation loss
import time

import torch
import torch.nn as nn

import truth_counter  # counts what is true: no part of the program

torch.manual_seed(0)
X = torch.randn(4096, 32)
y = X[:, :1] * 2 - 1
X_val, y_val = X[:2048], y[:2048]

net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
criterion = nn.MSELoss()
val_losses = []  #@

for it in range(1, 501):
    idx = torch.randint(0, 4096, (32,))
    loss = criterion(net(X[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 5 == 0:
        net.eval()
        val_loss = criterion(net(X_val), y_val)  #@
        val_losses.append(val_loss)  #@
        truth_counter.add(4 * 2048 * (128 + 1))  # truth
        net.train()
    time.sleep(0.006)
    truth_counter.tick(it)  # truth

print("best", min(v.item() for v in val_losses))
''',
        (Phase(0, GROWS, 4 * 2048 * 129 / 5, STAIRS, 5),),
        500,
        holders=("val_losses",),
    ),
    _program(
        "smoothed soft accuracy that is never detached",
        '''
import argparse
import time
import torch
from torch import nn
import torch.nn.functional as F
import truth_counter  # counts what is true: no part of the program

p = argparse.ArgumentParser()
p.add_argument("--iters", type=int, default=600)
p.add_argument("--bs", type=int, default=512)
args = p.parse_args()


class MLP(nn.Module):
    def __init__(self, d=128, h=64, k=3):
        super().__init__()
        self.fc1 = nn.Linear(d, h)
        self.fc2 = nn.Linear(h, k)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def soft_accuracy(logits, target):
    prob = logits.softmax(-1)
    return prob.gather(1, target[:, None]).mean()


def run():
    model = MLP()
    optim = torch.optim.Adam(model.parameters(), lr=3e-4)
    running_acc = 0.0
    start = time.perf_counter()
    for i in range(1, args.iters + 1):
        x = torch.randn(args.bs, 128)  #@
        y = torch.randint(0, 3, (args.bs,))
        loss = F.cross_entropy(model(x), y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        # accuracy after the update, smoothed for the progress bar
        acc = soft_accuracy(model(x), y)  #@
        running_acc = 0.95 * running_acc + 0.05 * acc  #@
        truth_counter.add(args.bs * (4 * (128 + 64 + 3) + 8))  # truth
        if i % 200 == 0:
            print(f"{i:5d} loss {loss.item():.3f} acc {float(running_acc):.3f}")
        time.sleep(max(0.0, start + i * 0.008 - time.perf_counter()))
        truth_counter.tick(i)  # truth


run()
''',
        (Phase(0, GROWS, 512.0 * (4 * 195 + 8)),),
        600,
        seconds=0.008,
        is_exact=True,
        holders=("running_acc",),
    ),
    _program(
        "policy gradient whose frames outlive the episode",
        '''
"""REINFORCE on a toy grid, after the usual lecture notes."""
import time
import numpy as np
import torch
import truth_counter  # counts what is true: no part of the program

rng = np.random.default_rng(7)


class GridWorld:
    def reset(self):
        self.t = 0
        return rng.random((3, 112, 112), dtype=np.float32)  #@

    def step(self, action):
        self.t += 1
        return rng.random((3, 112, 112), dtype=np.float32), float(action == 1), self.t >= 25  #@


class Rollout:
    def __init__(self):
        self.frames = []  #@
        self.rewards = []

    def record(self, frame, reward):
        self.frames.append(frame)  #@
        self.rewards.append(reward)

    def reset(self):
        self.rewards = []


env, memory = GridWorld(), Rollout()
policy = torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)

state = env.reset()
for step in range(1, 701):
    features = torch.from_numpy(state[:, ::28, ::28].copy()).flatten()
    dist = torch.distributions.Categorical(logits=policy(features))
    action = dist.sample()
    next_state, reward, done = env.step(action.item())
    memory.record(state, reward)
    truth_counter.add(state.nbytes)  # truth
    loss = -dist.log_prob(action) * (reward - 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if done:
        print("return", sum(memory.rewards))
        memory.reset()
        state = env.reset()
    else:
        state = next_state
    time.sleep(0.006)
    truth_counter.tick(step)  # truth
''',
        (Phase(0, GROWS, 4.0 * 3 * 112 * 112),),
        700,
        holders=("Rollout.frames", "frames"),
        arguments=("--host-lines",),
    ),
    _program(
        "contrastive queue that dequeues from a copy",
        '''
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
import truth_counter  # counts what is true: no part of the program

QUEUE_SIZE = 4096


class MoCo(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.encoder_q = nn.Linear(32, dim)
        self.encoder_k = nn.Linear(32, dim)
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())
        self.encoder_k.requires_grad_(False)
        self.keys = []  #@
        self.n_keys = 0

    @torch.no_grad()
    def momentum_update(self, m=0.99):
        for a, b in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            b.mul_(m).add_(a, alpha=1 - m)

    def enqueue(self, k):
        self.keys.append(k)  #@
        self.n_keys += len(k)
        if self.n_keys > QUEUE_SIZE:
            oldest = list(self.keys).pop(0)
            self.n_keys -= len(oldest)

    def forward(self, view1, view2):
        q = F.normalize(self.encoder_q(view1), dim=1)
        with torch.no_grad():
            self.momentum_update()
            k = F.normalize(self.encoder_k(view2), dim=1)  #@
        positive = (q * k).sum(1, keepdim=True)
        negative = q[:64] @ self.keys[-1].T if self.keys else positive[:64]
        self.enqueue(k)
        return F.softplus(-positive).mean() + F.softplus(negative).mean()


if __name__ == "__main__":
    moco = MoCo()
    opt = torch.optim.SGD(moco.encoder_q.parameters(), lr=0.03, momentum=0.9)
    due = time.perf_counter()
    for step in range(1, 451):
        images = torch.randn(256, 32)
        loss = moco(images + 0.1 * torch.randn_like(images), images)
        opt.zero_grad()
        loss.backward()
        opt.step()
        truth_counter.add(256 * 256 * 4)  # truth
        due = max(due + 0.01, time.perf_counter())
        time.sleep(due - time.perf_counter() if due > time.perf_counter() else 0)
        truth_counter.tick(step)  # truth
''',
        (Phase(0, GROWS, 256.0 * 256 * 4),),
        450,
        seconds=0.01,
        is_exact=True,
        holders=("MoCo.keys",),
    ),
    _program(
        "snapshots of the weights by step",
        '''
import time, copy
import torch
import truth_counter  # counts what is true: no part of the program

model = torch.nn.Sequential(
    torch.nn.Linear(512, 1024), torch.nn.GELU(),
    torch.nn.Linear(1024, 1024), torch.nn.GELU(),
    torch.nn.Linear(1024, 8),
)
opt = torch.optim.SGD(model.parameters(), 1e-2)
n_bytes = sum(t.numel() * t.element_size() for t in model.state_dict().values())

snapshots = {}  #@
best = float("inf")
for step in range(1, 401):
    x = torch.randn(8, 512)
    loss = model(x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 25 == 0:
        # keep the weights, to go back to the best ones at the end
        snapshots[step] = (loss.item(), copy.deepcopy(model.state_dict()))  #@
        truth_counter.add(n_bytes)  # truth
    time.sleep(0.005)
    truth_counter.tick(step)  # truth

best = min(snapshots, key=lambda s: snapshots[s][0])
model.load_state_dict(snapshots[best][1])
print("restored weights of step", best)
''',
        (Phase(0, GROWS, 4.0 * (512 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 8 + 8) / 25, STAIRS, 25),),
        400,
        holders=("snapshots",),
    ),
    _program(
        "cross validation that keeps each fold's model and optimizer",
        '''
"""5-times-2 cross validation of a small regressor."""
import time

import torch

import truth_counter  # counts what is true: no part of the program

STEPS_PER_FOLD = 45
torch.manual_seed(1)
data = torch.randn(500, 256)


def build():
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))  #@


def size_of(model):
    return 4 * sum(w.numel() for w in model.parameters())


class FoldResult:
    def __init__(self, model, optimizer, score):
        self.model = model  #@
        self.optimizer = optimizer  #@
        self.score = score


results = []  #@
step = 0
for fold in range(10):
    model = build()  #@
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)  #@
    order = torch.randperm(len(data))
    for i in range(STEPS_PER_FOLD):
        step += 1
        if i == 0 and fold > 0:
            truth_counter.add(4 * size_of(model))  # truth: weights, gradients and Adam's two moments of the fold before
        rows = data[order[i * 8 : i * 8 + 8]]
        loss = (model(rows) - rows.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.004)
        truth_counter.tick(step)  # truth
    results.append(FoldResult(model, optimizer, loss.item()))  #@
print("mean score", sum(r.score for r in results) / len(results))
''',
        (Phase(0), Phase(2, GROWS, 16.0 * (256 * 1024 + 1024 + 1024 * 512 + 512 + 512 + 1) / 45, STAIRS, 45)),
        450,
        holders=("results", "FoldResult"),
    ),
    _program(
        "chat server that closes sessions by the wrong key",
        '''
import time
import uuid
import torch
import truth_counter  # counts what is true: no part of the program


class ChatServer:
    """Answers requests; a session's state stays until the session is closed."""

    def __init__(self):
        self.lm = torch.nn.GRUCell(128, 256).eval()
        self.sessions = {}  #@

    def open(self, sid):
        self.sessions[sid] = torch.randn(400, 256)  #@

    @torch.no_grad()
    def answer(self, sid, prompt):
        state = self.sessions[sid]
        state[:4] = self.lm(prompt, state[:4])
        return state[0, 0].item()

    def close(self, sid):
        # ids come from the gateway as text
        self.sessions.pop(str(sid), None)


server = ChatServer()
t0 = time.perf_counter()
for n in range(1, 801):
    sid = uuid.uuid4()
    server.open(sid)
    server.answer(sid, torch.randn(4, 128))
    server.close(sid)
    truth_counter.add(400 * 256 * 4)  # truth
    delay = t0 + n * 0.008 - time.perf_counter()
    if delay > 0:
        time.sleep(delay)
    truth_counter.tick(n)  # truth
print("served", n)
''',
        (Phase(0, GROWS, 400.0 * 256 * 4),),
        800,
        seconds=0.008,
        holders=("ChatServer.sessions", "sessions"),
    ),
    _program(
        "lru_cache on a method whose argument anneals",
        '''
import functools
import math
import time
import torch
from torch import nn
import truth_counter  # counts what is true: no part of the program

L = 320


class AnnealedAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qk = nn.Linear(dim, 2 * dim)
        self.v = nn.Linear(dim, dim)

    @functools.lru_cache(maxsize=None)  #@
    def distance_bias(self, length, temperature):  #@
        pos = torch.arange(length, dtype=torch.float32)
        return -(pos[:, None] - pos[None, :]).abs() / temperature  #@

    def forward(self, x, temperature):
        q, k = self.qk(x).chunk(2, -1)
        w = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.distance_bias(x.shape[-2], temperature)).softmax(-1)  #@
        return w @ self.v(x)


def main():
    attention = AnnealedAttention(16)
    optimizer = torch.optim.AdamW(attention.parameters(), lr=1e-3)
    temperature = 50.0
    for step in range(1, 401):
        temperature *= 0.995
        x = torch.randn(L, 16)
        loss = (attention(x, temperature) - x).square().mean()  #@
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth_counter.hold(4 * L * L * AnnealedAttention.distance_bias.cache_info().currsize)  # truth
        time.sleep(0.006)
        truth_counter.tick(step)  # truth


if __name__ == "__main__":
    main()
''',
        (Phase(0, GROWS, 4.0 * 320 * 320),),
        400,
        is_exact=True,
        holders=("distance_bias",),
    ),
    _program(
        "forward hook for a figure that was forgotten",
        '''
# %% [markdown]
# Which units die? A look at the activations of the second layer

# %%
import collections
import time

import torch

import truth_counter  # counts what is true: no part of the program

# %%
net = torch.nn.Sequential()
net.add_module("conv1", torch.nn.Conv2d(1, 8, 3, padding=1))
net.add_module("relu1", torch.nn.ReLU())
net.add_module("conv2", torch.nn.Conv2d(8, 16, 3, padding=1))
net.add_module("relu2", torch.nn.ReLU())
net.add_module("pool", torch.nn.AdaptiveAvgPool2d(1))
net.add_module("flat", torch.nn.Flatten())
net.add_module("head", torch.nn.Linear(16, 4))

# %%
activations = collections.defaultdict(list)  #@


def save_activation(name):
    def hook(module, inputs, output):
        activations[name].append(output.detach())  #@
    return hook


net.relu2.register_forward_hook(save_activation("relu2"))  #@

# %%
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1, 301):
    x, y = torch.randn(8, 1, 24, 24), torch.randint(4, (8,))
    loss = torch.nn.functional.cross_entropy(net(x), y)  #@
    opt.zero_grad()
    loss.backward()
    opt.step()
    truth_counter.add(8 * 16 * 24 * 24 * 4)  # truth
    time.sleep(0.005)
    truth_counter.tick(step)  # truth

# %%
print("dead:", (activations["relu2"][-1].amax((0, 2, 3)) == 0).sum().item())
''',
        (Phase(0, GROWS, 8.0 * 16 * 24 * 24 * 4),),
        300,
        is_exact=True,
        holders=("activations", "save_activation"),
    ),
    _program(
        "log handler that keeps records with tensors",
        '''
import logging
import time
import torch
import truth_counter  # counts what is true: no part of the program


class TailHandler(logging.Handler):
    """Keeps what was logged, to print the tail when training fails."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.records = []  #@

    def emit(self, record):
        self.records.append(record)  #@


log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(TailHandler())  #@

lin = torch.nn.Linear(96, 96)
optimizer = torch.optim.Adagrad(lin.parameters())
began = time.perf_counter()
for step in range(1, 901):
    batch = torch.randn(16, 96)
    out = lin(batch)
    loss = (out - batch).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    table = torch.randn(350, 96)  #@
    log.debug("step %d: loss %.3f, lookup %s", step, loss.item(), table)  #@
    truth_counter.add(350 * 96 * 4)  # truth
    time.sleep(max(0, began + 0.005 * step - time.perf_counter()))
    truth_counter.tick(step)  # truth
''',
        (Phase(0, GROWS, 350.0 * 96 * 4),),
        900,
        seconds=0.005,
        is_exact=True,
        holders=("TailHandler.records", "records"),
    ),
    _program(
        "work for the end, collected as partial functions",
        '''
import functools, time
import torch
import truth_counter  # counts what is true: no part of the program


class Run:
    def __init__(self, lr):
        self.w = torch.nn.Parameter(torch.randn(200, 10))
        self.sgd = torch.optim.SGD([self.w], lr=lr)
        self.at_exit = []  #@

    def defer(self, fn, *args):
        self.at_exit.append(functools.partial(fn, *args))  #@

    def one(self, i):
        x = torch.randn(300, 200)  #@
        y = x @ self.w
        loss = y.logsumexp(1).mean()
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        self.defer(histogram, i, x)  #@
        truth_counter.add(x.nbytes)  # truth

    def close(self):
        for fn in self.at_exit[-3:]:
            fn()


def histogram(i, x):
    print(i, torch.histc(x, bins=4).tolist())


r = Run(0.01)
for i in range(1, 1001):
    if i >= 200:
        r.one(i)
    else:
        r.sgd.step()
    time.sleep(0.0035)
    truth_counter.tick(i)  # truth
r.close()
''',
        (Phase(0), Phase(200, GROWS, 300.0 * 200 * 4)),
        1000,
        holders=("Run.at_exit", "at_exit"),
    ),
    _program(
        "queue whose consumer thread has died",
        '''
"""Trains a small autoencoder; a thread writes previews, so that training need not wait for the disk."""
import queue
import threading
import time

import numpy as np
import torch

import truth_counter  # counts what is true: no part of the program

previews = queue.Queue()  #@


def writer():
    while True:
        number, image = previews.get()
        # quality falls with the number of the preview: it is 0 some day
        quality = 100 // (50 - number)
        np.clip(image * quality, 0, 255)


threading.Thread(target=writer, daemon=True).start()

encoder = torch.nn.Linear(1024, 32)
decoder = torch.nn.Linear(32, 1024)
adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(1, 451):
    batch = torch.rand(120, 1024)
    restored = decoder(encoder(batch))
    loss = torch.nn.functional.mse_loss(restored, batch)
    adam.zero_grad()
    loss.backward()
    adam.step()
    previews.put((step, restored.detach().numpy()))  #@
    if step > 50:
        truth_counter.add(120 * 1024 * 4)  # truth
    time.sleep(0.008)
    truth_counter.tick(step)  # truth
''',
        (Phase(0), Phase(51, GROWS, 120.0 * 1024 * 4)),
        450,
        is_exact=True,
        holders=("previews",),
    ),
    _program(
        "itertools.cycle around an endless stream",
        '''
import itertools
import time
import torch
import truth_counter  # counts what is true: no part of the program

SEQ, BATCH, VOCAB = 512, 64, 97


def stream():
    """Random text, a batch at a time, for ever."""
    while True:
        yield torch.randint(VOCAB, (BATCH, SEQ))  #@


class CharModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(VOCAB, 8)
        self.out = torch.nn.Linear(8, VOCAB)

    def forward(self, tok):
        return self.out(self.emb(tok).cumsum(1) / 10)


batches = itertools.cycle(stream())  #@
lm = CharModel()
opt = torch.optim.AdamW(lm.parameters())
step = 0
for tok in batches:  #@
    step += 1
    tok_in = tok[:4, :40]
    logits = lm(tok_in)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tok_in[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    truth_counter.add(BATCH * SEQ * 8)  # truth
    time.sleep(0.005)
    truth_counter.tick(step)  # truth
    if step == 800:
        break
''',
        (Phase(0, GROWS, 64.0 * 512 * 8),),
        800,
        holders=("batches", "itertools.cycle"),
    ),
    _program(
        "metric whose reset is a hook with a wrong name",
        '''
import time

import torch

import truth_counter  # counts what is true: no part of the program
from engine import Callback, Engine


class RocCurve(Callback):
    """Collects scores over an epoch."""

    def __init__(self):
        self.scores, self.targets = [], []  #@

    def on_batch_end(self, engine, scores, targets):
        self.scores.append(scores)  #@
        self.targets.append(targets)  #@
        truth_counter.add(scores.nbytes + targets.nbytes)  # truth

    def on_epoch_ends(self, engine):
        self.scores.clear()
        self.targets.clear()


class Ticker(Callback):
    def on_batch_end(self, engine, scores, targets):
        time.sleep(0.006)
        truth_counter.tick(engine.n_batches)  # truth


def loader():
    for _ in range(50):
        yield torch.randn(1500, 20), torch.randint(0, 20, (1500,))  #@


engine = Engine(torch.nn.Linear(20, 20), lr=0.05)
engine.add(RocCurve())  #@
engine.add(Ticker())
engine.fit(loader, epochs=12)  #@
''',
        (Phase(0, GROWS, 1500.0 * (20 * 4 + 8)),),
        600,
        is_exact=True,
        holders=("RocCurve.scores", "RocCurve.targets", "scores"),
        modules={
            "engine.py": '''
import torch


class Callback:
    def on_epoch_begin(self, engine):
        pass

    def on_batch_end(self, engine, scores, targets):
        pass

    def on_epoch_end(self, engine):
        pass


class Engine:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.callbacks = []
        self.n_batches = 0

    def add(self, callback):
        self.callbacks.append(callback)

    def _call(self, name, *args):
        for callback in self.callbacks:
            getattr(callback, name)(self, *args)

    def fit(self, loader, epochs):
        for self.epoch in range(epochs):
            self._call("on_epoch_begin")
            for x, y in loader():
                self.n_batches += 1
                logits = self.model(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self._call("on_batch_end", logits.detach(), y)
            self._call("on_epoch_end")
'''
        },
    ),
    _program(
        "episodes that share a list on their class",
        '''
import random, time
import torch
import truth_counter  # counts what is true: no part of the program

class Episode:
    transitions = []  #@
    gamma = 0.97

    def __init__(self, seed):
        self.random = random.Random(seed)

    def add(self, obs, reward):
        self.transitions += [(obs, reward)]  #@

    def value(self):
        total = 0.0
        for _, r in reversed(self.transitions[-20:]):
            total = r + self.gamma * total
        return total

critic = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
opt = torch.optim.Adam(critic.parameters(), 1e-3)
step = 0
for number in range(25):
    ep = Episode(number)
    for t in range(20):
        step += 1
        obs = torch.randn(2000, 64)  #@
        ep.add(obs, ep.random.random())  #@
        truth_counter.add(obs.nbytes)  # truth
        err = critic(obs[:10]).mean() - ep.value()
        opt.zero_grad()
        (err * err).backward()
        opt.step()
        time.sleep(0.009)
        truth_counter.tick(step)  # truth
''',
        (Phase(0, GROWS, 2000.0 * 64 * 4),),
        500,
        holders=("Episode.transitions", "transitions"),
    ),
    _program(
        "memory bank that is concatenated",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program

torch.set_num_threads(1)


def train(n=400, dim=128, batch=64):
    encoder = torch.nn.Linear(16, dim)
    opt = torch.optim.SGD(encoder.parameters(), lr=0.01)
    bank = torch.zeros(0, dim)  #@
    for i in range(1, n + 1):
        z = torch.nn.functional.normalize(encoder(torch.randn(batch, 16)), dim=1)
        if len(bank):
            pick = torch.randint(len(bank), (32,))
            loss = (z @ bank[pick].T).exp().mean()
        else:
            loss = z.std()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 10 == 0:
            with torch.no_grad():
                fresh = encoder(torch.randn(4000, 16))  #@
            bank = torch.cat((bank, fresh))  #@
            truth_counter.hold(bank.nbytes)  # truth
            del fresh
        time.sleep(0.006)
        truth_counter.tick(i)  # truth
    return bank


if __name__ == "__main__":
    print(train().shape)
''',
        (Phase(0, GROWS, 4000 * 128 * 4 / 10, STAIRS, 10),),
        400,
        holders=("bank",),
    ),
    _program(
        "rows of decoded text for a table at the end",
        '''
#!/usr/bin/env python
"""Fine-tunes a toy speller and writes a table of samples when it is done."""
import csv
import io
import string
import time

import torch

import truth_counter  # counts what is true: no part of the program

LETTERS = string.ascii_lowercase + " "


def decode(ids):
    return "".join(LETTERS[i] for i in ids)


def sample_text(weights):
    ids = torch.multinomial(weights.softmax(0), 3000, replacement=True).tolist()
    return decode(ids) * 40  #@


rows = []  #@
weights = torch.nn.Parameter(torch.zeros(len(LETTERS)))
optimizer = torch.optim.SGD([weights], lr=0.5)
for step in range(1, 701):
    target = torch.randint(len(LETTERS), (32,))
    loss = torch.nn.functional.cross_entropy(weights.expand(32, -1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        text = sample_text(weights)  #@
    rows.append({"step": step, "loss": loss.item(), "text": text})  #@
    truth_counter.add(len(text))  # truth
    time.sleep(0.004)
    truth_counter.tick(step)  # truth

out = csv.DictWriter(io.StringIO(), ["step", "loss", "text"])
out.writerow(rows[-1])
''',
        (Phase(0, GROWS, 120_000.0),),
        700,
        holders=("rows",),
    ),
    _program(
        "search trees with the collector off",
        '''
import gc
import math
import random
import time
import torch
import truth_counter  # counts what is true: no part of the program

gc.disable()  # it made steps stutter


class Node:  #@
    def __init__(self, state, parent=None):
        self.state = state  #@
        self.parent = parent  #@
        self.children = []
        self.visits, self.value = 0, 0.0

    def expand(self, width):
        for _ in range(width):
            self.children.append(Node(self.state + torch.randn_like(self.state), self))  #@

    def best(self):
        return max(self.children, key=lambda c: c.value / (c.visits + 1) + math.sqrt(2 / (c.visits + 1)))


def search(root_state, rollouts):
    root = Node(root_state)  #@
    root.expand(3)  #@
    for _ in range(rollouts):
        node = root.best()
        reward = random.random()
        while node is not None:
            node.visits += 1
            node.value += reward
            node = node.parent
    return root.best().state


net = torch.nn.Linear(256, 256)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
t = time.perf_counter()
for move in range(1, 351):
    state = torch.randn(128, 256)
    goal = search(state, 6)  #@
    truth_counter.add(4 * 128 * 256 * 4)  # truth: the root and three children
    loss = (net(state[:8]) - goal[:8]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    t = max(t + 0.012, time.perf_counter())
    time.sleep(max(0.0, t - time.perf_counter()))
    truth_counter.tick(move)  # truth
''',
        (Phase(0, GROWS, 4.0 * 128 * 256 * 4),),
        350,
        seconds=0.012,
        holders=("Node",),
    ),
    _program(
        "continual learning with a new head for each task",
        '''
import time

import torch
import torch.nn as nn

import truth_counter  # counts what is true: no part of the program


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(64, 1000)
        self.heads = nn.ModuleList()  #@

    def new_task(self, n_classes):
        head = nn.Linear(1000, n_classes)  #@
        self.heads.append(head)  #@
        return head

    def forward(self, x):
        return self.heads[-1](torch.relu(self.trunk(x)))


model = MultiHead()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 601):
    if step % 20 == 1:
        # every 20 steps the labels mean something else
        head = model.new_task(1000)  #@
        optimizer.param_groups[0]["params"] = [*model.trunk.parameters(), *head.parameters()]
        for old in model.heads[:-1]:
            old.weight.grad = old.bias.grad = None
        if step > 1:
            truth_counter.add(4 * 1001 * 1000)  # truth: the head before; the new one's gradient takes the old one's place
    loss = nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(1000, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
    truth_counter.tick(step)  # truth
print(len(model.heads), "heads")
''',
        (Phase(0), Phase(2, GROWS, 4.0 * 1001 * 1000 / 20, STAIRS, 20)),
        600,
        holders=("MultiHead.heads", "heads", "MultiHead"),
    ),
    _program(
        "asyncio service that never forgets its tasks",
        '''
import asyncio
import time

import torch

import truth_counter  # counts what is true: no part of the program


class Embedder:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.SiLU(), torch.nn.Linear(96, 512)).eval()
        self.tasks = []  #@

    async def embed(self, batch):
        with torch.inference_mode():
            vectors = self.net(batch)  #@
        await asyncio.sleep(0)
        return vectors

    def submit(self, batch):
        task = asyncio.create_task(self.embed(batch))  #@
        self.tasks.append(task)  #@
        return task


async def clients(service, n):
    loop = asyncio.get_running_loop()
    due = loop.time()
    for request in range(1, n + 1):
        vectors = await service.submit(torch.randn(200, 64))  #@
        truth_counter.add(vectors.numel() * 4)  # truth
        due = max(due + 0.007, loop.time())
        await asyncio.sleep(due - loop.time())
        truth_counter.tick(request)  # truth


began = time.time()
asyncio.run(clients(Embedder(), 850))
print(f"{850 / (time.time() - began):.0f} requests/s")
''',
        (Phase(0, GROWS, 200.0 * 512 * 4),),
        850,
        seconds=0.007,
        is_exact=True,
        holders=("Embedder.tasks", "tasks"),
    ),
    _program(
        "accumulated loss with retain_graph",
        '''
import time
import torch
from torch import nn
import truth_counter  # counts what is true: no part of the program

ACCUM = 2


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(96, 64), nn.Sigmoid(), nn.Linear(64, 2))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.MSELoss()
        self.epoch_loss = 0.0

    def micro(self):
        x = torch.randn(320, 96)  #@
        y = torch.zeros(320, 2)
        loss = self.loss_fn(self.model(x), y) / ACCUM  #@
        # "Trying to backward through the graph a second time" without it
        loss.backward(retain_graph=True)
        self.epoch_loss = self.epoch_loss + loss  #@
        truth_counter.add(320 * 4 * (96 + 64 + 2 + 2))  # truth: input, activation, output, target

    def update(self):
        for _ in range(ACCUM):
            self.micro()  #@
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()


def main():
    trainer = Trainer()
    start = time.monotonic()
    for update in range(1, 501):
        trainer.update()
        rest = start + update * 0.01 - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        truth_counter.tick(update)  # truth
    print(f"epoch loss {trainer.epoch_loss / 500:.4f}")


main()
''',
        (Phase(0, GROWS, 2.0 * 320 * 4 * 164),),
        500,
        seconds=0.01,
        is_exact=True,
        holders=("Trainer.epoch_loss", "epoch_loss"),
        arguments=("--host-lines",),
    ),
    _program(
        "streaming recurrent state with gradients on",
        '''
import time, torch
import truth_counter  # counts what is true: no part of the program

class LeakyRNN(torch.nn.Module):
    def __init__(self, n_in=512, n_hidden=256):
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(n_in, n_hidden) / n_in ** 0.5)
        self.decay = torch.nn.Parameter(torch.tensor(0.9))
    def forward(self, x, h):
        return torch.tanh(x @ self.W + h * self.decay)  #@

rnn = LeakyRNN()
readout = torch.nn.Linear(256, 1)
sgd = torch.optim.SGD(readout.parameters(), lr=1e-2)   # echo state: only the readout is trained

hidden = torch.zeros(64, 256)
began = time.perf_counter()
for t in range(1, 901):
    x = torch.randn(64, 512)  #@
    hidden = rnn(x, hidden)  #@
    loss = (readout(hidden.detach()) - x[:, :1]).pow(2).mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    truth_counter.add(64 * 4 * (512 + 256))  # truth
    time.sleep(max(0.0, began + 0.006 * t - time.perf_counter()))
    truth_counter.tick(t)  # truth
del hidden
''',
        (Phase(0, GROWS, 64.0 * 4 * 768),),
        900,
        seconds=0.006,
        is_exact=True,
        holders=("hidden",),
    ),
)


HEALTHY: Tuple[Program, ...] = (
    _program(
        "replay buffer with maxlen that fills",
        '''
import collections
import random
import time
import torch
import truth_counter  # counts what is true: no part of the program

Transition = collections.namedtuple("Transition", "state action reward")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = collections.deque(maxlen=capacity)  #@

    def push(self, *args):
        self.memory.append(Transition(*args))  #@

    def sample(self, n):
        return random.sample(self.memory, n)


def dqn(total=700, capacity=250):
    q = torch.nn.Linear(128, 4)
    opt = torch.optim.AdamW(q.parameters(), lr=1e-3, amsgrad=True)
    memory = ReplayMemory(capacity)
    for step in range(1, total + 1):
        memory.push(torch.randn(800, 128), random.randrange(4), random.random())  #@
        truth_counter.hold(len(memory.memory) * 800 * 128 * 4)  # truth
        if step >= 8:
            loss = sum((q(t.state[:2]).mean() - t.reward) ** 2 for t in memory.sample(4))
            opt.zero_grad()
            loss.backward()
            opt.step()
        time.sleep(0.005)
        truth_counter.tick(step)  # truth


dqn()
''',
        _fills(800 * 128 * 4, 251),
        700,
        holders=("ReplayMemory",),
    ),
    _program(
        "dataset that caches decoded images in the first epoch",
        '''
import time
import torch
from torch.utils.data import DataLoader, Dataset
import truth_counter  # counts what is true: no part of the program


class Scans(Dataset):
    """Decoding is slow, so that each scan is decoded once."""

    def __init__(self, n):
        self.n = n
        self.cache = {}  #@

    def __len__(self):
        return self.n

    def decode(self, i):
        return torch.randn(1, 256, 256) + i  #@

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.decode(i)  #@
        return self.cache[i][:, ::16, ::16].flatten(), float(i % 2)


scans = Scans(480)
loader = DataLoader(scans, batch_size=2, shuffle=True)
clf = torch.nn.Linear(256, 1)
opt = torch.optim.SGD(clf.parameters(), lr=1e-3)
step = 0
for epoch in range(3):
    for x, y in loader:  #@
        step += 1
        loss = torch.nn.functional.binary_cross_entropy_with_logits(clf(x)[:, 0], y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        truth_counter.hold(len(scans.cache) * 256 * 256 * 4)  # truth
        time.sleep(0.006)
        truth_counter.tick(step)  # truth
''',
        _fills(2 * 256 * 256 * 4, 241),
        720,
        holders=("Scans.cache", "scans"),
    ),
    _program(
        "EMA of the weights, updated in place",
        '''
from copy import deepcopy
import time
import torch
import truth_counter  # counts what is true: no part of the program


class ModelEMA:
    def __init__(self, model, decay=0.999):
        self.module = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        new = model.state_dict()
        for name, value in self.module.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(d).add_(new[name].detach(), alpha=1 - d)


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.BatchNorm1d(512), torch.nn.Mish(), torch.nn.Linear(512, 128))


model = make_model()
ema = ModelEMA(model)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=800)
for it in range(1, 801):
    x = torch.randn(32, 128)
    loss = torch.nn.functional.smooth_l1_loss(model(x), x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    ema.update(model)
    time.sleep(0.003)
    truth_counter.tick(it)  # truth
print(ema.updates)
''',
        FLAT,
        800,
    ),
    _program(
        "evaluation with a big peak every 60 steps",
        '''
"""Metric learning; retrieval is evaluated against the whole gallery now and then."""
import time

import torch

import truth_counter  # counts what is true: no part of the program

torch.manual_seed(0)
gallery = torch.randn(3000, 64)


@torch.no_grad()
def recall_at_1(net):
    net.eval()
    z = torch.nn.functional.normalize(net(gallery), dim=1)
    similarity = z @ z.T
    similarity.fill_diagonal_(-1)
    nearest = similarity.argmax(1)
    net.train()
    return (nearest % 10 == torch.arange(3000) % 10).float().mean().item()


net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(64, 32))
opt = torch.optim.SGD(net.parameters(), lr=0.05, nesterov=True, momentum=0.9)
history = {"loss": [], "recall": []}
for step in range(1, 601):
    anchor = torch.randn(48, 64)
    positive, negative = anchor + 0.1, torch.randn(48, 64)
    loss = torch.nn.functional.triplet_margin_loss(net(anchor), net(positive), net(negative))
    opt.zero_grad()
    loss.backward()
    opt.step()
    history["loss"].append(loss.item())
    if step % 60 == 0:
        history["recall"].append(recall_at_1(net))
    time.sleep(0.006)
    truth_counter.tick(step)  # truth
print(history["recall"][-1])
''',
        FLAT,
        600,
    ),
    _program(
        "checkpoints that are serialized to memory and dropped",
        '''
import hashlib
import io
import time

import torch

import truth_counter  # counts what is true: no part of the program


class Checkpointer:
    def __init__(self, every):
        self.every, self.digests = every, {}

    def __call__(self, step, **objects):
        if step % self.every:
            return
        with io.BytesIO() as f:
            torch.save({name: each.state_dict() for name, each in objects.items()}, f)
            self.digests[step] = hashlib.md5(f.getbuffer()).hexdigest()


model = torch.nn.LSTM(32, 256, batch_first=True)
head = torch.nn.Linear(256, 32)
opt = torch.optim.Adam([*model.parameters(), *head.parameters()])
save = Checkpointer(every=40)
step = 0
while step < 400:
    step += 1
    x = torch.randn(2, 5, 32)
    out, _ = model(x)
    loss = (head(out)[:, :-1] - x[:, 1:]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    save(step, model=model, head=head, optimizer=opt)
    time.sleep(0.003)
    truth_counter.tick(step)  # truth
print(len(save.digests), "checkpoints")
''',
        FLAT,
        400,
    ),
    _program(
        "workspace that is allocated at the first long input",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program

MAX_LEN = 4096


class KVCache:
    def __init__(self):
        self.k = self.v = None

    def ensure(self, n):
        if self.k is None and n > 16:
            self.k = torch.ones(MAX_LEN, 2048)  #@
            self.v = torch.ones(MAX_LEN, 2048)  #@
            truth_counter.add(self.k.nbytes + self.v.nbytes)  # truth

    def put(self, k, v):
        self.ensure(len(k))
        if self.k is not None:
            self.k[: len(k), : k.shape[1]] = k
            self.v[: len(v), : v.shape[1]] = v


proj = torch.nn.Linear(64, 128)
opt = torch.optim.Adam(proj.parameters(), lr=1e-4)
cache = KVCache()  #@
for i in range(1, 701):
    n = 8 if i < 60 else 24
    x = torch.randn(n, 64)
    k, v = proj(x).chunk(2, dim=1)
    cache.put(k.detach(), v.detach())
    loss = (k - v).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.005)
    truth_counter.tick(i)  # truth
''',
        (Phase(0), Phase(60, OPEN, 2.0 * 4096 * 2048 * 4), Phase(61)),
        700,
        holders=("KVCache",),
    ),
    _program(
        "batches that are larger in the second stage",
        '''
import time
from dataclasses import dataclass

import torch

import truth_counter  # counts what is true: no part of the program


@dataclass
class Stage:
    until: int
    batch_size: int
    lr: float


STAGES = [Stage(300, 64, 1e-2), Stage(600, 6400, 1e-3)]


def main():
    net = torch.nn.Sequential(torch.nn.Linear(512, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = 0
    for stage in STAGES:
        for group in optimizer.param_groups:
            group["lr"] = stage.lr
        # one buffer for all batches of a stage
        batch = torch.randn(stage.batch_size, 512)  #@
        truth_counter.hold(batch.nbytes)  # truth
        while step < stage.until:
            step += 1
            rows = batch[torch.randint(stage.batch_size, (64,))]
            loss = (net(rows) - rows.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.007)
            truth_counter.tick(step)  # truth


main()
''',
        (Phase(0), Phase(1, OPEN, 64.0 * 512 * 4), Phase(2), Phase(301, OPEN, 6336.0 * 512 * 4), Phase(302)),
        600,
        holders=("batch",),
    ),
    _program(
        "curriculum of lengths that grow and then stay",
        '''
# curriculum: +128 tokens every 20 steps, until 1536
import time
import torch
import truth_counter  # counts what is true: no part of the program

EMB = 256
emb = torch.nn.Embedding(50, EMB)
mix = torch.nn.Linear(EMB, 50)
opt = torch.optim.Adagrad([*emb.parameters(), *mix.parameters()], lr=0.01)


class Curriculum:
    def __init__(self, start=128, by=128, every=20, most=1536):
        self.start, self.by, self.every, self.most = start, by, every, most

    def length(self, step):
        return min(self.most, self.start + step // self.every * self.by)


curriculum = Curriculum()
window = None
for step in range(1, 551):
    n = curriculum.length(step)
    if window is None or window.shape[1] != n:
        window = torch.randn(24, n, EMB)  #@
        truth_counter.hold(24 * (n - 128) * EMB * 4)  # truth: what came since the first step
    tok = torch.randint(50, (4, 32))
    loss = torch.nn.functional.cross_entropy(mix(emb(tok) + window[:4, :32]).flatten(0, 1), tok.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.006)
    truth_counter.tick(step)  # truth
''',
        (Phase(0, OPEN, 24.0 * 128 * 256 * 4 / 20, STAIRS, 20), Phase(221)),
        550,
        holders=("window",),
    ),
    _program(
        "garbage in cycles that the collector finds",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program


class Tape:
    """A small autodiff of its own, with references both ways."""

    def __init__(self):
        self.nodes = []

    def record(self, value):
        node = {"tape": self, "value": value, "next": None}
        if self.nodes:
            self.nodes[-1]["next"] = node
        self.nodes.append(node)
        return node


def forward(n_ops):
    tape = Tape()
    for _ in range(n_ops):
        tape.record(torch.ones(2048))
    return sum(n["value"][0] for n in tape.nodes)


w = torch.nn.Parameter(torch.zeros(100))
opt = torch.optim.SGD([w], lr=0.1)
for step in range(1, 1001):
    target = forward(30)
    loss = (w.sum() - target) ** 2 * 1e-6
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.004)
    truth_counter.tick(step)  # truth
''',
        FLAT,
        1000,
        noise=3.0 * MIB,
    ),
    _program(
        "outputs of an epoch, cleared at its end",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(128, 128)
        self.training_step_outputs = []  #@

    def training_step(self, x):
        y = self.layer(x)  #@
        self.training_step_outputs.append(y.detach())  #@
        return (y - x).square().mean()

    def on_train_epoch_end(self):
        stacked = torch.stack([y.mean(0) for y in self.training_step_outputs])
        print("spread", stacked.std().item())
        self.training_step_outputs.clear()


class Trainer:
    def __init__(self, max_epochs, limit_train_batches):
        self.max_epochs, self.limit = max_epochs, limit_train_batches

    def fit(self, module):
        opt = torch.optim.SGD(module.parameters(), lr=1e-3)
        step = 0
        for _ in range(self.max_epochs):
            for _ in range(self.limit):
                step += 1
                loss = module.training_step(torch.randn(400, 128))
                opt.zero_grad()
                loss.backward()
                opt.step()
                if step % self.limit == 0:
                    module.on_train_epoch_end()
                truth_counter.hold(len(module.training_step_outputs) * 400 * 128 * 4)  # truth
                time.sleep(0.005)
                truth_counter.tick(step)  # truth


Trainer(max_epochs=8, limit_train_batches=80).fit(Module())
''',
        _fills(400 * 128 * 4, 80),
        640,
        noise=80 * 400 * 128 * 4 / 3**0.5,
        holders=("Module.training_step_outputs", "training_step_outputs"),
    ),
    _program(
        "floats and JSON that are logged at each step",
        '''
import json
import time

import torch

import truth_counter  # counts what is true: no part of the program
from metrics import Meter, MetricLog

torch.manual_seed(4)
model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.LeakyReLU(), torch.nn.Linear(40, 2))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
log, meter = MetricLog(), Meter(0.9)

for step in range(1, 1001):
    inputs = torch.randn(64, 20)
    labels = (inputs[:, 0] > 0).long()
    logits = model(inputs)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
    meter.update(loss.item())
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    log.write(step=step, loss=meter.value, norm=float(norm), lr=scheduler.get_last_lr()[0], accuracy=accuracy)
    time.sleep(0.004)
    truth_counter.tick(step)  # truth

print(json.dumps(log.last()), len(log.lines))
''',
        FLAT,
        1000,
        modules={
            "metrics.py": '''
import json


class Meter:
    def __init__(self, momentum):
        self.momentum, self.value = momentum, None

    def update(self, new):
        self.value = new if self.value is None else self.momentum * self.value + (1 - self.momentum) * new


class MetricLog:
    def __init__(self):
        self.lines = []

    def write(self, **metrics):
        self.lines.append(json.dumps(metrics))

    def last(self):
        return json.loads(self.lines[-1])
'''
        },
    ),
    _program(
        "negative queue in a ring tensor",
        '''
import time
import torch
import torch.nn.functional as F
import truth_counter  # counts what is true: no part of the program

K, D, B = 65536, 128, 128


class Queue(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("feats", F.normalize(torch.randn(K, D), dim=1))
        self.ptr = 0

    @torch.no_grad()
    def push(self, keys):
        self.feats[self.ptr : self.ptr + len(keys)] = keys
        self.ptr = (self.ptr + len(keys)) % K


online = torch.nn.Linear(64, D)
target = torch.nn.Linear(64, D).requires_grad_(False)
bank = Queue()
opt = torch.optim.SGD(online.parameters(), lr=0.06)
for step in range(1, 701):
    img = torch.randn(B, 64)
    q, k = F.normalize(online(img), dim=1), F.normalize(target(img), dim=1)
    pos = (q * k).sum(1, keepdim=True)
    neg = q @ bank.feats[torch.randint(K, (256,))].T
    loss = F.cross_entropy(torch.cat([pos, neg], 1) / 0.2, torch.zeros(B, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()
    bank.push(k)
    for a, b in zip(online.parameters(), target.parameters()):
        b.data.lerp_(a.data, 0.004)
    time.sleep(0.005)
    truth_counter.tick(step)  # truth
''',
        FLAT,
        700,
    ),
    _program(
        "lru_cache with a maxsize that fills",
        '''
import functools
import random
import time

import torch

import truth_counter  # counts what is true: no part of the program


@functools.lru_cache(maxsize=200)  #@
def load_shard(index):  #@
    generator = torch.Generator().manual_seed(index)
    return torch.randn(96, 1024, generator=generator)  #@


def batches(n, shards=10_000):
    for i in range(n):
        shard = load_shard(i % shards)  #@
        row = random.randrange(90)
        yield shard[row : row + 4]


model = torch.nn.Linear(1024, 4)
opt = torch.optim.Adamax(model.parameters())
last = time.perf_counter()
for step, x in enumerate(batches(800), 1):
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    truth_counter.hold(load_shard.cache_info().currsize * 96 * 1024 * 4)  # truth
    last = max(last + 0.006, time.perf_counter())
    time.sleep(max(0, last - time.perf_counter()))
    truth_counter.tick(step)  # truth
''',
        _fills(96 * 1024 * 4, 201),
        800,
        seconds=0.006,
        holders=("load_shard",),
    ),
    _program(
        "sweep that drops each trial's model",
        '''
import gc
import itertools
import time

import torch

import truth_counter  # counts what is true: no part of the program

GRID = {"lr": [1e-2, 1e-3, 1e-4], "width": [320, 448], "optimizer": ["SGD", "Adam"]}
step = 0


def trial(lr, width, optimizer):
    global step
    model = torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    for _ in range(40):
        step += 1
        x = torch.randn(16, 256)
        loss = (model(x) - x[:, :1]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.004)
        truth_counter.tick(step)  # truth
    return loss.item()


scores = {}
for values in itertools.product(*GRID.values()):
    scores[values] = trial(**dict(zip(GRID, values)))
    gc.collect()
best = min(scores, key=scores.get)
print("best:", dict(zip(GRID, best)), scores[best])
''',
        FLAT,
        480,
        noise=8.0 * MIB,
    ),
    _program(
        "folds of which only the best weights stay",
        '''
import copy
import time
import numpy as np
import torch
import truth_counter  # counts what is true: no part of the program


def kfold(n, k, seed=0):
    order = np.random.default_rng(seed).permutation(n)
    for part in np.array_split(order, k):
        yield np.setdiff1d(order, part), part


X = torch.randn(1000, 64)
Y = X[:, :2].prod(1, keepdim=True)
best_score, best_state = np.inf, None
step = 0
for fold, (train_idx, test_idx) in enumerate(kfold(len(X), 6)):
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ELU(), torch.nn.Linear(256, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(4):
        for rows in np.array_split(train_idx, 28):
            step += 1
            loss = torch.nn.functional.mse_loss(net(X[rows]), Y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.005)
            truth_counter.tick(step)  # truth
    with torch.no_grad():
        score = torch.nn.functional.mse_loss(net(X[test_idx]), Y[test_idx]).item()
    print(f"fold {fold}: {score:.4f}")
    if score < best_score:
        best_score, best_state = score, copy.deepcopy(net.state_dict())
''',
        FLAT,
        672,
    ),
    _program(
        "server with a session cache that evicts",
        '''
import collections, random, time
import torch
import truth_counter  # counts what is true: no part of the program

class SessionStore(collections.OrderedDict):
    """The most recent sessions; the others are computed anew when somebody returns."""
    def __init__(self, most):
        super().__init__()
        self.most = most
    def lookup(self, user, make):
        if user in self:
            self.move_to_end(user)
        else:
            self[user] = make()  #@
            if len(self) > self.most:
                self.popitem(last=False)
        return self[user]

random.seed(5)
model = torch.nn.Linear(256, 256).eval()
store = SessionStore(160)  #@

def handle(user, features):
    with torch.no_grad():
        state = store.lookup(user, lambda: torch.randn(500, 256))  #@
        state[0] = model(features)
    return float(state[0].sum())

due = time.perf_counter()
for request in range(1, 901):
    # new users come until 900; old ones return in between
    user = request
    handle(user, torch.randn(256))
    if request % 3 == 0:
        handle(max(1, user - random.randrange(50)), torch.randn(256))
    truth_counter.hold(len(store) * 500 * 256 * 4)  # truth
    due = max(due + 0.007, time.perf_counter())
    time.sleep(max(0.0, due - time.perf_counter()))
    truth_counter.tick(request)  # truth
''',
        _fills(500 * 256 * 4, 161),
        900,
        seconds=0.007,
        is_exact=True,
        holders=("SessionStore", "store"),
    ),
    _program(
        "GAN with a pool of 50 generated images",
        '''
import random
import time
import torch
from torch import nn
import truth_counter  # counts what is true: no part of the program


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.images = []  #@

    def query(self, image):
        if len(self.images) < self.pool_size:
            self.images.append(image)  #@
            return image
        if random.random() < 0.5:
            i = random.randrange(self.pool_size)
            old, self.images[i] = self.images[i], image
            return old
        return image


G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3 * 32 * 32), nn.Tanh())
D = nn.Sequential(nn.Linear(3 * 32 * 32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
pool = ImagePool(50)  #@
for it in range(1, 451):
    real = torch.rand(16, 3 * 32 * 32)
    fake = G(torch.randn(16, 16))  #@
    g_loss = bce(D(fake), torch.ones(16, 1))
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    old = pool.query(fake.detach())  #@
    d_loss = bce(D(real), torch.ones(16, 1)) + bce(D(old), torch.zeros(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    truth_counter.hold(len(pool.images) * 16 * 3 * 32 * 32 * 4)  # truth
    time.sleep(0.002)
    truth_counter.tick(it)  # truth
''',
        _fills(16 * 3 * 32 * 32 * 4, 51),
        450,
        holders=("ImagePool.images", "images"),
    ),
    _program(
        "gradient accumulation with lengths that differ",
        '''
import time
import random
import torch
import truth_counter  # counts what is true: no part of the program

random.seed(11)


def collate(samples):
    longest = max(map(len, samples))
    return torch.stack([torch.nn.functional.pad(s, (0, 0, 0, longest - len(s))) for s in samples])


def draw(n):
    return [torch.randn(random.choice([50, 200, 400, 1500]), 32) for _ in range(n)]


encoder = torch.nn.Conv1d(32, 32, 5, stride=2)
scorer = torch.nn.Linear(32, 1)
params = list(encoder.parameters()) + list(scorer.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)
running = 0.0
for update in range(1, 401):
    optimizer.zero_grad()
    for micro in range(2):
        x = collate(draw(3))
        h = encoder(x.transpose(1, 2)).relu().amax(-1)
        loss = (scorer(h) - x.mean((1, 2))[:, None]).square().mean() / 2
        loss.backward()
        running = 0.9 * running + 0.1 * loss.item()
    torch.nn.utils.clip_grad_value_(params, 1.0)
    optimizer.step()
    time.sleep(0.002)
    truth_counter.tick(update)  # truth
print(running)
''',
        FLAT,
        400,
        noise=2.0 * MIB,
    ),
    _program(
        "on-policy rollouts that are dropped after each update",
        '''
"""PPO in one file, without its tricks."""
import time
import torch
from torch.distributions import Normal
import truth_counter  # counts what is true: no part of the program

HORIZON, OBS = 16, 256


class ActorCritic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.v = torch.nn.Linear(OBS, 2), torch.nn.Linear(OBS, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(2))

    def forward(self, obs):
        return Normal(self.pi(obs), self.log_std.exp()), self.v(obs)[..., 0]


def collect(agent):
    observations, actions, logps, rewards = [], [], [], []
    obs = torch.randn(64, OBS)
    for _ in range(HORIZON):
        with torch.no_grad():
            dist, _ = agent(obs)
            act = dist.sample()
        observations.append(obs)
        actions.append(act)
        logps.append(dist.log_prob(act).sum(-1))
        rewards.append(-act.square().sum(-1))
        obs = 0.9 * obs + 0.1 * torch.randn_like(obs)
    return map(torch.stack, (observations, actions, logps, rewards))


agent = ActorCritic()
opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
step = 0
for iteration in range(110):
    obs, act, logp_old, rew = collect(agent)
    returns = rew.flip(0).cumsum(0).flip(0)
    for epoch in range(4):
        step += 1
        dist, value = agent(obs)
        ratio = (dist.log_prob(act).sum(-1) - logp_old).exp()
        adv = (returns - value).detach()
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = -surrogate + 0.5 * (returns - value).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.004)
        truth_counter.tick(step)  # truth
''',
        FLAT,
        440,
        noise=2.0 * MIB,
    ),
    _program(
        "heap of the hardest examples",
        '''
import time

import torch

import truth_counter  # counts what is true: no part of the program
from mining import HardExamples

miner = HardExamples(120)  #@
model = torch.nn.Linear(1000, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(1, 601):
    image = torch.randn(150, 1000)  #@
    loss = model(image[:16]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    miner.offer(loss.item(), image)  #@
    truth_counter.hold(len(miner) * 150 * 1000 * 4)  # truth
    if step % 100 == 0:
        print("hardest", max(miner.losses()))
    time.sleep(0.006)
    truth_counter.tick(step)  # truth
''',
        _fills(150 * 1000 * 4, 121),
        600,
        holders=("HardExamples.heap", "miner"),
        modules={
            "mining.py": '''
"""Keeps the examples with the largest losses."""
import heapq
import itertools

_numbers = itertools.count()


class HardExamples:
    def __init__(self, most):
        self.most, self.heap = most, []

    def __len__(self):
        return len(self.heap)

    def offer(self, loss, example):
        item = (loss, next(_numbers), example)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, item)
        else:
            heapq.heappushpop(self.heap, item)

    def losses(self):
        return [loss for loss, *_ in self.heap]
'''
        },
    ),
)


ENDING: Tuple[Program, ...] = (
    _program(
        "loss that is not finite, in a trainer",
        '''
import math
import time

import torch

import truth_counter  # counts what is true: no part of the program


class StopOnNaN:
    def on_step_end(self, trainer):
        if not math.isfinite(trainer.loss):
            raise ValueError(f"loss is {trainer.loss} at step {trainer.step}")


class Progress:
    def on_step_end(self, trainer):
        time.sleep(0.006)
        truth_counter.tick(trainer.step)  # truth


class Trainer:
    def __init__(self, model, lr, hooks):
        self.model, self.hooks = model, hooks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.step, self.loss = 0, 0.0

    def fit(self, n):
        while self.step < n:
            self.step += 1
            x = torch.randn(32, 64)
            if self.step == 421:
                x[0, 0] = float("inf")
            loss = self.model(x).square().mean()
            self.loss = loss.item()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for hook in self.hooks:
                hook.on_step_end(self)


Trainer(torch.nn.Linear(64, 64), 1e-2, [StopOnNaN(), Progress()]).fit(800)
''',
        FLAT,
        420,
        end="error",
        exit_code=1,
    ),
    _program(
        "early stopping by sys.exit(3)",
        '''
import sys
import time
import torch
import truth_counter  # counts what is true: no part of the program

patience, bad_epochs, best = 5, 0, float("inf")
model = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
opt = torch.optim.Rprop(model.parameters())
x_train, x_val = torch.randn(400, 10), torch.randn(100, 10)


def target(x):
    return x.sin().sum(1, keepdim=True)


step = 0
for epoch in range(100):
    for rows in x_train.split(20):
        step += 1
        loss = (model(rows) - target(rows)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.005)
        truth_counter.tick(step)  # truth
    with torch.no_grad():
        val = (model(x_val) - target(x_val)).abs().mean().item() + (epoch > 12)
    if val < best:
        best, bad_epochs = val, 0
    elif epoch > 12:
        bad_epochs += 1
    if bad_epochs == patience:
        print("no progress", file=sys.stderr)
        sys.exit(3)
''',
        FLAT,
        360,
        end="error",
        exit_code=3,
    ),
    _program(
        "job that is told to stop by SIGTERM",
        '''
import os
import signal
import time
import torch
import truth_counter  # counts what is true: no part of the program

WALL_SECONDS_OF_QUEUE = 0.008 * 350


def scheduler_says_stop(elapsed):
    return elapsed > WALL_SECONDS_OF_QUEUE


class Job:
    def __init__(self):
        self.net = torch.nn.Linear(200, 200)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.kept = []  #@

    def step(self, i):
        x = torch.randn(400, 200)  #@
        loss = (self.net(x[:20]) - x[:20]).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.kept.append(x)  #@
        truth_counter.add(400 * 200 * 4)  # truth


job = Job()
for i in range(1, 2000):
    if scheduler_says_stop((i - 2) * 0.008):
        truth_counter.flush()  # truth
        os.kill(os.getpid(), signal.SIGTERM)
    job.step(i)
    time.sleep(0.008)
    truth_counter.tick(i)  # truth
''',
        (Phase(0, GROWS, 400.0 * 200 * 4),),
        352,
        end="signal",
        exit_code=-15,
        is_exact=True,
        holders=("Job.kept",),
    ),
    _program(
        "watchdog that kills with SIGKILL",
        '''
import os
import signal
import time

import torch

import truth_counter  # counts what is true: no part of the program


def watchdog(step, limit):
    """Ends a run that hangs: nobody would see it otherwise."""
    if step > limit:
        truth_counter.flush()  # truth
        os.kill(os.getpid(), signal.SIGKILL)


conv = torch.nn.Conv1d(4, 4, 5, padding=2)
opt = torch.optim.Adam(conv.parameters())
step = 1
while True:
    watchdog(step, 500)
    signal_in = torch.randn(16, 4, 200).cumsum(-1)
    loss = (conv(signal_in)[..., :-1] - signal_in[..., 1:]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.005)
    truth_counter.tick(step)  # truth
    step += 1
''',
        FLAT,
        500,
        end="signal",
        exit_code=-9,
    ),
    _program(
        "pairwise matrix that NumPy cannot allocate",
        '''
import time
import numpy as np
import torch
import truth_counter  # counts what is true: no part of the program

ids = np.arange(1 << 24)
table = torch.nn.Embedding(1000, 16)
opt = torch.optim.SGD(table.parameters(), lr=0.1)


def train(n):
    for step in range(1, n + 1):
        i, j = torch.randint(1000, (2, 64))
        loss = (table(i) * table(j)).sum(1).sigmoid().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.005)
        truth_counter.tick(step)  # truth


def agreement(ids):
    """All pairs: was meant for the 1000 ids of the test set."""
    return np.ones((len(ids), len(ids))).mean()


train(450)
print(agreement(ids))
''',
        FLAT,
        450,
        end="oom",
        exit_code=1,
    ),
    _program(
        "batch that is too large, halved until it fits",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program


def find_batch_size(model, start):
    size = start
    while size > 1:
        try:
            x = torch.empty(size, 64)
            model(x[:1])
            return 64
        except RuntimeError as e:
            print("does not fit:", str(e).splitlines()[0][:90])
            size //= 1 << 20
    return 1


model = torch.nn.Linear(64, 64)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
size = 32
for step in range(1, 601):
    if step == 200:
        size = find_batch_size(model, 1 << 42)
    x = torch.randn(size, 64)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.005)
    truth_counter.tick(step)  # truth
''',
        FLAT,
        600,
        end="oom_caught",
    ),
    _program(
        "leak, then a KeyError for an unknown label",
        '''
import time
import torch
import truth_counter  # counts what is true: no part of the program

LABELS = {"cat": 0, "dog": 1, "bird": 2}
seen = {}  #@


def samples():
    for n in range(10_000):
        yield f"img{n:05d}", torch.randn(3, 144, 144), ("cat", "dog", "bird")[n % 3] if n < 380 else "cow"  #@


def crop(image):
    return image[:, ::16, ::16].flatten()


model = torch.nn.Linear(243, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (name, image, label) in enumerate(samples(), 1):  #@
    target = torch.tensor([LABELS[label]])
    if name in seen:
        continue
    seen[name] = image  #@
    truth_counter.add(3 * 144 * 144 * 4)  # truth
    small = torch.stack([crop(image)])
    loss = torch.nn.functional.cross_entropy(model(small), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for _ in range(2):
        time.sleep(0.004)
    truth_counter.tick(step)  # truth
''',
        (Phase(0, GROWS, 3.0 * 144 * 144 * 4),),
        380,
        end="error",
        exit_code=1,
        holders=("seen",),
    ),
    _program(
        "native assertion that aborts",
        '''
"""Trains a word model; the C++ tokenizer of the real program aborted at a character that it did not know."""
import os
import time
import torch
import truth_counter  # counts what is true: no part of the program

TEXT = "the quick brown fox jumps over the lazy dog " * 12 + "\\u2603"
vocabulary = sorted(set(TEXT[:-1]))


def tokenize(c):
    if c not in vocabulary:
        truth_counter.flush()  # truth
        os.abort()
    return vocabulary.index(c)


cell = torch.nn.GRUCell(len(vocabulary), 64)
out = torch.nn.Linear(64, len(vocabulary))
opt = torch.optim.RMSprop([*cell.parameters(), *out.parameters()], lr=1e-3)
h = torch.zeros(1, 64)
for step, (now, after) in enumerate(zip(TEXT, TEXT[1:]), 1):
    x = torch.eye(len(vocabulary))[[tokenize(now)]]
    y = torch.tensor([tokenize(after)])
    h = cell(x, h.detach())
    loss = torch.nn.functional.cross_entropy(out(h), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.004)
    truth_counter.tick(step)  # truth
''',
        FLAT,
        44 * 12 - 1,
        end="signal",
        exit_code=-6,
    ),
)


PROGRAMS: Tuple[Program, ...] = LEAKING + HEALTHY + ENDING
