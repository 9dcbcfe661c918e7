"""Finds PyTorch and calls its private functions. Imports and initializes nothing."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._environment import environment
from ._signals import raise_if_of_handler
from ._warn import warn_once


_fractions: Dict[int, float] = {}
"""Shares that the program set, by the index of the GPU."""


def cuda_torch() -> Any:
    """Returns the torch module if this process uses CUDA, else None."""
    is_up = is_cuda_up()
    return sys.modules.get("torch") if is_up is not None and is_up() else None


def is_cuda_up() -> "Optional[Callable[[], bool]]":
    """Returns PyTorch's function that reports whether this process uses CUDA; None before PyTorch is imported."""
    found: "Optional[Callable[[], bool]]" = getattr(getattr(sys.modules.get("torch"), "cuda", None), "is_initialized", None)
    return found


def untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """Returns a hook that `torch.compile` does not trace, however it is called; costs 0.2 µs a call.

    `torch.compiler.disable` does the same, and imports the compiler, which takes hundreds of MiB.
    """
    compile_with = getattr(_compiler_frames(), "set_eval_frame", None)
    if compile_with is None:
        return hook

    def untraced_hook(*arguments: Any) -> None:
        compiler = compile_with(None)
        try:
            hook(*arguments)
        finally:
            if compiler is not None:
                compile_with(compiler)

    untraced_hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    leave_out(untraced_hook)
    return untraced_hook


def _compiler_frames() -> Any:
    """Returns the part of PyTorch by which `torch.compile` sees frames; None where there is none."""
    return getattr(getattr(getattr(sys.modules.get("torch"), "_C", None), "_dynamo", None), "eval_frame", None)


def leave_out(function: Any) -> None:
    """Lets `torch.compile` leave out frames of this function, but for those that they call."""
    frames, code = _compiler_frames(), function.__code__
    if frames is None:
        return
    try:
        if hasattr(frames, "skip_code"):  # until PyTorch 2.6
            frames.skip_code(code)
        else:
            actions = frames._FrameAction
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("compiler", f"torch.compile may trace stepmem's hook: {error!r}")


def require_cuda() -> Any:
    """Returns the torch module; raises RuntimeError if this process does not use CUDA."""
    torch = cuda_torch()
    if torch is None:
        raise RuntimeError("this process does not use CUDA")
    return torch


def device_uuid(torch: Any, idx: int) -> str:
    """Returns the UUID as NVML writes it (`GPU-…`, `MIG-…`), or `cuda:0` if torch does not report one."""
    visible = environment().get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[idx].strip() if idx < len(visible) else ""
    if entry.startswith("MIG-"):
        return entry
    uuid = str(getattr(torch.cuda.get_device_properties(idx), "uuid", "") or "")
    if not uuid:
        return f"cuda:{idx}"
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def is_integrated(torch: Any, idx: int) -> bool:
    """Returns whether a GPU uses the machine's memory as its own."""
    return bool(getattr(torch.cuda.get_device_properties(idx), "is_integrated", False))


def memory_fraction(torch: Any, idx: int) -> Optional[float]:
    """Returns the share of a GPU that PyTorch's allocator may reserve, 1 without a limit; None where that is unknown.

    Only where the process uses CUDA, and on the training thread: PyTorch may ask the driver.
    """
    read = getattr(torch._C, "_cuda_getMemoryFraction", None)
    fraction = _fractions.get(idx) if read is None else read(idx)
    return fraction if type(fraction) is float and 0 <= fraction <= 1 else None


