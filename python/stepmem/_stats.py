"""Memory figures for people. Needs no exporter."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple, Optional

from ._client import CLIENT
from ._descriptors import opened
from ._on_demand import snapshot
from ._procfs import read, sizes
from ._readers import Capacity, HostReader
from ._signals import raise_if_of_handler
from ._torch import cuda_torch
from ._warn import log, warn_once
from ._wire import UNKNOWN


class MemoryStats(NamedTuple):
    """Memory of this process on one device, in bytes; None if unknown. On the CPU, its resident memory."""

    allocated_bytes: Optional[int] = None
    peak_allocated_bytes: Optional[int] = None
    reserved_bytes: Optional[int] = None
    peak_reserved_bytes: Optional[int] = None
    total_bytes: Optional[int] = None
    free_bytes: Optional[int] = None


def memory_stats(device: Any = None) -> MemoryStats:
    """Returns the memory of this process on `device` (default: the current one). Peaks are since the last reset."""
    try:
        torch = cuda_torch()
        return _host() if torch is None or str(device) == "cpu" else _cuda(torch, device)
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("stats", f"memory cannot be read: {error!r}")
        return MemoryStats()


def memory_utilization(device: Any = None) -> Optional[float]:
    """Returns the peak of allocated memory as a share of the device's, 0 to 1; None if unknown."""
    stats = memory_stats(device)
    return _share(stats.peak_allocated_bytes, stats.total_bytes)


def format_memory_stats(stats: Optional[MemoryStats] = None, device: Any = None) -> str:
    """Returns one line: `allocated 1.20 GiB, peak 3.40 GiB / 80.0 GiB (4 %), reserved 4.00 GiB (5 %)`."""
    stats = memory_stats(device) if stats is None else stats
    return (
        f"allocated {format_bytes(stats.allocated_bytes)}, "
        f"peak {format_bytes(stats.peak_allocated_bytes)} / {format_bytes(stats.total_bytes)}"
        f"{_format_share(stats.peak_allocated_bytes, stats.total_bytes)}, "
        f"reserved {format_bytes(stats.reserved_bytes)}{_format_share(stats.reserved_bytes, stats.total_bytes)}"
    )


def reset_peak_memory(device: Any = None) -> None:
    """Resets the peak counters of `device`, also for the rest of the program. On the CPU, that of resident memory."""
    try:
        torch = cuda_torch()
        if torch is not None and str(device) != "cpu":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with opened("/proc/self/clear_refs", os.O_WRONLY) as file:
            file.write(b"5")
    except Exception as error:
        raise_if_of_handler(error)
        warn_once("reset", f"peak counters cannot be reset: {error!r}")


class MemoryMonitor:
    """Returns and logs memory with peaks per interval: each `report` resets the peak counters.

    Logs at level info. The report of step `snapshot_step` also writes a memory snapshot to `snapshot_dir` (default: the current directory).
    """

    def __init__(
        self, device: Any = None, snapshot_step: Optional[int] = None, snapshot_dir: Optional[str] = None
    ) -> None:
        self._device = device
        self._snapshot_step = snapshot_step
        self._snapshot_dir = snapshot_dir
        reset_peak_memory(device)

    def report(self, step: int) -> MemoryStats:
        """Returns the current memory, with the peaks since the last report."""
        stats = memory_stats(self._device)
        kind = "host" if cuda_torch() is None or str(self._device) == "cpu" else "GPU"
        log(f"[step {step}] {kind} mem: {format_memory_stats(stats)}", "info")
        if step == self._snapshot_step:
            name = f"memory_rank{CLIENT.process.identity().rank}_step{step}.pickle"
            path = snapshot(os.path.join(self._snapshot_dir or ".", name))
            if path is not None:
                log(f"[step {step}] memory snapshot: {os.path.abspath(path)}", "info")
        reset_peak_memory(self._device)
        return stats


def _cuda(torch: Any, device: Any) -> MemoryStats:
    raw = torch.cuda.memory_stats_as_nested_dict(device)
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = raw["allocated_bytes"]["all"], raw["reserved_bytes"]["all"]
    return MemoryStats(
        allocated["current"], allocated["peak"], reserved["current"], reserved["peak"], int(total), int(free)
    )


def _host() -> MemoryStats:
    reader = _host_reader()
    reader.read_shared()
    figures, _ = reader.figures(reader.take(), time.monotonic())
    allocated, capacity = figures[0], reader.capacity()
    return MemoryStats(allocated, _peak(), allocated, None, *_total_and_free(capacity))


_kept: "Optional[tuple[int, Optional[int], HostReader]]" = None
"""The process and its budget, and the reader for them: it stays, so that a call in each step does not list all mappings each time."""


def _host_reader() -> HostReader:
    global _kept
    settings = CLIENT.process.settings()
    pid, budget = os.getpid(), None if settings is None else settings.capacity_bytes
    if _kept is None or _kept[:2] != (pid, budget):
        if _kept is not None:
            _kept[2].close()
        _kept = pid, budget, HostReader(budget)
    return _kept[2]


def _peak() -> Optional[int]:
    """Returns the peak of resident memory in bytes, file pages included; None if unknown."""
    return sizes(iter((read("/proc/self/status") or b"").split(b"\n")), (b"VmHWM",)).get(b"VmHWM")


def _total_and_free(capacity: Capacity) -> "tuple[Optional[int], Optional[int]]":
    """Returns both in bytes, with None for UNKNOWN."""
    total, free = capacity.total, capacity.free
    return (None if total == UNKNOWN else total), (None if free == UNKNOWN else free)


def _share(figure: Optional[int], total: Optional[int]) -> Optional[float]:
    return None if figure is None or not total else figure / total


def _format_share(figure: Optional[int], total: Optional[int]) -> str:
    """Returns ` (5 %)`; empty if unknown."""
    share = _share(figure, total)
    return "" if share is None else f" ({share * 100:.0f} %)"


def format_bytes(figure: Optional[int]) -> str:
    """Returns three digits at most and a binary unit: `1.20 GiB`; `–` if unknown."""
    if figure is None:
        return "–"
    value = float(figure)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            break
        value /= 1024
    else:
        unit = "TiB"
    return f"{figure} B" if unit == "B" else f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
