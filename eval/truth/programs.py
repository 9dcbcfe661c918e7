"""Draws training programs whose truth is known by construction: what they keep, how fast, until when, and how they end.

A program is a loop that keeps memory in one way, or in a container with a bound, or not at all. On the host it runs with PyTorch on the CPU; on a
device with the stub in `stub/`, whose GPU is a counter. Each counts its own truth, with the module `truth_counter` next to it.
"""

import pathlib
import random
import re
import textwrap
from typing import Dict, List, NamedTuple, Optional, Tuple

from .truth import ACCELERATING, GIB, GROWS, KIB, LEVEL, MIB, OPEN, STAIRS, STRAIGHT, Phase, Truth

HOST, DEVICE = "host", "device"

STUB = pathlib.Path(__file__).resolve().parent / "stub/site-packages"
"""A directory with the package `torch` for programs on a device; by its name stepmem takes it for installed packages."""

ROW = 512
"""Bytes to which sizes are rounded, those of the device's blocks."""

KEPT_MAX = 600 * MIB
"""What a program keeps on the host, at most."""

CONCATENATED_MAX = 60 * MIB
"""The same of a tensor that is copied at every step."""

MEMORY_OF_PYTORCH = 500 * MIB
DATA_OF_PYTORCH = 1536 * MIB
"""What counts against `ulimit -d` of a process that has imported PyTorch: more than what is in memory."""

OF_MACHINE, OF_KERNEL = 0.3, 0.15
"""Shares of the programs on the host that only the machine limits, and of those that have one of the kernel's limits."""

KERNEL_SIZES = tuple(n * GIB for n in (2, 3, 4, 6, 8, 12))
"""Limits of the kernel: the least that leaves room."""
"""What a process needs besides what it keeps, generously."""

TOO_LARGE = 1 << 46
"""Floats that no process has addresses for."""

MARK = "#@"
"""At the end of a line of a template: here something is kept."""

ON_HOST, WITHOUT_A_LEAK = 0.66, 0.2
"""Shares of programs on the host; of those that keep nothing, and as many that have a bound."""


class Program(NamedTuple):
    """A program to run under `stepmem run`."""

    name: str
    files: Dict[str, str]
    """Texts by relative path; the program begins in main.py."""
    environment: Dict[str, str]
    arguments: Tuple[str, ...]
    """Arguments of `stepmem run`."""
    backend: str
    truth: Truth
    exit_code: int
    """What the program itself exits with; negative for a signal."""


class Keep(NamedTuple):
    """A way to keep memory: pieces of code with names to fill in."""

    each: str
    """What keeps `$n` floats at one step."""
    setup: str = ""
    """What is done once, in the scope of the loop or in the class's `__init__`."""
    definitions: str = ""
    imports: Tuple[str, ...] = ()
    holders: Tuple[str, ...] = ("$owned", "`$s`")
    files: Tuple[Tuple[str, str], ...] = ()
    backends: Tuple[str, ...] = (HOST, DEVICE)
    counted: str = "truth_counter.add(4 * $n)"
    """How the counter learns of it."""
    limit: str = ""
    """The condition of a container that is emptied, as words."""


SAMPLE = "torch.randn($n, device=DEVICE)"
HELD = "truth_counter.hold(4 * sum(each.shape[0] for each in $S if each is not None))"

BUFFER = "registered buffer"

def _remembered(maxsize: str, **more: str) -> Keep:
    """Returns a function that remembers its results: so many of them."""
    return Keep(
        f"$f(step, $n)  {MARK}",
        "",
        f"""
        @functools.lru_cache(maxsize={maxsize})  {MARK}
        def $f(step, n):  {MARK}
            return torch.randn(n, device=DEVICE)  {MARK}
        """,
        ("functools",),
        ("lru_cache of `$f`", "`$f`"),
        **more,
    )


