"""Reads the memory of this process: PyTorch's allocator on a GPU, otherwise resident memory."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._peaks import share_peak_counters
from ._settings import Settings
from ._torch import cuda_torch, device_uuid
from ._wire import UNKNOWN

Figures = Tuple[int, int, int, int, int, int, int]
"""Allocated, peak allocated, reserved, peak reserved and inactive split bytes, allocation retries, OOMs.

UNKNOWN where the reader cannot read one.
"""

HighWater = Tuple[int, int]
"""The most bytes allocated and reserved since the process began; UNKNOWN where they cannot be read."""


class Capacity(NamedTuple):
    """Memory of the device as this process sees it, in bytes; may be UNKNOWN."""

    total: int
    free: int


NO_CAPACITY = Capacity(UNKNOWN, UNKNOWN)


class HostReader:
    """Anonymous resident memory of this process (Linux).

    Excludes pages of files and of shared memory, because reading through a memory-mapped data set is not a leak.
    """

    device = "cpu"
    high_water: HighWater = (UNKNOWN, UNKNOWN)

    def __init__(self, budget: Optional[int] = None) -> None:
        """`budget`: the bytes that this process may take, instead of the limit that is found."""
        self._budget = budget
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes `/proc/self/statm`."""
        os.close(self._statm)

    def read(self) -> Figures:
        """Makes one system call."""
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        allocated = (int(resident) - int(shared)) * self._page
        # There is no caching allocator in between: reserved is what is allocated.
        return allocated, UNKNOWN, allocated, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN

    def capacity(self) -> Capacity:
        """Returns the budget, or the smallest of the machine's memory, the cgroup limit and the process's own limits.

        `free` is UNKNOWN of a budget, and if the process's own limit is the smallest.
        """
        if self._budget is not None:
            return Capacity(self._budget, UNKNOWN)
        smallest = _machine()
        group = _cgroup()
        if group is not None and (smallest.total == UNKNOWN or group.total < smallest.total):
            smallest = group
        limit = _process_limit()
        if limit is not None and (smallest.total == UNKNOWN or limit < smallest.total):
            return Capacity(limit, UNKNOWN)
        return smallest


