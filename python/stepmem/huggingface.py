"""The callback for Hugging Face's Trainer: `Trainer(…, callbacks=[StepmemCallback()])`.

A loop with Accelerate needs none: `accelerate launch -m stepmem train.py`, or `stepmem.auto()` in the code.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ._client import CLIENT


class StepmemCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records every optimizer step by the trainer's own number, and marks evaluations and checkpoints."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here on the trainer reports the steps, not a hook."""
        CLIENT.is_explicit = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step, however many batches were accumulated for it."""
        CLIENT.step_end(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation ran."""
        CLIENT.phase_end("eval", state.global_step)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """A prediction ran."""
        CLIENT.phase_end("eval", state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        CLIENT.phase_end("checkpoint", state.global_step)