LEAKS: Dict[str, Keep] = {
    "list": Keep(f"$S.append({SAMPLE})  {MARK}", f"$S = []  {MARK}"),
    "list of dictionaries": Keep(f'$S.append({{"step": step, "sample": {SAMPLE}}})  {MARK}', f"$S = []  {MARK}"),
    "dict by step": Keep(f"$S[step] = {SAMPLE}  {MARK}", f"$S = {{}}  {MARK}"),
    "dict by text": Keep(f'$S[f"step-{{step}}"] = {SAMPLE}  {MARK}', f"$S = {{}}  {MARK}"),
    "deque without a limit": Keep(f"$S.append((step, {SAMPLE}))  {MARK}", f"$S = collections.deque()  {MARK}", imports=("collections",)),
    "closure": Keep(
        f"$S({SAMPLE})  {MARK}",
        f"$S = $f()  {MARK}",
        f"""
        def $f():
            seen = []  {MARK}

            def $g(sample):  {MARK}
                seen.append(sample)  {MARK}
                return len(seen)

            return $g  {MARK}
        """,
        holders=("closure cell of `$g`", "$s", "seen"),
    ),
    "graph of losses in a list": Keep(
        f"$S.append((temperature * {SAMPLE}).sum())  {MARK}",
        f"$S = []  {MARK}",
        "temperature = torch.nn.Parameter(torch.ones(1, device=DEVICE))",
        holders=("$owned", "`$s`", "behind `$s`"),
    ),
    "graph behind a sum": Keep(
        f"$S = $S + (temperature * {SAMPLE}).mean()  {MARK}",
        f"$S = torch.zeros((), device=DEVICE)  {MARK}",
        "temperature = torch.nn.Parameter(torch.ones(1, device=DEVICE))",
    ),
    "reference cycle with the collector off": Keep(
        f"$C({SAMPLE})  {MARK}",
        "gc.disable()",
        f"""
        class $C:  {MARK}
            def __init__(self, sample):
                self.sample = sample  {MARK}
                self.owner = self  {MARK}
        """,
        ("gc",),
        ("reference cycle of `$C`", "`$C`", "$C.sample"),
    ),
    "reference cycle that is not collected": Keep(
        f"$f({SAMPLE})  {MARK}",
        "gc.set_threshold(1_000_000)",
        f"""
        class $C:  {MARK}
            def __init__(self, sample):
                self.sample, self.children = sample, []  {MARK}

        def $f(sample):
            root = $C(sample)  {MARK}
            leaf = $C(None)
            leaf.parent, root.children = root, [leaf]  {MARK}
            return len(root.children)
        """,
        ("gc",),
        ("reference cycle of `$C`", "`$C`", "$C.sample"),
    ),
    "torch.cat in a loop": Keep(f"$S = torch.cat([$S, {SAMPLE}])  {MARK}", f"$S = torch.zeros(0, device=DEVICE)  {MARK}", backends=(HOST,)),
    BUFFER: Keep(
        f'$model.register_buffer(f"$s_{{step}}", {SAMPLE}, persistent=False)  {MARK}',
        holders=("$Net", "buffer", "`model`", "$owner.model"),
    ),
    "forward hook": Keep(
        f"$p$probe({SAMPLE})  {MARK}",
        f"""
        $S = []  {MARK}
        $p$probe = torch.nn.Identity()
        $p$probe.register_forward_hook(lambda module, inputs, output: $S.append(output))  {MARK}
        """,
        holders=("$owned", "`$s`", "closure cell"),
    ),
    "lru_cache": _remembered("None"),
    "cache of a function": Keep(
        f"$f(step, $n)  {MARK}",
        "",
        f"""
        def $f(step, n):  {MARK}
            if step not in $f.cache:
                $f.cache[step] = torch.randn(n, device=DEVICE)  {MARK}
            return $f.cache[step]


        $f.cache = {{}}  {MARK}
        """,
        holders=("$f.cache", "`$f`"),
    ),
    "traceback of a caught exception": Keep(
        f"""
        try:
            $f(step, $n)  {MARK}
        except ValueError as error:
            $S.append(error)  {MARK}
        """,
        f"$S = []  {MARK}",
        f"""
        def $f(step, n):  {MARK}
            sample = torch.randn(n, device=DEVICE)  {MARK}
            if sample.shape[0] > 1:
                raise ValueError(f"sample {{step}} is out of range")  {MARK}
            return sample
        """,
        holders=("$owned", "`$s`", "traceback"),
    ),
    "texts": Keep(f'$S.append(f"{{step:07d}} " * ($n // 2))  {MARK}', f"$S = []  {MARK}", backends=(HOST,)),
    "NumPy arrays": Keep(
        f"$S.append(np.full($n, float(step), dtype=np.float32))  {MARK}", f"$S = []  {MARK}", imports=("numpy as np",), backends=(HOST,)
    ),
    "class attribute": Keep(
        f"$C.$s.append({SAMPLE})  {MARK}",
        "",
        f"""
        class $C:  {MARK}
            $s = []  {MARK}
        """,
        holders=("$C.$s",),
    ),
    "default argument": Keep(
        f"$f({SAMPLE})  {MARK}",
        "",
        f"""
        def $f(sample, seen=[]):  {MARK}
            seen.append(sample)  {MARK}
            return len(seen)
        """,
        holders=("default argument of `$f`", "`$f`", "seen"),
    ),
    "generator": Keep(
        f"$S.send($n)  {MARK}",
        f"""
        $S = $f()  {MARK}
        next($S)
        """,
        f"""
        def $f():
            window, n = [], 1  {MARK}
            while True:
                window.append(torch.randn(n, device=DEVICE))  {MARK}
                n = yield len(window)
        """,
        holders=("window", "$owned", "`$s`"),
    ),
    "global of another module": Keep(
        f"$file.remember(step, {SAMPLE})  {MARK}",
        imports=("$file",),
        holders=("RECORDS",),
        files=(
            (
                "$file.py",
                f"""
                \"\"\"Keeps samples, to be drawn at the end.\"\"\"

                RECORDS = []  {MARK}


                def remember(step, sample):
                    RECORDS.append((step, sample))  {MARK}


                def summary():
                    return len(RECORDS)
                """,
            ),
        ),
    ),
    "metric without a reset": Keep(
        f"$S.update({SAMPLE})  {MARK}",
        f"$S = $C()  {MARK}",
        f"""
        class $C:
            def __init__(self):
                self.predictions = []  {MARK}

            def update(self, predictions):
                self.predictions.append(predictions)  {MARK}
        """,
        holders=("$C.predictions",),
    ),
}

BOUNDS: Dict[str, Keep] = {
    "deque with maxlen": Keep(
        f"$S.append({SAMPLE})  {MARK}", f"$S = collections.deque(maxlen=LIMIT)  {MARK}", imports=("collections",), counted=HELD
    ),
    "ring": Keep(f"$S[step % LIMIT] = {SAMPLE}  {MARK}", f"$S = [None] * LIMIT  {MARK}", counted=HELD),
    "LRU with maxsize": _remembered("LIMIT", counted="truth_counter.hold(4 * $n * $f.cache_info().currsize)"),
    "list that is cleared": Keep(
        f"""
        $S.append({SAMPLE})  {MARK}
        if len($S) >= LIMIT:
            $S.clear()
        """,
        f"$S = []  {MARK}",
        counted=HELD,
    ),
    "cache of a dataset": Keep(
        f"$p$dataset[(step - 1) % LIMIT]  {MARK}",
        f"$p$dataset = $C(LIMIT)  {MARK}",
        f"""
        class $C(torch.utils.data.Dataset):
            def __init__(self, n_items):
                self.n_items, self.$s = n_items, {{}}  {MARK}

            def __len__(self):
                return self.n_items

            def __getitem__(self, idx):
                if idx not in self.$s:
                    self.$s[idx] = torch.randn(N_FLOATS, device=DEVICE)  {MARK}
                return self.$s[idx]
        """,
        holders=("$C.$s", "$p$dataset"),
        counted="truth_counter.hold(4 * sum(each.shape[0] for each in $p$dataset.$s.values()))",
    ),
}

CLEARED = "list that is cleared"

CYCLES = ("reference cycle with the collector off", "reference cycle that is not collected")

GRAPHS = ("graph of losses in a list", "graph behind a sum")


class Loop(NamedTuple):
    """A form of training loop. Lines `@each@`, `@setup@` and so on stand for blocks of code."""

    code: str
    owner: str = ""
    """The class that keeps memory; empty for variables."""
    model: str = "model"
    """The model, where memory is kept."""
    imports: Tuple[str, ...] = ()
    backends: Tuple[str, ...] = (HOST, DEVICE)
    live_batches: int = 2
    """Tensors of a batch's size that are there when an optimizer steps."""
    forward: Tuple[int, int] = (1, 2)
    """Batches and activations of the hidden layer that are there at once in a forward pass."""
    backward: Tuple[int, int] = (3, 2)
    """The same in a backward pass."""
    gradients: str = "in both"
    """Where gradients of the step before take memory: in both passes, in the forward pass, in neither."""
    is_exact: bool = False
    """Whether these hold to the byte, so that the step is known at which a device is full."""
    is_by_steps: bool = True
    """Whether an optimizer steps in it."""
    weight: int = 2


