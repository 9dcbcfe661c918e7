"""Reads what this process holds: PyTorch's allocator on a GPU, else the process's resident memory."""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ._torch import cuda_torch, device_uuid
from ._wire import UNKNOWN

Figures = Tuple[int, int, int, int, int, int, int]
"""allocated, peak, reserved, peak reserved, inactive split (bytes), allocation retries, out-of-memory errors."""


class Capacity(NamedTuple):
    """A device as this process sees it, in bytes; UNKNOWN where it cannot tell."""

    total: int
    free: int


NO_CAPACITY = Capacity(UNKNOWN, UNKNOWN)


class HostReader:
    """Resident memory of this process (Linux).

    What counts is anonymous memory: resident pages less those of files and of shared memory, since a memory-mapped data
    set that is read through is no leak.
    """

    device = "cpu"

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes what is kept open."""
        os.close(self._statm)

    def read(self) -> Figures:
        """One system call."""
        _, resident, shared, *_ = os.pread(self._statm, 128, 0).split()
        allocated = (int(resident) - int(shared)) * self._page
        # Nothing is cached below a process: what it holds is what is live.
        return allocated, UNKNOWN, allocated, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN

    def capacity(self) -> Capacity:
        """The tightest of the machine's memory, the control group's limit and the process's own limits."""
        tightest = _machine()
        group = _control_group()
        if group is not None and (tightest.total == UNKNOWN or group.total < tightest.total):
            tightest = group
        own = _process_limit()
        if own is not None and (tightest.total == UNKNOWN or own < tightest.total):
            return Capacity(own, UNKNOWN)
        return tightest


class CudaReader:
    """PyTorch's caching allocator on one GPU. It never initialises CUDA, and no call of it waits for the GPU."""

    def __init__(self, torch: Any, resets_peak: bool) -> None:
        """Reads the current device until `settle` finds another; `resets_peak` resets its peak counters at each read."""
        self._torch = torch
        self._stats = torch._C._cuda_memoryStats if hasattr(torch._C, "_cuda_memoryStats") else None
        self._resets_peak = resets_peak
        self._choose(int(torch.cuda.current_device()))

    def _choose(self, idx: int) -> None:
        self._idx = idx
        self._last_peak: Optional[int] = None
        self._last_peak_reserved: Optional[int] = None
        self.device = device_uuid(self._torch, idx)

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

    def raw(self) -> Dict[str, Any]:
        """Returns the allocator's statistics as nested dictionaries."""
        if self._stats is not None:
            stats: Dict[str, Any] = self._stats(self._idx)
        else:
            stats = self._torch.cuda.memory_stats_as_nested_dict(self._idx)
        return stats

    def read(self) -> Figures:
        """Calls the allocator once."""
        stats = self.raw()
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        peak: int = allocated["peak"]
        peak_reserved: int = reserved["peak"]
        if self._resets_peak:
            self._torch.cuda.reset_peak_memory_stats(self._idx)
            step_peak, step_peak_reserved = peak, peak_reserved
        else:
            # A peak that has not moved since the last record may be of any earlier step.
            step_peak = UNKNOWN if self._last_peak in (None, peak) else peak
            step_peak_reserved = UNKNOWN if self._last_peak_reserved in (None, peak_reserved) else peak_reserved
            self._last_peak, self._last_peak_reserved = peak, peak_reserved
        return (
            allocated["current"],
            step_peak,
            reserved["current"],
            step_peak_reserved,
            stats["inactive_split_bytes"]["all"]["current"] if "inactive_split_bytes" in stats else UNKNOWN,
            stats.get("num_alloc_retries", UNKNOWN),
            stats.get("num_ooms", UNKNOWN),
        )

    def capacity(self) -> Capacity:
        """The device's memory. Runs on the training thread only: elsewhere it would open a context on GPU 0."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return NO_CAPACITY
        free, total = cuda.mem_get_info(self._idx)
        return Capacity(int(total), int(free))


def find_reader(resets_peak: bool) -> "CudaReader | HostReader":
    """The reader for this process as it is now: CUDA's once CUDA is in use, else the host's."""
    torch = cuda_torch()
    return CudaReader(torch, resets_peak) if torch is not None else HostReader()


def _machine() -> Capacity:
    found = {"MemTotal": UNKNOWN, "MemAvailable": UNKNOWN}
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in found:
                    found[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return Capacity(found["MemTotal"], found["MemAvailable"])


CGROUPS = "/sys/fs/cgroup"


def _control_group() -> Optional[Capacity]:
    """The tightest limit of this process's control group and of those around it; None without one."""
    tightest: Optional[Capacity] = None
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
        for _, controllers, path in groups:
            if controllers == "":
                root, names = CGROUPS, ("memory.max", "memory.current", "file")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
                root = os.path.join(CGROUPS, "memory")
            else:
                continue
            # Within a container the path may be the host's, which is not there.
            directory = root + path.rstrip("/")
            if not os.path.isdir(directory):
                directory = root
            while directory.startswith(root):
                found = _group_capacity(directory, *names)
                if found is not None and (tightest is None or found.total < tightest.total):
                    tightest = found
                directory = os.path.dirname(directory)
    except (OSError, ValueError):
        pass
    return tightest


def _group_capacity(directory: str, limit: str, usage: str, cache: str) -> Optional[Capacity]:
    try:
        with open(os.path.join(directory, limit), encoding="ascii") as file:
            total = file.read().strip()
        if not total.isdecimal() or int(total) >= 1 << 53:
            return None
        with open(os.path.join(directory, usage), encoding="ascii") as file:
            used = int(file.read())
        with open(os.path.join(directory, "memory.stat"), encoding="ascii") as lines:
            for line in lines:
                name, _, value = line.partition(" ")
                if name == cache:  # given back when it is needed
                    used -= int(value)
        return Capacity(int(total), min(int(total), max(0, int(total) - used)))
    except (OSError, ValueError):
        return None


def _process_limit() -> Optional[int]:
    """What this process may hold by its own resource limits, in bytes."""
    import resource

    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY and limit > 0]
    return min(finite) if finite else None
