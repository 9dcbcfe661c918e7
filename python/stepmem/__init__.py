"""Pushes a training process's memory, step by step, to the stepmem exporter.

It never blocks, slows, breaks or changes training: no exception leaves it, no CUDA synchronisation is forced, and the
process's own peak counters are reset only where that is asked for (`STEPMEM_RESET_PEAK=1`, `reset_peak_memory`).

Three ways in:

- `python -m stepmem train.py …` counts optimizer steps, with no change to the code (`torchrun -m stepmem train.py` too);
- `with stepmem.step():` around a step, or `stepmem.step_end()` after it, in a loop of one's own;
- `stepmem.huggingface.StepmemCallback` and `stepmem.lightning.StepmemCallback`.
"""

from __future__ import annotations

from typing import Optional

from ._auto import auto
from ._client import CLIENT, Phase, Step
from ._on_demand import record, snapshot, snapshot_on_oom
from ._stats import (
    MemoryMonitor,
    MemoryStats,
    format_memory_stats,
    memory_stats,
    memory_utilization,
    reset_peak_memory,
)

__version__ = "0.1.0"

__all__ = [
    "MemoryMonitor",
    "MemoryStats",
    "auto",
    "end",
    "flush",
    "format_memory_stats",
    "memory_stats",
    "memory_utilization",
    "phase",
    "record",
    "reset_peak_memory",
    "snapshot",
    "snapshot_on_oom",
    "step",
    "step_end",
]


def step_end(n: Optional[int] = None) -> None:
    """Records that the global optimizer step `n` has ended; without `n`, the one after the last."""
    CLIENT.step_end(n)


def step(n: Optional[int] = None) -> Step:
    """`with stepmem.step():` around one optimizer step; a step that raises is not recorded."""
    return Step(n)


def phase(name: str) -> Phase:
    """`with stepmem.phase("eval"):` or `"checkpoint"`: what runs within counts for peaks, not as a step."""
    return Phase(name)


def end(outcome: str = "completed") -> None:
    """Says that this rank's work is over (`completed`, `failed` or `oom`): it leaves the exporter's outputs at once."""
    CLIENT.end(outcome)


def flush(seconds: float = 1.0) -> bool:
    """Waits until all that was recorded is pushed, at most so long; whether it was."""
    return CLIENT.flush(seconds)
