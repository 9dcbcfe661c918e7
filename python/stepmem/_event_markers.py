"""Event markers: notices evaluations, checkpoints and epochs by the functions that the program calls for them."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Callable, List

from ._process import Process
from ._signals import raise_if_of_handler
from ._torch import leave_out
from ._warn import warn_once
from ._wire import EVENT_MARKERS

EVAL, CHECKPOINT, EPOCH = (1 << idx for idx in range(len(EVENT_MARKERS)))

FUNCTIONS = (FunctionType, BuiltinFunctionType)
"""Types of the functions that are wrapped."""

NO_GRAD = 1 << 8
"""`Process.noted_calls` counts uses of `no_grad`, and of all else that switches gradients off, in multiples of this…"""

LOADER = 1 << 4
"""…and data loaders that were begun in multiples of this; more than 15 count as uses of `no_grad`."""

USUAL_RECORDS = 16
"""Records that the usual duration and number of uses of `no_grad` are of."""

EXTRA_RATIO = 0.5
"""A step that uses `no_grad` more than a usual one, and takes this share of one longer, has an evaluation before it."""


def install(process: Process) -> None:
    """Wraps, once, each function that a program calls for an evaluation, a checkpoint and an epoch. Raises nothing.

    Called again, it wraps those of modules that were imported meanwhile.
    """
    modules = sys.modules
    grad_mode = modules.get("torch.autograd.grad_mode")
    module = getattr(modules.get("torch.nn.modules.module"), "Module", None)
    for owner, name, amount in (
        (module, "eval", EVAL),
        (module, "train", EVAL),
        (getattr(grad_mode, "no_grad", None), "__enter__", NO_GRAD),
        (getattr(grad_mode, "inference_mode", None), "__enter__", NO_GRAD),
        (getattr(grad_mode, "set_grad_enabled", None), "__init__", NO_GRAD),
        (modules.get("torch"), "save", CHECKPOINT),  # that of `torch.distributed.checkpoint` calls it
        (modules.get("safetensors.torch"), "serialize_file", CHECKPOINT),  # `save_file` and `save_model` call it
        (getattr(modules.get("torch.utils.data.dataloader"), "DataLoader", None), "__iter__", LOADER),
    ):
        try:
            function: Any = None if owner is None else vars(owner).get(name)
            if type(function) not in FUNCTIONS:  # an object of the program would be asked
                continue
            if not hasattr(function, "_stepmem_process"):
                setattr(owner, name, _wrapped(function, process, name, amount))
                if isinstance(owner, ModuleType):
                    getattr(owner, name).__module__ = owner.__name__  # where pickle finds it; the original stays at its own place
            else:
                function._stepmem_process[0] = process
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("marks", f"evaluations and checkpoints may not be noticed: {error!r}")


def _wrapped(function: "Callable[..., Any]", process: Process, name: str, amount: int) -> Any:
    """Returns a function that notes a call and then is `function`; a forked child sets its own process."""
    of = [process]

    def saving(*arguments: Any, **named: Any) -> Any:
        of[0].noted_calls |= amount
        return function(*arguments, **named)

    def evaluating(self: Any) -> Any:
        of[0].noted_calls |= amount
        return function(self)

    def training(self: Any, mode: bool = True) -> Any:
        if mode is False:
            of[0].noted_calls |= amount
        return function(self, mode)

    def switching(self: Any, mode: bool) -> None:
        if mode is False:
            of[0].noted_calls += amount
        function(self, mode)

    def counting(self: Any) -> Any:
        of[0].noted_calls += amount
        return function(self)

    wrappers = {"eval": evaluating, "train": training, "__init__": switching, "__enter__": counting, "__iter__": counting}
    wrapper: Any = wrappers.get(name, saving)
    for each in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(wrapper, each, getattr(function, each, None) or getattr(wrapper, each))
    wrapper.__wrapped__ = function
    wrapper._stepmem_process = of
    leave_out(wrapper)
    return wrapper


class EventMarkers:
    """Separates evaluations under `no_grad` from its use in steps: they take longer, or use it more than any recent step."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._durations: List[float] = []
        self._uses: List[float] = []

    def of_record(self, noted: int, ended: float, n_steps: int) -> int:
        """Returns the event markers of a record of `n_steps` that ended at `ended`, by the calls that the process had noted."""
        seconds, self._ended = ended - self._ended, ended
        markers, n_loaders, n_uses = noted & (LOADER - 1), noted % NO_GRAD // LOADER, noted // NO_GRAD
        if len(self._durations) == USUAL_RECORDS and n_uses:
            usual, uses = sorted(self._durations)[USUAL_RECORDS // 2], sorted(self._uses)
            is_long = seconds - n_steps * usual >= EXTRA_RATIO * usual
            if n_uses > n_steps * (uses[USUAL_RECORDS // 2] if is_long else uses[-1]) + 0.5:
                markers |= EVAL
        if n_loaders > (1 if markers & EVAL else 0):
            markers |= EPOCH
        self._durations.append(seconds / n_steps)
        self._uses.append(n_uses / n_steps)
        del self._durations[:-USUAL_RECORDS], self._uses[:-USUAL_RECORDS]
        return markers
