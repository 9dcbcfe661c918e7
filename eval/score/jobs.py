"""Job files of each set: made once, kept by a fingerprint of the code that makes them, and read back for the judge.

A simulated job is NAME.job (compact.py describes it) and NAME.npz: the truth, and of a leak the step, the time and the leaked bytes of each event.
"""
import ast
import hashlib
import importlib.util
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from real import inject
from real import series as real_series
from simulator import compact, families
from simulator.families import DEV, Families
from simulator.job import make_job

EVAL = Path(__file__).resolve().parent.parent
OTHERS = {name: EVAL / f"{name}_families.py" for name in ("seen", "test", "witness")}
"""The files of the sets beside `dev`."""


@dataclass(frozen=True)
class Truth:
    """The facts about a simulated job that the judge needs."""

    family: str
    seed: int
    truth: dict
    rank_days: float
    step: np.ndarray
    time: np.ndarray
    leaked: np.ndarray
    """The bytes that each leaking rank has leaked, by rank and event: ranks may leak at rates of their own. Healthy jobs have none."""

    def leaked_by(self, rank):
        return self.leaked[self.truth["leak_ranks"].index(rank)]


def families_of(which):
    """The families of `dev`, or of another set, whose file has HEALTHY and LEAKS, functions, and RANGES and SEED_SALT where they differ."""
    if which == "dev":
        return DEV
    path = OTHERS[which]
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    members = {}
    for cls, functions in (("healthy", module.HEALTHY), ("leak", module.LEAKS)):
        members.update({function.__name__: (function, cls) for function in functions})
    return Families(members, families.RANGES | getattr(module, "RANGES", {}), getattr(module, "SEED_SALT", 0x7E57))


def fingerprint(paths):
    """Of what the files do: comments, docstrings and layout do not count."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                body[0].value.value = ""
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:12]


def folder_of(root, which):
    made_by = [EVAL / "simulator" / f"{name}.py" for name in ("allocator", "compact", "counts", "families", "job")] + [Path(__file__)]
    return root / f"{which}-{fingerprint(made_by + ([OTHERS[which]] if which in OTHERS else []))}"


def make(task):
    """Makes a job unless it is there. Its .npz comes last and shows that it is whole."""
    folder, which, family, seed = task
    base = folder / f"{family}-{seed}"
    if not base.with_suffix(".npz").exists():
        job = make_job(families_of(which), family, seed)
        part = folder / f"{base.name}.{os.getpid()}"
        compact.write(part, base.name, job.world, job.total, compact.rows_of(job))
        os.replace(part, base.with_suffix(".job"))
        ranks = job.truth["leak_ranks"]
        leak = dict(step=job.step, time=job.time, leaked=np.stack([job.ranks[rank]["leak_cum"] for rank in ranks])) if ranks else {}
        seconds = float(job.time[-1] - job.time[0]) if len(job.time) else 0.0
        with open(part, "wb") as file:
            np.savez_compressed(file, truth=json.dumps(job.truth), rank_days=seconds / 86400 * job.world, **leak)
        os.replace(part, base.with_suffix(".npz"))
    return base.with_suffix(".job")


def simulated(root, which, names, seeds, n_workers, progress):
    """Paths of the jobs of a set."""
    folder = folder_of(root, which)
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(folder, which, name, seed) for seed in seeds for name in names]
    paths = []
    with ProcessPoolExecutor(n_workers) as pool:
        for path in pool.map(make, tasks):
            paths.append(path)
            progress(f"{which}: jobs made", len(paths), len(tasks))
    return paths


def load(path):
    """The truth about a job."""
    family, _, seed = path.stem.rpartition("-")
    with np.load(path.with_suffix(".npz")) as kept:
        columns = (kept[name] if name in kept else np.zeros(0) for name in ("step", "time", "leaked"))
        return Truth(family, int(seed), json.loads(str(kept["truth"])), float(kept["rank_days"]), *columns)


def real(root):
    """Job files of the real series, and of those with an added leak: two lists of (path, series)."""
    folder = root / "real"
    folder.mkdir(parents=True, exist_ok=True)
    all_series = real_series.load_all()
    drawn = {f"{name}.leak": leaking for name, each in all_series.items() if (leaking := inject.with_leak(each))}
    lists = []
    for group in (all_series, drawn):
        for name, each in group.items():
            real_series.write(folder / f"{name}.job", each)
        lists.append([(folder / f"{name}.job", each) for name, each in group.items()])
    return lists
