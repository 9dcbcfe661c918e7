"""Callback for Hugging Face's Trainer: `Trainer(…, callbacks=[StepmemCallback()])`.

A training loop with Accelerate needs no callback: use `accelerate launch -m stepmem train.py` or call `stepmem.auto()`.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ._client import CLIENT


class StepmemCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records every optimizer step with the trainer's step number, and evaluations and checkpoints."""

    def __init__(self, checkpoint_before_oom: bool = False) -> None:
        """With `checkpoint_before_oom`, the trainer saves when memory may soon run out, at most once in the exporter's
        `--checkpoint.before`. Below `stepmem run --restart-on-deadline` the program ends after that, and is started again. Without
        it, the callback changes nothing of the training."""
        self._before = 0
        """Steps that the process had taken before this trainer, which go on being counted."""
        self._checkpoints = checkpoint_before_oom
        self._is_due = self._is_saving = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Turns automatic step counting off until training ends."""
        CLIENT.training_begins("transformers")
        self._before = max(0, CLIENT.process.step - state.global_step)
        self._name_total(state)
        if self._checkpoints:
            CLIENT.on_deadline(self._on_deadline, self._before)

    def _on_deadline(self, deadline: Any) -> None:
        self._is_due = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Lets a loop of the program's own be counted."""
        CLIENT.training_ends()
        if self._checkpoints:
            CLIENT.on_memory_deadline(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records one optimizer step, however many batches it accumulated."""
        self._name_total(state)
        CLIENT.step_end(self._before + state.global_step)
        if self._is_due:
            self._is_due, self._is_saving, control.should_save = False, True, True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the event marker of an epoch."""
        CLIENT.mark("epoch")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records an evaluation."""
        CLIENT.phase_end("eval", self._before + state.global_step)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Records a prediction as an evaluation."""
        CLIENT.phase_end("eval", self._before + state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records a checkpoint, which has been written."""
        CLIENT.phase_end("checkpoint", self._before + state.global_step)
        if self._is_saving:
            self._is_saving = False
            CLIENT.deadline_served(True)

    def _name_total(self, state: Any) -> None:
        total = getattr(state, "max_steps", None)
        CLIENT.set_total_steps(self._before + total if isinstance(total, int) and total > 0 else None)