LOOPS: Dict[str, Loop] = {
    "plain script": Loop(
        """
        model = $Net().to(DEVICE)
        optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)
        @setup@
        for step in range(1, STEPS + 1):
            @end@
            batch = $draw_batch()
            prediction = model(batch)
            loss = torch.nn.functional.mse_loss(prediction, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            @each@
            @noise@
            truth_counter.tick(step)  # truth
        print("done")
        """,
        forward=(2, 2),
        gradients="in the forward pass",
        is_exact=True,
        weight=3,
    ),
    "function main": Loop(
        """
        def main():
            model = $Net().to(DEVICE)
            optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)
            @setup@
            for step in range(1, STEPS + 1):
                @end@
                batch = $draw_batch()
                optimizer.zero_grad()
                prediction = model(batch)
                loss = torch.nn.functional.mse_loss(prediction, batch)
                loss.backward()
                optimizer.step()
                @each@
                @noise@
                truth_counter.tick(step)  # truth
            print("done")


        if __name__ == "__main__":
            main()
        """,
        forward=(2, 2),
        gradients="in neither",
        is_exact=True,
        weight=3,
    ),
    "trainer class": Loop(
        """
        class $Trainer:
            \"\"\"Owns the model and its optimizer.\"\"\"

            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)
                @setup@

            def training_step(self, step, batch):
                prediction = self.model(batch)
                loss = torch.nn.functional.mse_loss(prediction, batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                @each@
                return loss.detach()

            def fit(self, n_steps):
                model = self.model
                for step in range(1, n_steps + 1):
                    @end@
                    loss = self.training_step(step, $draw_batch())
                    @noise@
                    truth_counter.tick(step)  # truth
                return loss


        trainer = $Trainer($Net().to(DEVICE))
        trainer.fit(STEPS)
        """,
        owner="$Trainer",
        model="self.model",
        gradients="in the forward pass",
        is_exact=True,
        weight=4,
    ),
    "trainer with callbacks": Loop(
        """
        class Callback:
            def on_fit_start(self, trainer):
                pass

            def on_step_end(self, trainer, step, loss):
                pass


        class $Recorder(Callback):
            def on_fit_start(self, trainer):
                @setup@
                self.n_calls = 0

            def on_step_end(self, trainer, step, loss):
                self.n_calls += 1
                @each@


        class $Trainer:
            def __init__(self, model, callbacks):
                self.model, self.callbacks = model, callbacks
                self.optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)

            def training_step(self, batch):
                return torch.nn.functional.mse_loss(self.model(batch), batch)

            def fit(self, n_steps):
                model = self.model
                for each in self.callbacks:
                    each.on_fit_start(self)
                for step in range(1, n_steps + 1):
                    @end@
                    batch = $draw_batch()
                    loss = self.training_step(batch)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    for each in self.callbacks:
                        each.on_step_end(self, step, loss.item())
                    @noise@
                    truth_counter.tick(step)  # truth


        if __name__ == "__main__":
            $Trainer($Net().to(DEVICE), [Callback(), $Recorder()]).fit(STEPS)
        """,
        owner="$Recorder",
        model="trainer.model",
        live_batches=1,
        backward=(2, 2),
        gradients="in the forward pass",
        is_exact=True,
        weight=3,
    ),
    "GAN": Loop(
        """
        class $Trainer:
            def __init__(self):
                self.generator, self.discriminator = $Net().to(DEVICE), $Net().to(DEVICE)
                self.optimizers = [
                    torch.optim.$Optimizer(self.generator.parameters(), lr=1e-4),
                    torch.optim.$Optimizer(self.discriminator.parameters(), lr=4e-4),
                ]
                @setup@

            def step_discriminator(self, real, noise):
                with torch.no_grad():
                    fake = self.generator(noise)
                loss = self.discriminator(real).mean() - self.discriminator(fake).mean()
                self.optimizers[1].zero_grad()
                loss.backward()
                self.optimizers[1].step()

            def step_generator(self, noise):
                loss = -self.discriminator(self.generator(noise)).mean()
                self.optimizers[0].zero_grad()
                loss.backward()
                self.optimizers[0].step()
                return loss.detach()

            def fit(self):
                model = self.generator
                for step in range(1, STEPS + 1):
                    @end@
                    real = $draw_batch()
                    noise = torch.randn(real.shape[0], WIDTH, device=DEVICE)
                    self.step_discriminator(real, noise)
                    self.step_generator(noise)
                    @each@
                    @noise@
                    truth_counter.tick(step)  # truth


        $Trainer().fit()
        """,
        owner="$Trainer",
        model="self.generator",
        live_batches=3,
        forward=(3, 3),
        backward=(4, 3),
    ),
    "gradient accumulation": Loop(
        """
        def train():
            model = $Net().to(DEVICE)
            optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)
            @setup@
            for step in range(1, STEPS + 1):
                @end@
                optimizer.zero_grad()
                for micro_batch in range(ACCUMULATED):
                    batch = $draw_batch() if micro_batch == 0 else $more_of(batch)
                    prediction = model(batch)
                    loss = torch.nn.functional.mse_loss(prediction, batch) / ACCUMULATED
                    loss.backward()
                optimizer.step()
                @each@
                @noise@
                truth_counter.tick(step)  # truth


        train()
        """,
        forward=(2, 2),
        is_exact=True,
    ),
    "RL with replay": Loop(
        """
        class $Agent:
            def __init__(self):
                self.policy = $Net().to(DEVICE)
                self.optimizer = torch.optim.$Optimizer(self.policy.parameters(), lr=3e-4)
                self.transitions = collections.deque(maxlen=64)
                @setup@

            def act(self, state):
                with torch.no_grad():
                    return self.policy(state)

            def learn(self, step):
                states = self.transitions[step % len(self.transitions)]
                loss = torch.nn.functional.mse_loss(self.policy(states), states)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                @each@
                return loss.item()


        agent = $Agent()
        model = agent.policy
        for step in range(1, STEPS + 1):
            @end@
            observation = $draw_batch()
            agent.act(observation)
            agent.transitions.append(torch.randn(4, WIDTH, device=DEVICE))
            agent.learn(step)
            @noise@
            truth_counter.tick(step)  # truth
        """,
        owner="$Agent",
        model="self.policy",
        imports=("collections",),
        live_batches=1,
        backward=(1, 0),
    ),
    "server with threads": Loop(
        """
        class $Server:
            def __init__(self, n_threads=2):
                self.model = $Net().to(DEVICE).eval()
                self.requests, self.answers = queue.Queue(), queue.Queue()
                @setup@
                for _ in range(n_threads):
                    threading.Thread(target=self.work, daemon=True).start()

            def work(self):
                while True:
                    step, batch = self.requests.get()
                    with torch.no_grad():
                        prediction = self.model(batch)
                    self.keep(step)
                    self.answers.put((step, prediction.shape[0]))

            def keep(self, step):
                pass
                @each@


        server = $Server()
        model = server.model
        for step in range(1, STEPS + 1):
            @end@
            server.requests.put((step, $draw_batch()))
            server.answers.get()
            @noise@
            truth_counter.tick(step)  # truth
        """,
        owner="$Server",
        model="self.model",
        imports=("queue", "threading"),
        backends=(HOST,),
        is_by_steps=False,
        weight=1,
    ),
    "server with asyncio": Loop(
        """
        class $Server:
            def __init__(self):
                self.model = $Net().to(DEVICE).eval()
                self.n_served = 0
                @setup@

            async def handle(self, step, batch):
                await asyncio.sleep(0)
                with torch.no_grad():
                    prediction = self.model(batch)
                self.n_served += 1
                @each@
                return prediction.shape[0]


        async def serve():
            server = $Server()
            model = server.model
            for step in range(1, STEPS + 1):
                @end@
                await server.handle(step, $draw_batch())
                @noise@
                truth_counter.tick(step)  # truth


        asyncio.run(serve())
        """,
        owner="$Server",
        model="self.model",
        imports=("asyncio",),
        backends=(HOST,),
        is_by_steps=False,
        weight=1,
    ),
    "DataLoader with workers": Loop(
        """
        class $Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 256

            def __getitem__(self, idx):
                return torch.full((WIDTH,), idx / 256)


        def train():
            model = $Net().to(DEVICE)
            optimizer = torch.optim.$Optimizer(model.parameters(), lr=1e-3)
            loader = torch.utils.data.DataLoader($Samples(), batch_size=8, num_workers=$n_workers, shuffle=True, persistent_workers=True)
            step = 0
            @setup@
            while step < STEPS:
                for batch in loader:
                    step += 1
                    @end@
                    $wait()
                    loss = torch.nn.functional.mse_loss(model(batch), batch)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    @each@
                    @noise@
                    truth_counter.tick(step)  # truth
                    if step >= STEPS:
                        break


        if __name__ == "__main__":
            train()
        """,
        backends=(HOST,),
    ),
}

