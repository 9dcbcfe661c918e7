"""Finds PyTorch and calls its private functions. Imports and initializes nothing."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from ._warn import warn_once


def cuda_torch() -> Any:
    """Returns the torch module if this process uses CUDA, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return torch if is_initialized is not None and is_initialized() else None


def require_cuda() -> Any:
    """Returns the torch module; raises RuntimeError if this process does not use CUDA."""
    torch = cuda_torch()
    if torch is None:
        raise RuntimeError("this process does not use CUDA")
    return torch


def device_uuid(torch: Any, idx: int) -> str:
    """Returns the UUID as NVML writes it (`GPU-…`, `MIG-…`), or `cuda:0` if torch does not report one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[idx].strip() if idx < len(visible) else ""
    if entry.startswith("MIG-"):
        return entry
    uuid = str(getattr(torch.cuda.get_device_properties(idx), "uuid", "") or "")
    if not uuid:
        return f"cuda:{idx}"
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` is PyTorch's out-of-memory error."""
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, "OutOfMemoryError", None), getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None))
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))


def allocator_snapshot() -> Any:
    """Returns the allocator's segments and recorded history; raises RuntimeError if this process does not use CUDA."""
    return require_cuda().cuda.memory._snapshot()


def attach_oom_observer(observer: Callable[..., None]) -> None:
    """Makes the allocator call `observer` before each out-of-memory error. PyTorch has no way to detach it."""
    require_cuda()._C._cuda_attach_out_of_memory_observer(observer)


class AllocatorHistory:
    """PyTorch's recording of allocations, shared: on from the first `start` to the last `stop`."""

    def __init__(self) -> None:
        self._n_users = 0
        self._is_programs = False

    def start(self, max_entries: int) -> None:
        """Records the last `max_entries` allocations and frees, unless the program already records its own history."""
        torch = require_cuda()
        is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if self._n_users == 0:
            self._is_programs = bool(is_enabled is not None and is_enabled())
        if self._n_users == 0 and not self._is_programs:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=max_entries
            )
        self._n_users += 1

    def stop(self) -> None:
        """Undoes one `start`. A history that the program itself records stays on."""
        torch = cuda_torch()
        self._n_users -= 1
        if torch is not None and self._n_users == 0 and not self._is_programs:
            try:
                torch.cuda.memory._record_memory_history(enabled=None)
            except Exception as error:
                warn_once("history", f"PyTorch keeps recording allocations: {error!r}")
