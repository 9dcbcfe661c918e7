"""The step with which training ends, as a trainer has it that reports nothing: read from its state, without its code."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Optional

from ._foreign import attribute
from ._holders.frames import local_names, read
from ._process import Process

FRAMES_MAX = 64
"""Frames in which a trainer is looked for, at most: those nearest to the step's end."""

LOOKS_EVERY = 4096
"""Steps from one look to the next, at most. The first are after 2, 4, 8, … steps."""

NEVER = 1 << 62
"""A step after which there is no look."""

DRIFT_STEPS, DRIFT_RATIO = 8, 0.01
"""Steps by which the total may change, or that share of those so far: the trainer counts steps that are left out because gradients overflow."""


def look(process: Process) -> None:
    """Finds the total of the trainer that runs, and at the second look believes it. Called at the end of an optimizer's step."""
    process.looks_at = min(2 * process.n_steps, process.n_steps + LOOKS_EVERY)
    left = _steps_left()
    if left is None:
        return
    total, found = process.step + left, process.found_total
    if found is None:
        process.found_total = total
    elif abs(total - found) > max(DRIFT_STEPS, DRIFT_RATIO * process.n_steps):  # other steps are counted, or another training has begun
        process.total_steps, process.looks_at = None, NEVER
    else:
        process.total_steps = found


def _steps_left() -> Optional[int]:
    """Returns how many steps the trainer takes after this one, which it has not counted yet; None if there is none that knows."""
    frame: Optional[FrameType] = sys._getframe(2)
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        place = (frame.f_globals.get("__name__"), frame.f_code.co_name)
        if place == ("transformers.trainer", "_inner_training_loop"):
            return _of_transformers(_self_of(frame))
        if place in (("lightning.pytorch.loops.fit_loop", "run"), ("pytorch_lightning.loops.fit_loop", "run")):
            return _of_lightning(_self_of(frame))
        frame = frame.f_back
    return None


def _self_of(frame: FrameType) -> Any:
    names = local_names(frame.f_code)
    return next((value for idx, value in read(frame) if names[idx] == "self"), None)


def _of_transformers(trainer: Any) -> Optional[int]:
    state = attribute(trainer, "state")
    return _left(_count(state, "max_steps"), _count(state, "global_step"))


def _of_lightning(loop: Any) -> Optional[int]:
    """As `Trainer.estimated_stepping_batches`, for one optimizer that the trainer itself steps."""
    epochs, trainer = attribute(loop, "epoch_loop"), attribute(loop, "trainer")
    optimizers = _below(trainer, "_accelerator_connector", "strategy", "_optimizers")
    progress = _below(epochs, "automatic_optimization", "optim_progress", "optimizer", "step", "total")
    n_steps, accumulated = _count(epochs, "max_steps"), _count(trainer, "accumulate_grad_batches")
    n_epochs, n_batches = _count(loop, "max_epochs"), _count(loop, "max_batches")
    if type(optimizers) is not list or len(optimizers) != 1:
        return None
    if n_epochs and n_batches and accumulated:
        of_epochs = -(-n_batches // accumulated) * n_epochs
        n_steps = min(n_steps or of_epochs, of_epochs)
    return _left(n_steps, _count(progress, "completed"))


def _below(owner: Any, *names: str) -> Any:
    for name in names:
        owner = attribute(owner, name)
    return owner


def _count(owner: Any, name: str) -> Optional[int]:
    """Returns an attribute that is a count; None if there is none, or it is below 0."""
    value = attribute(owner, name)
    return value if type(value) is int and value >= 0 else None


def _left(total: Optional[int], done: Optional[int]) -> Optional[int]:
    return total - done - 1 if total and done is not None and done < total else None