def watch_memory_fraction() -> None:
    """Notes the calls that set that share, from now on, in a PyTorch that does not report it (before 2.8). Raises nothing."""
    native = getattr(sys.modules.get("torch"), "_C", None)
    set_fraction = getattr(native, "_cuda_setMemoryFraction", None)
    if set_fraction is None or hasattr(native, "_cuda_getMemoryFraction") or hasattr(set_fraction, "_stepmem_fractions"):
        return

    def set_and_note(*arguments: Any) -> Any:
        result = set_fraction(*arguments)
        if len(arguments) == 2 and type(arguments[0]) in (int, float) and type(arguments[1]) is int:
            _fractions[arguments[1]] = float(arguments[0])
        return result

    try:
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(set_and_note, name, getattr(set_fraction, name, None) or getattr(set_and_note, name))
        set_and_note._stepmem_fractions = _fractions  # type: ignore[attr-defined]
        setattr(native, "_cuda_setMemoryFraction", set_and_note)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("fraction", f"a limit of the allocator may not be noticed: {error!r}")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` is PyTorch's out-of-memory error."""
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, "OutOfMemoryError", None), getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None))
    return any(issubclass(type(error), kind) for kind in kinds if type(kind) is type)


def allocator_snapshot() -> Any:
    """Returns the allocator's segments and recorded history; raises RuntimeError if this process does not use CUDA."""
    return require_cuda().cuda.memory._snapshot()


def attach_oom_observer(observer: Callable[..., None]) -> None:
    """Makes the allocator call `observer` before each out-of-memory error. PyTorch has no way to detach it."""
    require_cuda()._C._cuda_attach_out_of_memory_observer(observer)


def count_events() -> int:
    """Returns how many allocations and frees this process has made on its GPU, as a history counts them."""
    torch = require_cuda()
    stats = torch._C._cuda_memoryStats(int(torch.cuda.current_device())).get("allocation", {}).get("all", {})
    # A free is an entry when it is requested and one when it is complete.
    return int(stats.get("allocated", 0)) + 2 * int(stats.get("freed", 0))


def mark_step(step: Optional[int]) -> None:
    """Lets the history assign the following events to `step`, or to none, where PyTorch can."""
    set_metadata = getattr(require_cuda().cuda.memory, "_set_memory_metadata", None)
    if set_metadata is not None:
        set_metadata("" if step is None else f"step={step}")


def empty_cache() -> None:
    """Returns the allocator's cached memory that no tensor uses to the driver."""
    require_cuda().cuda.empty_cache()


class AllocatorHistory:
    """PyTorch's recording of allocations, shared: on from the first `start` to the last `stop`."""

    def __init__(self) -> None:
        self._wanted: List[Tuple[int, bool]] = []
        """Demands of each user: how many entries are kept, and whether they have C++ frames and the stacks of frees."""
        self._is_programs = False

    @property
    def is_programs(self) -> bool:
        """Set if the program recorded its own history when the first user came; it is left as it is."""
        return self._is_programs

    def start(self, max_entries: int, is_full: bool = False) -> None:
        """Records at least the last `max_entries` allocations and frees, unless the program records its own history.

        With `is_full`, with C++ frames (autograd's nodes) and the stacks of frees, else with the Python stacks of allocations.
        """
        torch = require_cuda()
        is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not self._wanted:
            self._is_programs = bool(is_enabled is not None and is_enabled())
        wanted = [*self._wanted, (max_entries, is_full)]
        if not self._is_programs and _most(wanted) != _most(self._wanted):
            _record(torch, *_most(wanted))
        self._wanted = wanted

    def stop(self, max_entries: int, is_full: bool = False) -> None:
        """Undoes one such `start`. Others go on; a history that the program itself records stays on."""
        torch = cuda_torch()
        before = _most(self._wanted)
        self._wanted.remove((max_entries, is_full))
        if torch is None or self._is_programs:
            return
        try:
            if not self._wanted:
                torch.cuda.memory._record_memory_history(enabled=None)
            elif _most(self._wanted) != before:
                _record(torch, *_most(self._wanted))
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("history", f"PyTorch keeps recording allocations: {error!r}")


def _most(wanted: List[Tuple[int, bool]]) -> Tuple[int, bool]:
    """Returns the least that satisfies every user of a history."""
    return max((size for size, _ in wanted), default=0), any(is_full for _, is_full in wanted)


def _record(torch: Any, max_entries: int, is_full: bool) -> None:
    context, stacks = ("all", "all") if is_full else ("alloc", "python")
    torch.cuda.memory._record_memory_history(enabled="all", context=context, stacks=stacks, max_entries=max_entries)


def like(wrapper: Any, function: Any) -> Any:
    """Returns a wrapper with the names of what it wraps."""
    for each in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(wrapper, each, getattr(function, each, None) or getattr(wrapper, each))
    wrapper.__wrapped__ = function
    return wrapper