class CudaReader:
    """PyTorch's caching allocator on one GPU. Never initializes CUDA and never waits for the GPU."""

    def __init__(self, torch: Any, counts_peaks: bool) -> None:
        """Reads the current device until `settle` finds another. `counts_peaks`: whether each step gets its peaks."""
        self._torch = torch
        self._counts_peaks = counts_peaks
        self._choose(int(torch.cuda.current_device()))

    def _choose(self, idx: int) -> None:
        self._idx = idx
        self.high_water: HighWater = (UNKNOWN, UNKNOWN)
        self.device = device_uuid(self._torch, idx)
        self._counters = share_peak_counters(self._torch, idx) if self._counts_peaks else None

    def settle(self) -> bool:
        """Chooses the device that holds most of this process's tensors; returns whether there are any."""
        used = self._torch.cuda.memory_allocated
        if used(self._idx) > 0:
            return True
        most = max(range(self._torch.cuda.device_count()), key=used, default=self._idx)
        if used(most) == 0:
            return False
        self._choose(most)
        return True

    def close(self) -> None:
        """Does nothing: no file is kept open."""

    def read(self) -> Figures:
        """Calls the allocator once, and once more to reset its peaks."""
        if self._counters is not None:
            stats, peak, peak_reserved = self._counters.end_step(self._idx)
            known = [peak, peak_reserved]
        else:
            stats = self._raw()
            peak, peak_reserved = stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"]
            # Only a new mark is known to be of this step. The first may be of any time before.
            marks = zip(self.high_water, (peak, peak_reserved))
            known = [new if UNKNOWN < old < new else UNKNOWN for old, new in marks]
        self.high_water = max(self.high_water[0], peak), max(self.high_water[1], peak_reserved)
        return (
            stats["allocated_bytes"]["all"]["current"],
            known[0],
            stats["reserved_bytes"]["all"]["current"],
            known[1],
            stats["inactive_split_bytes"]["all"]["current"] if "inactive_split_bytes" in stats else UNKNOWN,
            stats.get("num_alloc_retries", UNKNOWN),
            stats.get("num_ooms", UNKNOWN),
        )

    def _raw(self) -> Dict[str, Any]:
        """Returns the allocator's statistics as nested dictionaries."""
        read = getattr(self._torch._C, "_cuda_memoryStats", self._torch.cuda.memory_stats_as_nested_dict)
        stats: Dict[str, Any] = read(self._idx)
        return stats

    def capacity(self) -> Capacity:
        """Returns the device's memory. On any but the training thread it would create a context on GPU 0."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return NO_CAPACITY
        free, total = cuda.mem_get_info(self._idx)
        return Capacity(int(total), int(free))


def find_reader(settings: Settings) -> "CudaReader | HostReader":
    """Returns a CudaReader if this process uses CUDA, otherwise a HostReader."""
    torch = cuda_torch()
    return CudaReader(torch, settings.counts_peaks) if torch is not None else HostReader(settings.capacity_bytes)


def _machine() -> Capacity:
    """Returns the machine's memory; UNKNOWN where `/proc/meminfo` has no figure."""
    figures = {"MemTotal": UNKNOWN, "MemAvailable": UNKNOWN}
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in figures:
                    figures[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return Capacity(figures["MemTotal"], figures["MemAvailable"])


CGROUPS = "/sys/fs/cgroup"
CGROUP_V2_FILES = ("memory.max", "memory.current", "file")
"""The files of limit and usage, and the line of `memory.stat` with the page cache."""
CGROUP_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
CGROUP_BYTES_MAX = 1 << 53
"""A limit as large as this means that there is none."""


def _cgroup() -> Optional[Capacity]:
    """Returns the smallest limit of this process's cgroup and its ancestors; None if none is limited."""
    limits: List[Capacity] = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            for line in lines:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if controllers == "":
                    limits += _cgroup_limits(CGROUPS, path, CGROUP_V2_FILES)
                elif "memory" in controllers.split(","):
                    limits += _cgroup_limits(os.path.join(CGROUPS, "memory"), path, CGROUP_V1_FILES)
    except (OSError, ValueError):
        pass
    return min(limits, key=lambda limit: limit.total, default=None)


def _cgroup_limits(root: str, path: str, files: Tuple[str, str, str]) -> List[Capacity]:
    """Returns the limits of the cgroup `path` below `root` and of its ancestors."""
    directory = root + path.rstrip("/")
    if not os.path.isdir(directory):  # in a container the path may be the host's
        directory = root
    limits: List[Capacity] = []
    while directory.startswith(root):
        limit = _cgroup_limit(directory, *files)
        if limit is not None:
            limits.append(limit)
        directory = os.path.dirname(directory)
    return limits


def _cgroup_limit(directory: str, limit_file: str, usage_file: str, cache_name: str) -> Optional[Capacity]:
    """Returns the limit of one cgroup; None if it has none or cannot be read."""
    try:
        with open(os.path.join(directory, limit_file), encoding="ascii") as file:
            limit = file.read().strip()
        if not limit.isdecimal() or int(limit) >= CGROUP_BYTES_MAX:
            return None
        total = int(limit)
        with open(os.path.join(directory, usage_file), encoding="ascii") as file:
            used = int(file.read())
        with open(os.path.join(directory, "memory.stat"), encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(" ")
                if name == cache_name:  # the kernel reclaims it when memory is short
                    used -= int(value)
        return Capacity(total, min(total, max(0, total - used)))
    except (OSError, ValueError):
        return None


def _process_limit() -> Optional[int]:
    """Returns the smaller of `ulimit -v` and `ulimit -d`, in bytes; None if there is no limit."""
    import resource

    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY and limit > 0]
    return min(finite) if finite else None
