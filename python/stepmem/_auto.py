"""Counts optimizer steps with no change to the training code: a hook that PyTorch runs after every `optimizer.step()`."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional, Sequence

from ._client import CLIENT
from ._warn import warn_once

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OPTIMIZER_MODULE = "torch.optim.optimizer"

_is_installed = False
_counted: "Optional[weakref.ReferenceType[Any]]" = None


def auto() -> None:
    """Counts the steps of the first optimizer that takes one, from now on or once PyTorch is imported.

    Of several optimizers that step in turn, one is counted. A program that reports its steps itself, by `step`,
    `step_end` or a callback, is left to that.
    """
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    module = sys.modules.get(OPTIMIZER_MODULE)
    if module is not None:
        _install(module)
    else:
        sys.meta_path.insert(0, _WaitForTorch())


def _install(module: "ModuleType | Any") -> None:
    try:
        module.register_optimizer_step_post_hook(_after_step)
    except Exception as error:
        warn_once("hook", f"optimizer steps cannot be counted, PyTorch 2.0 or newer is needed: {error!r}")


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    global _counted
    try:
        if CLIENT.is_explicit:
            return
        counted = _counted() if _counted is not None else None
        if counted is None:
            _counted = weakref.ref(optimizer)
        elif counted is not optimizer:
            return
        CLIENT.optimizer_step()
    except Exception as error:
        warn_once("hook", f"an optimizer step was not counted: {error!r}")


class _WaitForTorch:
    """Finds nothing itself: has the hook installed when PyTorch's optimizers have been imported, then leaves."""

    def find_spec(
        self, name: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None
    ) -> "Optional[ModuleSpec]":
        """Asks those behind it for the module it waits for, and wraps its loader."""
        if name != OPTIMIZER_MODULE:
            return None
        try:
            sys.meta_path.remove(self)
            return _hooked(name)
        except Exception as error:  # those behind it find the module all the same
            warn_once("hook", f"optimizer steps are not counted: {error!r}")
            return None


def _hooked(name: str) -> "Optional[ModuleSpec]":
    from importlib.util import find_spec

    spec = find_spec(name)
    loader = spec.loader if spec is not None else None
    execute = getattr(loader, "exec_module", None)
    if spec is None or execute is None:
        return spec

    def exec_module(module: "ModuleType") -> None:
        execute(module)
        _install(module)

    loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
    return spec
