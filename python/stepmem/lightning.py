"""Callback for Lightning: `Trainer(…, callbacks=[StepmemCallback()])`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from ._client import CLIENT
from ._signals import raise_if_of_handler
from ._warn import warn_once

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.pytorch.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback


class StepmemCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records every optimizer step with the trainer's step number, and evaluations and checkpoints."""

    def __init__(self, checkpoint_before_oom: bool = False) -> None:
        """With `checkpoint_before_oom`, the trainer saves when memory may soon run out, at most once in the exporter's
        `--checkpoint.before`: `memory-deadline-step=N.ckpt`, next to its other checkpoints, in place of the last one by that
        name. Below `stepmem run --restart-on-deadline` the program ends after that, and is started again. Without it, the callback
        changes nothing of the training."""
        self._checkpoints = checkpoint_before_oom
        self._is_due = False
        self._saved = ""
        """The path of the last checkpoint that was saved so."""
        self._step = -1
        self._before = 0
        """Steps that the process had taken before this trainer, which go on being counted."""
        self._is_saving = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Turns automatic step counting off until training ends."""
        CLIENT.training_begins(Callback.__module__.partition(".")[0])
        self._step = trainer.global_step
        self._before = max(0, CLIENT.process.step - self._step)
        total = _total_steps(trainer, pl_module)
        CLIENT.set_total_steps(None if total is None else self._before + total)
        if self._checkpoints:
            CLIENT.on_deadline(self._on_deadline, self._before)

    def _on_deadline(self, deadline: Any) -> None:
        self._is_due = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Records a checkpoint begun since the last step, which has been written by now."""
        self._record_checkpoint()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Records an optimizer step, unless this batch was only accumulated."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            CLIENT.step_end(self._before + self._step)
        if self._is_due:
            self._is_due = False
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        """Saves a checkpoint, and then removes the last one. An error is logged: the training is worth more."""
        is_written = False
        try:
            directory = getattr(trainer.checkpoint_callback, "dirpath", None) or os.path.join(trainer.default_root_dir, "checkpoints")
            path = os.path.join(directory, f"memory-deadline-step={self._step}.ckpt")
            trainer.save_checkpoint(path)
            is_written = True
            before, self._saved = self._saved, path
            if before and before != path:
                trainer.strategy.remove_checkpoint(before)
        except Exception as error:
            raise_if_of_handler(error)
            warn_once(f"deadline error {type(error).__name__}", f"no checkpoint before memory runs out, and training goes on: {error!r}")
        CLIENT.deadline_served(is_written)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Adds the event marker of an epoch."""
        CLIENT.mark("epoch")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Records an evaluation."""
        CLIENT.phase_end("eval", self._before + trainer.global_step)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Notes that a checkpoint is about to be written."""
        self._is_saving = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Records the last checkpoint, which has been written by now, and lets a loop of the program's own be counted."""
        self._record_checkpoint()
        CLIENT.training_ends()
        if self._checkpoints:
            CLIENT.on_memory_deadline(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Notes an exception, since the trainer handles Ctrl-C itself, and lets a loop of the program's own be counted."""
        CLIENT.ending.note(exception)
        CLIENT.training_ends()

    def _record_checkpoint(self) -> None:
        if self._is_saving:
            self._is_saving = False
            CLIENT.phase_end("checkpoint", self._before + self._step)


def _total_steps(trainer: Any, module: Any) -> Optional[int]:
    """Returns the steps that a training takes, in those that it counts; None if that is not known."""
    try:
        # It counts each step of each optimizer.
        is_counted = module.automatic_optimization and len(trainer.optimizers) == 1
        total = trainer.estimated_stepping_batches if is_counted else trainer.max_steps
        return total if isinstance(total, int) and total > 0 else None
    except Exception as error:  # the accumulation of batches changes from epoch to epoch
        raise_if_of_handler(error)
        return None