PROGRAM = '''
"""$title"""

@imports@

import torch

import truth_counter  # counts what is true, for the judge: no part of the program

@constants@


@filler@


class $Net(torch.nn.Module):$mark
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH))

    def forward(self, x):
        return self.layers(x)


@helpers@


@definitions@


@loop@
'''

HELPERS = """
due = time.perf_counter()


def $wait():
    \"\"\"Waits for the storage, which gives a batch at a time.\"\"\"
    global due
    due = max(due + SECONDS, time.perf_counter())
    time.sleep(max(0.0, due - time.perf_counter()))


def $draw_batch():
    $wait()
    return torch.randn($rows, WIDTH, device=DEVICE)


def $more_of(batch):
    return torch.randn(batch.shape[0], WIDTH, device=DEVICE)
"""

COUNTER = '''
"""Counts what is true of the program, for the judge. Keeps a number, and lines until they are written."""

import atexit
import json
import os
import sys
import time

_path = os.environ.get("TRUTH")
_process = os.getpid()
_page = os.sysconf("SC_PAGE_SIZE")
_lines = []
_kept = 0
LINES = 20


def add(n_bytes):
    """Notes memory that is kept from now on."""
    global _kept
    _kept += n_bytes


def hold(n_bytes):
    """Notes all memory that is kept now."""
    global _kept
    _kept = n_bytes


def tick(step):
    """Notes the end of a step, with the process's memory at every 20th."""
    line = {"step": step, "kept_bytes": _kept, "time": time.time()}
    device = sys.modules["torch"]._C
    if hasattr(device, "TOTAL"):  # the stub's device
        line["allocated_bytes"] = device.allocated
    if step % LINES == 1:
        with open("/proc/self/statm") as file:
            _, resident, of_files, *_ = map(int, file.read().split())
        line["resident_bytes"] = (resident - of_files) * _page
    _lines.append(json.dumps(line) + "\\n")
    if len(_lines) >= LINES:
        flush()


def flush():
    """Writes what was noted."""
    if _path and _lines and os.getpid() == _process:
        with open(_path, "a") as file:
            file.writelines(_lines)
    _lines.clear()


atexit.register(flush)
'''

FILLER = (
    '''
    def set_seed(seed):
        """Makes runs repeatable."""
        random.seed(seed)
        torch.manual_seed(seed)


    set_seed($seed)
    ''',
    '''
    class Settings:
        """Settings of the experiment."""

        lr = 1e-3
        weight_decay = 0.01
        warmup_steps = 100
        is_debug = False


    settings = Settings()
    ''',
    '''
    def format_seconds(seconds):
        """Returns a duration as people write it."""
        minutes, seconds = divmod(int(seconds), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    ''',
    '''
    def learning_rate(step, peak=1e-3, warmup=100):
        """Rises to its peak, then falls."""
        if step < warmup:
            return peak * step / warmup
        return peak * (warmup / step) ** 0.5
    ''',
    """
    # The settings of this run
    RUN_NAME = "baseline-v$seed"
    LOG_EVERY = 100
    """,
    '''
    class AverageMeter:
        """The mean of a number over steps."""

        def __init__(self):
            self.total, self.n = 0.0, 0

        def update(self, value):
            self.total += value
            self.n += 1

        @property
        def mean(self):
            return self.total / max(1, self.n)
    ''',
    '''
    def count_parameters(model):
        """Returns the number of values that are trained."""
        return sum(each.numel() for each in model.parameters())
    ''',
    '''
    class EarlyStopping:
        """Says when the loss no longer falls."""

        def __init__(self, patience=10):
            self.patience, self.best, self.n_worse = patience, float("inf"), 0

        def __call__(self, loss):
            self.n_worse = 0 if loss < self.best else self.n_worse + 1
            self.best = min(self.best, loss)
            return self.n_worse > self.patience
    ''',
    """
    def log(*words):
        print(time.strftime("%H:%M:%S"), *words)


    log("started")
    """,
    """
    # The shapes that were tried before: 32 x 64 (unstable), 64 x 128 (good), 128 x 128 (slow).
    """,
)

