"""Exact peaks of each step, from PyTorch's peak counters, which the program uses too.

The counters are reset after each step. What the program had on them is kept, and the functions through which it reads and
resets them are wrapped, so that it sees the values that it would see without this client. Only reading and resetting is done
at the step's end; the rest waits until the statistics are needed.

Between reading and resetting a counter lies a microsecond in which another thread may allocate and free again; a peak of
that moment is lost.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from itertools import repeat
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ._signals import raise_if_of_handler
from ._warn import warn_once

READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
RESETTERS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""Functions of `torch._C` through which a program reads and resets peaks. The first of each must exist."""

Path = Tuple[str, ...]
"""Keys of one statistic: its kind and its pool, or its kind alone."""

EndedStep = Tuple["_Device", int, Tuple[Dict[str, Any], None]]
"""The device, how often the program had reset its counters, and the statistics besides those that the reset returned."""

_counters: "Optional[PeakCounters]" = None
"""The shared counters of this process, which are installed once."""

_lock = RLock()
"""Keeps steps, and the program's reading and resetting, in order. Reentrant, because a signal handler may do any of them inside a step."""


class PeakCounters:
    """PyTorch's peak counters, shared by this client and the program."""

    def __init__(self, torch: Any) -> None:
        native = torch._C
        self._read: Callable[[int], Dict[str, Any]] = getattr(native, READERS[0])
        self._reset: Callable[[int], None] = getattr(native, RESETTERS[0])
        self._devices: Dict[int, _Device] = {}
        self._ended: Deque[EndedStep] = deque()
        """Steps that wait for `settle`, oldest first. The callers of `step_end` bound them."""

    def add_device(self, idx: int) -> None:
        """Begins to count the steps of a device. Raises ValueError if its statistics have an unknown shape."""
        if idx not in self._devices:
            self._devices[idx] = _Device(idx, self._read(idx))

    def step_end(self, idx: int) -> "Callable[[], EndedStep]":
        """Returns a function that reads a device's statistics and begins its next step. Its callers hold the lock of `step_lock`.

        `settle` returns what was read.
        """
        device, append = self._devices[idx], self._ended.append
        # Each `take` is one call into C, so that no other Python thread comes between reading and resetting.
        take = zip(map(self._read, repeat(idx)), map(self._reset, repeat(idx))).__next__

        def end_step() -> EndedStep:
            ended = (device, device.n_resets, take())
            append(ended)
            return ended

        return end_step

    def settle(self, ended: EndedStep) -> Dict[str, Any]:
        """Returns a step's statistics, with its own peaks of all allocated and reserved bytes. Settles those before it too."""
        with _lock:
            # A copy, because a signal handler of the program may settle all of them meanwhile.
            while any(waiting is ended for waiting in list(self._ended)):
                self._settle_oldest()
        return ended[2][0]

    def _settle_oldest(self) -> None:
        """Keeps the program's peaks of the oldest step that waits, if one does, and restores the step's own."""
        if not self._ended:
            return
        device, n_resets, (stats, _) = self._ended.popleft()
        if n_resets == device.n_resets:
            device.keep(stats)
        if device.had_reset:
            device.restore_step(stats, is_over=n_resets == device.n_resets)

    def _settle_all(self) -> None:
        while self._ended:
            self._settle_oldest()

    def install(self, native: Any) -> None:
        """Wraps the functions of `torch._C`. Raises AttributeError or TypeError if that is impossible."""
        wrapped = [(name, self._reader) for name in READERS] + [(name, self._resetter) for name in RESETTERS]
        for name, wrap in wrapped:
            function = getattr(native, name, None)
            if function is not None:
                setattr(native, name, _named(wrap(function), function))

    def _reader(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def read_for_program(*arguments: Any, **named: Any) -> Any:
            with _lock:
                self._settle_all()
                stats = read(*arguments, **named)
                device = self._device((*arguments, *named.values()))
                if device is not None:
                    device.restore(stats)
                return stats

        return read_for_program

    def _resetter(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        def reset_for_program(*arguments: Any, **named: Any) -> Any:
            with _lock:
                self._settle_all()
                device = self._device((*arguments, *named.values()))
                stats = None if device is None else self._read(device.idx)
                result = reset(*arguments, **named)
                if device is not None and stats is not None:
                    device.forget(stats)
                return result

        return reset_for_program

    def _device(self, arguments: "tuple[Any, ...]") -> "Optional[_Device]":
        """Returns the device that a call of the program means; None if its steps are not counted."""
        return self._devices.get(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], int) else None


class _Device:
    """The peaks of one device that were reset after a step, and are still the program's."""

    __slots__ = ("_kept", "_kinds", "_last", "_paths", "_single_kinds", "allocated", "had_reset", "idx", "n_resets", "reserved")

    def __init__(self, idx: int, stats: Dict[str, Any]) -> None:
        self.idx = idx
        self._paths = _paths(stats)
        self._kinds = list(dict.fromkeys(path[0] for path in self._paths if len(path) == 2))
        self._single_kinds = [path[0] for path in self._paths if len(path) == 1]
        if not {("allocated_bytes", "all"), ("reserved_bytes", "all")} <= set(self._paths):
            raise ValueError("the allocator's statistics have no peaks")
        self._kept: List[int] = []
        """The program's peaks, in the order of the paths, since its last reset until ours; empty if there are none."""
        self._last: List[int] = []
        """The peaks that were kept last."""
        self.allocated = 0
        self.reserved = 0
        """The step's peaks until the program's last reset, if it reset them in this step."""
        self.had_reset = False
        self.n_resets = 0
        """Number of times that the program reset the counters."""

    def keep(self, stats: Dict[str, Any]) -> None:
        """Keeps the peaks before they are reset after a step."""
        peaks = [stat["peak"] for kind in self._kinds for stat in stats[kind].values()]
        peaks += [stats[kind]["peak"] for kind in self._single_kinds]
        if peaks != self._last:  # in a steady loop they are equal
            self._kept = list(map(max, self._kept, peaks)) if self._kept else peaks
            self._last = peaks

    def restore(self, stats: Dict[str, Any]) -> None:
        """Puts the kept peaks into statistics for the program."""
        for path, kept in zip(self._paths, self._kept):
            found: Any = stats
            for key in path:
                found = found.get(key, {})
            if found.get("peak", kept) < kept:
                found["peak"] = kept

    def restore_step(self, stats: Dict[str, Any], is_over: bool) -> None:
        """Puts the step's peaks from before the program's resets into statistics."""
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        allocated["peak"] = max(self.allocated, allocated["peak"])
        reserved["peak"] = max(self.reserved, reserved["peak"])
        if is_over:
            self.allocated = self.reserved = 0
            self.had_reset = False

    def forget(self, stats: Dict[str, Any]) -> None:
        """Forgets what was kept, after the program reset the counters; `stats` were read before that."""
        self.allocated = max(self.allocated, stats["allocated_bytes"]["all"]["peak"])
        self.reserved = max(self.reserved, stats["reserved_bytes"]["all"]["peak"])
        self._kept, self._last = [], []
        self.had_reset = True
        self.n_resets += 1


def _paths(stats: Dict[str, Any]) -> "List[Path]":
    """Returns the paths of all peaks, those of kinds without pools last. Raises ValueError if there may be others."""
    found: List[Path] = []
    single: List[Path] = []
    for kind, value in stats.items():
        if not isinstance(value, dict):
            continue
        if "peak" in value:
            single.append((kind,))
            continue
        for pool, stat in value.items():
            if not isinstance(stat, dict) or "peak" not in stat:
                raise ValueError(f"{kind}.{pool} is not a statistic with a peak")
            found.append((kind, pool))
    return found + single


def _named(wrapper: Callable[..., Any], function: Any) -> Callable[..., Any]:
    """Gives a wrapper the names of the function that it stands for."""
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(wrapper, name, getattr(function, name, None) or getattr(wrapper, name))
    return wrapper


def share_peak_counters(torch: Any, idx: int) -> Optional[PeakCounters]:
    """Returns the counters of this process, wrapped, with device `idx`; None if they cannot be wrapped or read."""
    global _counters
    try:
        counters = _counters or PeakCounters(torch)
        counters.add_device(idx)
        if _counters is None:
            counters.install(torch._C)
            _counters = counters
        return counters
    except RuntimeError as error:  # of PyTorch
        raise_if_of_handler(error)
        return None
    except (AttributeError, TypeError, ValueError) as error:
        raise_if_of_handler(error)
        warn_once("peaks", f"peaks are high-water marks, as PyTorch's counters cannot be shared: {error!r}")
        return None


def step_lock() -> RLock:
    """Returns the lock that is held while a step ends."""
    return _lock


def in_child() -> None:
    """Forgets, in each forked child, a lock that another thread of the parent may have held."""
    global _lock
    _lock = RLock()
