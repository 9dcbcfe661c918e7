"""Reports a training process's memory to the stepmem exporter after every optimizer step.

It never blocks, slows down, crashes or changes training: it raises no exceptions, forces no CUDA synchronization, and
the program reads the peak counters that it would read without it.

There are three ways to use it:

- `python -m stepmem train.py …` counts optimizer steps without code changes (also `torchrun -m stepmem train.py`);
- `with stepmem.step():` around a step, or `stepmem.step_end()` after it, in your own training loop;
- `stepmem.huggingface.StepmemCallback` and `stepmem.lightning.StepmemCallback`.
"""

from ._isolation import isolate

isolate(__name__, __path__, "_auto")

from ._auto import auto
from ._client import CLIENT, Phase, Step

TYPE_CHECKING = False  # the program may have a module `typing`
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

    from ._on_demand import record, snapshot, snapshot_on_oom
    from ._stats import (
        MemoryMonitor,
        MemoryStats,
        format_memory_stats,
        memory_stats,
        memory_utilization,
        reset_peak_memory,
    )
    from ._summary import summary

__version__ = "0.1.0"

__all__ = [
    "MemoryMonitor",
    "MemoryStats",
    "auto",
    "end",
    "flush",
    "format_memory_stats",
    "mark",
    "memory_stats",
    "memory_utilization",
    "on_memory_deadline",
    "phase",
    "record",
    "reset_peak_memory",
    "snapshot",
    "snapshot_on_oom",
    "step",
    "step_end",
    "summary",
    "total_steps",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> "Any":
        """Imports snapshots and memory figures when they are first used: they take 100 KiB."""
        from importlib import import_module

        if name in __all__:
            for module in ("._on_demand", "._stats", "._summary"):
                value = getattr(import_module(module, __name__), name, None)
                if value is not None:
                    globals()[name] = value
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> "List[str]":
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})


def step_end(n: "Optional[int]" = None) -> None:
    """Records that optimizer step `n` has ended. `n` defaults to the step after the last one."""
    CLIENT.step_end(n)


def step(n: "Optional[int]" = None) -> Step:
    """Returns a context manager for optimizer step `n`: `with stepmem.step():`. A step that raises is not recorded."""
    return Step(n)


def phase(name: str) -> Phase:
    """Returns a context manager for a phase, which counts for peaks but not as a step: `"eval"`, `"checkpoint"`, or a name of the
    program's own, such as `"sleep"` for an inference engine between rollouts. What stays on the device after each of up to 16 such names
    is compared, and named where it rises. It also decorates a function, `async` or not: `LLM.sleep = stepmem.phase("sleep")(LLM.sleep)`."""
    return Phase(name)


def mark(name: str) -> None:
    """Adds an event marker to the next step's record: an `"eval"`, a `"checkpoint"` or a new `"epoch"` came before it. Takes 0.2 µs."""
    CLIENT.mark(name)


def total_steps(n: "Optional[int]") -> None:
    """Names the step with which training ends, in the steps that are reported, on every rank; None if it is not known any more.

    Memory that clearly lasts longer then pages nobody. A callback names it by itself.
    """
    CLIENT.set_total_steps(n)


def on_memory_deadline(function: "Optional[Callable[[Any], None]]") -> None:
    """Calls `function(deadline)` when memory may soon run out, on the training thread at a step's end, to write a checkpoint; None: no longer.

    Call this on every rank, at the same place of the program: with `torch.distributed`, the function runs in all ranks at the end of
    the same step, or in none. It runs at most once in the exporter's `--checkpoint.before`. An error of it is logged, and training
    goes on. `deadline` has `reason`, `seconds_left` and `steps_left`.
    """
    CLIENT.on_memory_deadline(function)


def end(outcome: str = "completed") -> None:
    """Reports that this rank has ended (`completed`, `failed` or `oom`). At exit, the client does so by itself."""
    CLIENT.end(outcome)


def flush(seconds: float = 1.0) -> bool:
    """Waits up to `seconds` until all records are pushed. Returns whether they are."""
    return CLIENT.flush(seconds)