NAMES = {
    "s": "losses history outputs samples predictions embeddings features activations cache memory records results traces logits scores".split(),
    "f": "encode lookup positions collect prepare gather observe measure inspect_sample windows make_recorder track".split(),
    "g": "record remember store note_sample on_sample".split(),
    "C": "Sample Registry Monitor Node Trial Store Tracker Episode Archive Statistics".split(),
    "n": "n_values length n_features size".split(),
    "Net": "Autoencoder Net Encoder TinyModel Backbone Denoiser Projector".split(),
    "Trainer": "Trainer Experiment Runner Loop Session Fitter".split(),
    "Recorder": "HistoryCallback MetricsCallback SampleLogger Recorder ProgressCallback".split(),
    "Agent": "Agent Learner QAgent Actor".split(),
    "Server": "Server InferenceService Embedder ModelServer".split(),
    "Samples": "Ramp TextDataset ImageFolderLike Rows".split(),
    "Optimizer": "SGD Adam".split(),
    "draw_batch": "draw_batch next_batch load_batch fetch".split(),
    "more_of": "another_like more_of micro_batch_like".split(),
    "wait": "wait_for_data wait_for_loader read_ahead".split(),
    "probe": "probe tap monitor_layer features_of".split(),
    "dataset": "train_set corpus examples items_of_epoch".split(),
    "file": "tracking sample_store experiment_log visualize".split(),
    "frozen": "backbone_weights embedding_table frozen_encoder teacher_weights".split(),
    "title": (
        "Trains a small autoencoder.",
        "A baseline for the reconstruction task.",
        "Fine-tunes the projection head.",
        "Ablation: two layers, no dropout.",
        "Reproduces the result of the workshop paper.",
        "Script of the second week.",
    ),
}
"""Names to draw from, by the word that stands for them in the templates."""


CALLS_READ_SECONDS = 0.2
"""Shortest time from one reading of memory to the next while calls end, as docs/watched.md has it."""


class Plan(NamedTuple):
    """What was drawn."""

    backend: str
    loop: str
    kept: str
    """A key of LEAKS or BOUNDS; empty where nothing is kept."""
    shape: str
    rate: int
    """Bytes a step."""
    gain: int
    start: int
    """The first step that keeps memory."""
    stop: Optional[int]
    """The first one that keeps none again."""
    every: int
    n_items_max: int
    """The bound of a container."""
    n_steps: int
    seconds: float
    noises: Tuple[str, ...]
    end: str
    last: int
    is_by_leak: bool
    """Whether what is kept fills the device."""

    @property
    def is_bound(self) -> bool:
        """Whether the container has a bound."""
        return self.kept in BOUNDS

    def phases(self) -> Tuple[Phase, ...]:
        """Returns the law of what is kept."""
        if not self.kept:
            return (Phase(0),)
        if self.is_bound:
            full = self.n_items_max if self.kept == CLEARED else self.n_items_max + 1
            open_phase = Phase(0, OPEN, float(self.rate))
            return (open_phase, Phase(full)) if full <= self.n_steps else (open_phase,)
        grows = Phase(self.start if self.start > 1 else 0, GROWS, float(self.rate), self.shape, self.every, float(self.gain))
        before = (Phase(0),) if self.start > 1 else ()
        return (*before, grows, *((Phase(self.stop, LEVEL),) if self.stop else ()))


def draw(seed: int) -> Program:
    """Draws a program; the same one for the same seed."""
    source = random.Random(f"program {seed}")
    plan = _plan(source)
    return _program(seed, plan, source)


