"""Counts optimizer steps without code changes, with a hook that PyTorch calls after every `optimizer.step()`."""

from __future__ import annotations

import sys
from _frozen_importlib import _find_spec  # type: ignore[attr-defined]
from _thread import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Optional, Sequence

from ._captures import running
from ._client import CLIENT
from ._process import SCATTER, SCATTERED
from ._signals import raise_if_of_handler
from ._total_steps import look
from ._torch import untraced, watch_memory_fraction
from ._warn import warn_once

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OPTIMIZER_MODULE = "torch.optim.optimizer"

_is_on = False


def auto() -> None:
    """Counts iterations by the steps of PyTorch's optimizers, from now on or as soon as PyTorch is imported.

    An iteration ends when an optimizer that already stepped in it steps again. Does nothing in a program that reports
    steps itself with `step`, `step_end` or a callback.
    """
    global _is_on
    if _is_on:
        return
    _is_on = True
    module = sys.modules.get(OPTIMIZER_MODULE)
    if module is not None:
        _install(module)
    else:
        sys.meta_path.insert(0, _WaitForTorch())


def _install(module: "ModuleType | Any") -> None:
    try:
        module.register_optimizer_step_post_hook(untraced(_after_step))
        watch_memory_fraction()
        CLIENT.watch_time(_after_step)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("hook", f"optimizer steps are not counted, because PyTorch 2.0 or newer is required: {error!r}")


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    try:
        if running and get_ident() in running:  # recorded, not taken
            running[get_ident()].note(optimizer)
            return
        if CLIENT.is_explicit and not CLIENT.counts_steps():
            return
        process = CLIENT.process
        if process.unit:
            CLIENT.steps_beside(optimizer)
        iterations = process.iterations
        if iterations.others or iterations.leader() is not optimizer:
            n_begun = iterations.begun_by(optimizer, process.n_steps)
            if not n_begun:
                return
            if n_begun > 1:
                process.step += 1
                process.n_steps += 1
        n = process.step + 1
        if n * SCATTER % SCATTERED >= process.read_below:  # see _pacing
            process.step = n
            process.n_steps += 1
            process.step_began_at = monotonic()
        else:
            CLIENT.record()
            if process.n_steps >= process.looks_at and not process.unit:
                look(process)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("hook", f"an optimizer step was not counted: {error!r}")


class _WaitForTorch:
    """An import finder that installs the hook right after PyTorch's optimizers are imported. Finds no module itself."""

    def find_spec(
        self, name: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None
    ) -> "Optional[ModuleSpec]":
        """Returns the spec that the other finders give, with its loader wrapped; None for all other modules."""
        if name != OPTIMIZER_MODULE:
            return None
        try:
            sys.meta_path.remove(self)
            return _spec_with_hook(name, path)
        except Exception as error:  # the other finders still find the module
            raise_if_of_handler(error)
            warn_once("hook", f"optimizer steps are not counted: {error!r}")
            return None


def _spec_with_hook(name: str, path: "Optional[Sequence[str]]") -> "Optional[ModuleSpec]":
    """Returns the module's spec, whose loader installs the hook after the module has run; None if it is not found."""
    spec: Optional[ModuleSpec] = _find_spec(name, path)
    loader: Any = spec.loader if spec is not None else None
    execute = getattr(loader, "exec_module", None)
    if spec is None or execute is None:
        return spec

    def exec_module(module: "ModuleType") -> None:
        execute(module)
        _install(module)

    loader.exec_module = exec_module
    return spec
