"""Small jobs for tests: writes tests/data/creep, whose transitions tests/it/creep.rs holds.

    cd eval && python -m simulator.golden            NAME.jsonl.gz and NAME.truth.json of every job
    cd eval && python -m simulator.golden NAME …     of some jobs

They are families of the simulator with ranges for runs of a few thousand steps. A few ranks are kept, bytes are rounded up to 4 MiB (peaks to 64) and times
down to seconds, so that each file stays below 60 KiB.
"""
import gzip
import json
import re
import sys
from pathlib import Path

from .families import DEV, Families
from .job import make_job
from .recording import lines

OUT = Path(__file__).resolve().parents[2] / "tests/data/creep"
BYTES_MAX = 60 * 1024
# Ranges of all jobs; then of each: seed, number of ranks kept, its own ranges.
SHORT = dict(n_train=("c", [4500]), dt=("c", [1.0]), world=("c", [1]), cap=("c", [80]), no_oom=("c", [False]))
JOBS = {
    "gc_sawtooth": (1, 1, {}),
    "cache_exp": (0, 1, dict(cache_tau=("c", [900]), cache_size=("c", [0.10]))),
    "curriculum_linear": (0, 1, {}),
    "restart_resume": (0, 1, dict(restarts=("c", [2]))),
    "kitchen_sink": (0, 1, dict(n_train=("c", [3200]), eval_every=("c", [700]), eval_len=("c", [12]))),
    "one_rank": (0, 2, dict(n_train=("c", [2600]), oom_frac=("c", [0.9]))),
    "late_onset": (0, 1, dict(onset_frac=("c", [0.4]), oom_frac=("c", [0.9]))),
    "with_restarts": (0, 1, dict(restarts=("c", [5]), n_train=("c", [6000]))),
    "per_checkpoint": (0, 1, dict(ckpt_every=("c", [900]), n_train=("c", [7000]), oom_frac=("c", [0.9]))),
    "reserved_only": (0, 1, dict(oom_frac=("c", [0.95]), noise=("c", [0.08]))),
    "external": (1, 1, dict(oom_frac=("c", [0.9]), dt=("c", [2.0]), n_train=("c", [3600]))),
    "replay_fill": (5, 1, dict(replay_fill=("c", [0.4]))),
}


def rounded(line):
    """Rounds bytes and times; the capacity stays as the driver reports it."""
    def coarse(match):
        unit = (64 if match[2] == "peak_allocated" else 4) << 20
        return f"{match[1]}{-(-int(match[3]) // unit) * unit}"
    line = re.sub(r'("(\w*allocated|\w*reserved|used)_bytes":)(\d+)', coarse, line)
    line = re.sub(r'("reserved_bytes":(\d+)),"peak_reserved_bytes":\2\b', r"\1", line)
    return re.sub(r'("time":\d+)\.\d*', r"\1", line)


def write(name):
    seed, n_ranks, ranges = JOBS[name]
    job = make_job(Families(DEV.members, DEV.ranges | SHORT | ranges, DEV.salt), name, seed)
    leaking = job.truth["leak_ranks"]
    kept = sorted((leaking + [rank for rank in range(job.world) if rank not in leaking])[:n_ranks])
    of_kept = re.compile("|".join(f'"rank":{rank},|"device":"GPU-{rank}"' for rank in kept))
    text = "".join(rounded(line) for line in lines(job) if of_kept.search(line))
    packed = gzip.compress(text.encode(), 9, mtime=0)
    if len(packed) > BYTES_MAX:
        print(f"{name}: {len(packed)} bytes exceed {BYTES_MAX}")
    truth = {key: job.truth[key] for key in ("cls", "leak", "leak_ranks", "onset_time", "onset_step", "oom_time", "oom_step")}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.jsonl.gz").write_bytes(packed)
    (OUT / f"{name}.truth.json").write_text(json.dumps(truth, default=float) + "\n")
    print(f"{name:18} {len(packed):6} bytes {text.count(chr(10)):6} lines", truth)


def main():
    for name in sys.argv[1:] or JOBS:
        write(name)


if __name__ == "__main__":
    main()