def _plan(source: random.Random) -> Plan:
    backend = HOST if source.random() < ON_HOST else DEVICE
    loops = {name: loop for name, loop in LOOPS.items() if backend in loop.backends}
    loop = source.choices(list(loops), [each.weight for each in loops.values()])[0]
    kept = _kept(source, backend, loop)
    noises = _noises(source, loop, kept)
    end = _end(source)
    is_by_leak = backend == DEVICE and end == "oom" and kept in LEAKS and kept != GRAPHS[0] and LOOPS[loop].is_exact and source.random() < 0.8
    noises = () if is_by_leak else noises
    shape = STRAIGHT if is_by_leak or kept not in LEAKS else source.choices((STRAIGHT, STAIRS, ACCELERATING), (6, 2.5, 1.5))[0]
    rate = _rounded(KIB * 100 * (20.48 ** source.random()))
    if kept == "torch.cat in a loop":
        rate = _rounded(min(rate, 300 * KIB))
    seconds = _seconds(source, backend, rate)
    n_steps = _n_steps(source, backend, loop, kept, seconds)
    rate = _bounded_rate(rate, kept, n_steps, backend)
    gain = _rounded(rate * source.uniform(1, 3) / n_steps) if shape == ACCELERATING else 0
    every = source.choice([n for n in (5, 10, 20, 25, 50) if n * 4 <= n_steps and n * rate <= 40 * MIB]) if shape == STAIRS else 1
    start = 1 if source.random() < 0.6 else int(n_steps * source.uniform(0.1, 0.35)) // every * every + 1
    is_over = not is_by_leak and kept in LEAKS and shape != ACCELERATING and source.random() < 0.15
    stop = (start + (n_steps - start) // 2) // every * every + 1 if is_over else None
    last = n_steps if end in ("completed", "oom_caught") else max(15, int(n_steps * source.uniform(0.6, 0.95)))
    n_items_max = _n_items_max(source, rate, n_steps) if kept in BOUNDS else 0
    return Plan(backend, loop, kept, shape, rate, gain, start, stop, every, n_items_max, n_steps, seconds, noises, end, last, is_by_leak)


def _kept(source: random.Random, backend: str, loop: str) -> str:
    chance = source.random()
    if chance < WITHOUT_A_LEAK:
        return ""
    choices = BOUNDS if chance < 2 * WITHOUT_A_LEAK else LEAKS
    names = [name for name, keep in choices.items() if backend in keep.backends]
    if not LOOPS[loop].is_by_steps:
        names = [name for name in names if name not in GRAPHS]
    return source.choice(names)


def _noises(source: random.Random, loop: str, kept: str) -> Tuple[str, ...]:
    possible = ["lengths", "evaluation", "checkpoint", "cycles", "numbers"]
    if kept in CYCLES:
        possible.remove("cycles")
    if loop == "DataLoader with workers":
        possible.remove("lengths")
    if not LOOPS[loop].is_by_steps:
        possible.remove("evaluation")
    return tuple(each for each in possible if source.random() < 0.3)


def _end(source: random.Random) -> str:
    ends = ("completed", "oom", "oom_caught", "error", "sigterm", "sigkill", "exit")
    return source.choices(ends, (50, 14, 6, 9, 7, 7, 7))[0]


def _seconds(source: random.Random, backend: str, rate: int) -> float:
    """Returns how long a step takes: on the host long enough to fill its memory with random numbers."""
    least = 2.0 if backend == DEVICE else 2.5 + 4.0 * rate / MIB
    return source.choice([each for each in (2, 3, 4, 5, 6, 8, 10, 12) if each >= least]) / 1000


def _n_steps(source: random.Random, backend: str, loop: str, kept: str, seconds: float) -> int:
    duration = source.uniform(2.0, 5.0) if LOOPS[loop].is_by_steps else source.uniform(6.0, 8.0)
    if source.random() < 0.1:
        return source.randint(20, 100)
    longest = 300 if kept == "torch.cat in a loop" else 1500
    return max(20, min(longest, int(duration / seconds)))


def _bounded_rate(rate: int, kept: str, n_steps: int, backend: str) -> int:
    most = CONCATENATED_MAX if kept == "torch.cat in a loop" else KEPT_MAX
    return rate if backend == DEVICE else _rounded(max(100 * KIB, min(rate, most / n_steps)))


def _n_items_max(source: random.Random, rate: int, n_steps: int) -> int:
    """Returns a bound, which one of six programs does not reach."""
    share = source.uniform(1.2, 3) if source.random() < 1 / 6 else source.uniform(0.1, 0.5)
    return max(8, int(n_steps * share))


def _rounded(n_bytes: float) -> int:
    return max(ROW, int(n_bytes) // ROW * ROW)


class Sizes(NamedTuple):
    """Sizes of the model and its batches."""

    width: int
    hidden: int
    rows: int
    accumulated: int
    frozen: int
    """Bytes of weights that are not trained; on a device only."""

    def parameters(self) -> Tuple[int, int]:
        """Returns the bytes of each layer's parameters, as the device allocates them."""
        floats = ((self.width * self.hidden, self.hidden), (self.hidden * self.width, self.width))
        first, second = (sum((4 * each + ROW - 1) // ROW * ROW for each in layer) for layer in floats)
        return first, second


def _sizes(source: random.Random, backend: str) -> Sizes:
    accumulated = source.choice((2, 4))
    if backend == HOST:
        return Sizes(source.choice((16, 24, 32)), source.choice((32, 48, 64)), source.choice((4, 8, 16)), accumulated, 0)
    return Sizes(256, 1024, source.choice((768, 1024, 1280)), accumulated, source.choice((64, 96, 200, 512)) * MIB)


class Memory(NamedTuple):
    """Memory of a program that does not grow."""

    base: float
    transient: float


def _memory(plan: Plan, sizes: Sizes, optimizer: str) -> Memory:
    """Returns what a step leaves and what it needs for a moment, as the stub allocates it."""
    if plan.backend == HOST:
        return Memory(0.0, 0.0)
    loop, longest = LOOPS[plan.loop], 1.2 if "lengths" in plan.noises else 1.0
    n_models, n_copies = (2 if plan.loop == "GAN" else 1), (4 if optimizer == "Adam" else 2)
    weights = sizes.frozen + n_models * n_copies * sum(sizes.parameters())
    batch, hidden = 4 * sizes.rows * sizes.width, 4 * sizes.rows * sizes.hidden
    passes = [longest * (n_batches * batch + n_hidden * hidden) for n_batches, n_hidden in (loop.forward, loop.backward)]
    if loop.gradients == "in neither":
        passes[0] -= sum(sizes.parameters())
    if loop.gradients != "in both":
        passes[1] -= sizes.parameters()[0]
    base = loop.live_batches * batch
    return Memory(float(weights + base), float(max(passes) - base))


class Limit(NamedTuple):
    """What a program may take, and what says so."""

    capacity: Optional[float]
    kind: str
    environment: Dict[str, str]
    fraction: Optional[float] = None


def _limit(source: random.Random, plan: Plan, memory: Memory, kept: Truth) -> Limit:
    """Returns the limit: on a device that is filled by what is kept, it leaves no room for the step after the last one."""
    if plan.backend == HOST:
        budgets = [("1536MiB", 1536 * MIB), ("2GiB", 2 * GIB), ("3GiB", 3 * GIB), ("4GiB", 4 * GIB)]
        fitting = [each for each in budgets if kept.kept(plan.last) + MEMORY_OF_PYTORCH < each[1]]
        drawn = source.random()
        if drawn < OF_MACHINE:
            return Limit(None, "device", {})
        if drawn < OF_MACHINE + 2 * OF_KERNEL:
            kind, used = ("data", DATA_OF_PYTORCH) if drawn < OF_MACHINE + OF_KERNEL else ("cgroup", MEMORY_OF_PYTORCH)
            least = kept.kept(plan.last) + used
            return Limit(float(next(size for size in KERNEL_SIZES if size > least)), kind, {})
        text, size = source.choice(fitting)
        return Limit(float(size), "budget", {"STEPMEM_CAPACITY": text})
    needed = memory.base + memory.transient
    if plan.is_by_leak:
        share = needed + kept.kept(plan.last - 1) + plan.rate / 2
    elif source.random() < 0.6:
        share = 1.1 * (needed + 64 * MIB) + kept.kept(plan.n_steps) * source.uniform(1.3, 6)
    else:
        share = source.choice((8, 16, 24, 48)) * GIB
    fraction = source.choice((0.25, 0.5, 0.75)) if source.random() < 0.3 else None
    total = int(share / (fraction or 1)) // 4096 * 4096
    return Limit(float(int(total * (fraction or 1))), "program" if fraction else "device", {"STUB_DEVICE_BYTES": str(total)}, fraction)


def _program(seed: int, plan: Plan, source: random.Random) -> Program:
    """Writes a program of a plan."""
    words = _words(seed, plan, source)
    sizes = _sizes(source, plan.backend)
    memory = _memory(plan, sizes, words["Optimizer"])
    law = Truth(plan.phases(), 0.0, 0.0, None)
    limit = _limit(source, plan, memory, law)
    keep = {**LEAKS, **BOUNDS}.get(plan.kept, Keep(""))
    files, lines = _files(plan, keep, sizes, limit, words, source)
    environment = {"PYTHONPATH": str(STUB), **limit.environment} if plan.backend == DEVICE else dict(limit.environment)
    truth = Truth(
        phases=law.phases,
        base=memory.base,
        transient=memory.transient,
        capacity=limit.capacity,
        limit=limit.kind,
        last=plan.last,
        end={"sigterm": "signal", "sigkill": "signal", "exit": "error"}.get(plan.end, plan.end),
        step_seconds=plan.seconds if plan.shape != STAIRS and plan.kept != "torch.cat in a loop" else None,
        read_every=max(1, round(CALLS_READ_SECONDS / plan.seconds)) if plan.loop.startswith("server") else 1,
        noise=_noise(plan, sizes),
        holders=_holders(plan, keep, words),
        lines=lines,
        signal="host" if plan.backend == HOST else "allocated",
    )
    code = {"sigterm": -15, "sigkill": -9, "exit": 3, "error": 1, "oom": 1}.get(plan.end, 0)
    return Program(_name(plan, limit), files, environment, _arguments(source, plan), plan.backend, truth, code)


def _arguments(source: random.Random, plan: Plan) -> Tuple[str, ...]:
    """Returns options of `stepmem run`: most programs have none."""
    chance = source.random()
    if plan.backend == HOST:
        return ("--host-lines",) if chance < 0.15 else ()
    return ("--snapshots",) if chance < 0.3 else ()


def _noise(plan: Plan, sizes: Sizes) -> float:
    """Returns the standard deviation of live memory around the law: of lengths within 20 %, of a list that is cleared, of cycles."""
    variance = 0.0
    if "lengths" in plan.noises:
        deviation = 0.2 / 3**0.5
        variance += (deviation * plan.rate * plan.every) ** 2 / 2
        variance += (deviation * 8 * sizes.rows * sizes.width) ** 2 if plan.backend == DEVICE else 0.0
    if plan.kept == CLEARED and plan.n_items_max <= plan.n_steps:
        variance += (plan.rate * plan.n_items_max) ** 2 / 3
    if "cycles" in plan.noises:
        variance += (10 * CYCLE_FLOATS * 4) ** 2 / 12
    if "checkpoint" in plan.noises and plan.backend == HOST:
        variance += CHECKPOINT_LEFT**2
    return variance**0.5


def _words(seed: int, plan: Plan, source: random.Random) -> Dict[str, str]:
    """Draws the names of a program."""
    words = {word: source.choice(names) for word, names in NAMES.items()}
    loop = LOOPS[plan.loop]
    words["seed"] = str(seed)
    words["n_workers"] = str(source.choice((1, 2)))
    words["p"] = "self." if loop.owner else ""
    words["S"] = words["p"] + words["s"]
    words["rows"] = "int(ROWS * next(lengths))" if "lengths" in plan.noises else "ROWS"
    words["mark"] = f"  {MARK}" if plan.kept == BUFFER else ""
    words["owner"] = _worded(loop.owner, words) or "main"
    words["owned"] = f"{words['owner']}.{words['s']}" if loop.owner else words["s"]
    words["model"] = _worded(loop.model, words)
    return words


def _worded(text: str, words: Dict[str, str]) -> str:
    """Puts names for `$name`, the longest name that fits."""
    names = "|".join(sorted(words, key=len, reverse=True))
    return re.sub(rf"\$({names})", lambda found: words[found[1]], text)


def _filled(template: str, blocks: Dict[str, str]) -> str:
    """Puts blocks of code for lines `@name@`, with their indentation; an empty one removes its line."""
    lines: List[str] = []
    for line in template.split("\n"):
        found = re.fullmatch(r"( *)@(\w+)@", line)
        if found is None:
            lines.append(line)
        elif blocks[found[2]]:
            lines += textwrap.indent(blocks[found[2]], found[1]).split("\n")
    return "\n".join(lines)


def _code(text: str) -> str:
    return textwrap.dedent(text).strip("\n").rstrip()


def _files(
    plan: Plan, keep: Keep, sizes: Sizes, limit: Limit, words: Dict[str, str], source: random.Random
) -> Tuple[Dict[str, str], Tuple[int, ...]]:
    """Returns the texts of the files, and the lines that keep memory."""
    loop = LOOPS[plan.loop]
    blocks = {
        "imports": _imports(plan, keep, source),
        "constants": _constants(plan, sizes, limit),
        "filler": "\n\n\n".join(_code(each) for each in source.sample(FILLER, source.randint(2, 6))),
        "helpers": _code(HELPERS),
        "definitions": "\n\n\n".join(part for part in (_code(keep.definitions), _noise_definitions(plan)) if part),
        "setup": "\n".join(part for part in (_code(keep.setup), "numbers = []" if "numbers" in plan.noises and not loop.owner else "") if part),
        "each": _each(plan, keep),
        "noise": "\n".join(_noise_code(plan, noise) for noise in plan.noises if noise != "lengths"),
        "end": _end_code(plan, limit),
    }
    blocks["loop"] = _filled(_code(loop.code), blocks)
    main = _worded(_filled(_code(PROGRAM), blocks), words)
    texts = {"main.py": re.sub(r"\n{4,}", "\n\n\n", main) + "\n"}
    texts.update({_worded(path, words): _worded(_code(text), words) + "\n" for path, text in keep.files})
    lines = tuple(number for text in texts.values() for number, line in enumerate(text.split("\n"), 1) if line.endswith(MARK))
    files = {path: re.sub(rf" *{MARK}$", "", text, flags=re.M) for path, text in texts.items()}
    return {**files, "truth_counter.py": _code(COUNTER) + "\n"}, lines


def _imports(plan: Plan, keep: Keep, source: random.Random) -> str:
    """Returns the imports of the standard library and of the program's files, in any order."""
    names = {"random", "time", *keep.imports, *LOOPS[plan.loop].imports}
    for noise, name in (("cycles", "gc"), ("checkpoint", "io"), ("lengths", "itertools")):
        names |= {name} if noise in plan.noises else set()
    names |= {"sigterm": {"os", "signal"}, "sigkill": {"os", "signal"}, "exit": {"sys"}}.get(plan.end, set())
    lines = [f"import {name}" for name in sorted(names)]
    source.shuffle(lines)
    return "\n".join(lines)


CYCLE_FLOATS = 8192

CHECKPOINT_LEFT = 6 * MIB
"""What the C library may keep of a checkpoint's buffer."""


def _constants(plan: Plan, sizes: Sizes, limit: Limit) -> str:
    lines = [
        f'DEVICE = "{"cpu" if plan.backend == HOST else "cuda"}"',
        f"STEPS = {plan.n_steps}",
        f"SECONDS = {plan.seconds}",
        f"WIDTH, HIDDEN, ROWS = {sizes.width}, {sizes.hidden}, {sizes.rows}",
    ]
    if plan.kept:
        lines.append(f"N_FLOATS = {plan.rate * plan.every // 4}")
    if plan.is_bound:
        lines.append(f"LIMIT = {plan.n_items_max}")
    if plan.loop == "gradient accumulation":
        lines.append(f"ACCUMULATED = {sizes.accumulated}")
    lines += ["", "torch.set_num_threads(1)"]
    if "lengths" in plan.noises:
        for name in ("lengths", "shares"):
            lines.append(f"{name} = itertools.cycle({_buckets(plan, name)})")
    if limit.fraction:
        lines.append(f"torch.cuda.set_per_process_memory_fraction({limit.fraction})")
    if sizes.frozen:
        lines.append(f"$frozen = torch.zeros({sizes.frozen // 4}, device=DEVICE)")
    return "\n".join(lines)


def _buckets(plan: Plan, name: str) -> Tuple[float, ...]:
    """Returns lengths around 1 in pairs of which each has a mean of 1, so that the law holds after few steps."""
    source = random.Random(f"{name} {plan.n_steps} {plan.rate}")
    found: List[float] = []
    for _ in range(6):
        length = round(source.uniform(0.8, 1.2), 2)
        found += [length, round(2 - length, 2)]
    return tuple(found)


def _each(plan: Plan, keep: Keep) -> str:
    """Returns what a step does to keep memory, with its condition and its length."""
    if not plan.kept:
        return ""
    conditions = []
    if plan.start > 1 and not plan.is_bound:
        conditions.append(f"{plan.start} <= step < {plan.stop}" if plan.stop else f"step >= {plan.start}")
    elif plan.stop:
        conditions.append(f"step < {plan.stop}")
    if plan.every > 1:
        conditions.append(f"step % {plan.every} == 0")
    code = f"$n = {_length(plan)}\n{_code(keep.each)}\n{keep.counted}  # truth"
    return f"if {' and '.join(conditions)}:\n{textwrap.indent(code, '    ')}" if conditions else code


def _length(plan: Plan) -> str:
    if plan.shape == ACCELERATING:
        return f"N_FLOATS + {plan.gain // 4} * (step - {plan.start})"
    if "lengths" in plan.noises and plan.kept not in ("LRU with maxsize", "cache of a dataset"):
        return "int(N_FLOATS * next(shares)) // 128 * 128"
    return "N_FLOATS"


def _noise_definitions(plan: Plan) -> str:
    """Returns the functions that noise needs."""
    found = []
    if "evaluation" in plan.noises:
        found.append(
            """
            def evaluate(model):
                model.eval()
                with torch.no_grad():
                    for _ in range(4):
                        model(torch.randn(ROWS // 2, WIDTH, device=DEVICE))
                model.train()
            """
        )
    if "checkpoint" in plan.noises:
        extra = "" if plan.backend == DEVICE else ', "average": torch.ones(1 << 18)'
        found.append(
            f"""
            def save_checkpoint(step, model):
                buffer = io.BytesIO()
                torch.save({{**model.state_dict(), "step": step{extra}}}, buffer)
                return buffer.tell()
            """
        )
    if "cycles" in plan.noises:
        found.append(
            f"""
            class Parsed:
                def __init__(self):
                    self.tokens, self.me = torch.ones({CYCLE_FLOATS}, device=DEVICE), self
            """
        )
    if "numbers" in plan.noises and LOOPS[plan.loop].owner:
        found.append("numbers = []")
    return "\n\n\n".join(map(_code, found))


def _noise_code(plan: Plan, noise: str) -> str:
    """Returns what a step does besides training."""
    every = max(10, plan.n_steps // 12)
    return {
        "evaluation": f"if step % {every} == 0:\n    evaluate(model)",
        "checkpoint": f"if step % {every + 7} == 0:\n    save_checkpoint(step, model)",
        "cycles": "Parsed()\nif step % 10 == 0:\n    gc.collect(1)",
        "numbers": 'numbers.append({"step": step, "seconds": time.perf_counter()})',
    }[noise]


def _end_code(plan: Plan, limit: Limit) -> str:
    """Returns the end of the program, at the beginning of the step after its last one."""
    too_large = int((limit.capacity or 0) * 1.1) // 4 if plan.backend == DEVICE else TOO_LARGE
    if plan.end == "oom_caught":
        return _code(
            f"""
            if step == {plan.n_steps * 3 // 5}:
                try:
                    torch.empty({too_large}, device=DEVICE)
                except RuntimeError as error:
                    print("skips a batch:", str(error)[:80])
            """
        )
    code = {
        "error": 'raise ValueError(f"loss is not finite at step {step}")',
        "sigterm": "truth_counter.flush()  # truth\nos.kill(os.getpid(), signal.SIGTERM)",
        "sigkill": "truth_counter.flush()  # truth\nos.kill(os.getpid(), signal.SIGKILL)",
        "exit": "sys.exit(3)",
        "oom": "" if plan.is_by_leak else f"torch.empty({too_large}, device=DEVICE)",
    }.get(plan.end, "")
    return f"if step > {plan.last}:\n{textwrap.indent(code, '    ')}" if code else ""


def _holders(plan: Plan, keep: Keep, words: Dict[str, str]) -> Tuple[str, ...]:
    """Returns what stepmem may call the holder."""
    if not plan.kept:
        return ()
    names = [_worded(each, words).strip("`") for each in keep.holders if LOOPS[plan.loop].owner or not each.startswith("$owner")]
    return tuple(dict.fromkeys(names))


def _name(plan: Plan, limit: Limit) -> str:
    """Returns the axes of a program in words."""
    parts = [plan.backend, plan.loop, plan.kept or "nothing kept"]
    if plan.is_bound:
        parts.append(f"{plan.n_items_max} items of {plan.rate / KIB:.0f} KiB at most")
    elif plan.kept:
        every = f" every {plan.every} steps" if plan.every > 1 else ""
        until = f" until step {plan.stop - 1}" if plan.stop else ""
        parts.append(f"{plan.rate / KIB:.0f} KiB a step {plan.shape}{every} from step {plan.start}{until}")
    parts.append(f"{plan.n_steps} steps of {plan.seconds * 1000:.0f} ms")
    if plan.noises:
        parts.append(f"with {' and '.join(plan.noises)}")
    if limit.capacity is not None:
        parts.append(f"limit {limit.kind} {limit.capacity / MIB:.0f} MiB")
    parts.append(f"{plan.end}{' by the leak' if plan.is_by_leak else ''} after step {plan.last}")
    return ", ".join(parts)
