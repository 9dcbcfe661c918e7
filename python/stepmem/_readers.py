"""Reads the memory of this process: PyTorch's allocator on a GPU, otherwise resident memory.

A reader's `take` reads what changes with each step; `figures` turns it into figures later, on any thread, in the same order.
"""

from __future__ import annotations

import os
import resource
import time
from time import monotonic
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ._captures import running
from ._cgroup import tightest
from ._children import ChildProcesses
from ._descriptors import PROC_BYTES, KeptFile, Reading
from ._peaks import share_peak_counters
from ._procfs import kib, read
from ._settings import Settings
from ._shared_memory import SharedFiles, SharedMemory
from ._signals import raise_if_of_handler
from ._torch import cuda_torch, device_uuid, is_integrated, memory_fraction
from ._warn import warn_once
from ._wire import HOST_PARTS, STEP_MAX, UNIFIED, UNKNOWN

Figures = Tuple[int, int, int, int, int, int, int, int, int, int]
"""Allocated, peak allocated, reserved, peak reserved and inactive split bytes, allocation retries, OOMs, requested bytes.

UNKNOWN where the reader cannot read one.
"""

HighWater = Tuple[int, int]
"""The most bytes allocated and reserved since the process began; UNKNOWN where they cannot be read."""


Parts = Tuple[int, ...]
"""Values of HOST_PARTS and PROCESS_LIMITS; UNKNOWN where there is none."""

NO_LIMITS = (UNKNOWN,) * 4

NO_PARTS: Parts = (*(UNKNOWN,) * len(HOST_PARTS), *NO_LIMITS)

HOST_EVERY = 0.02
"""Interval at which host memory next to a device's is read at the end of a step, in seconds: it would be half of what a short step's end costs."""

PINNED_EVERY = 5.0
"""Interval at which pinned memory is read, in seconds. A program that frees it on another thread meanwhile makes the reading wait."""

PRIVATE_POOLS_MAX = 64
"""Private pools whose bytes are added up at the end of a step; of more they are unknown."""

LIMIT_EVERY = 10.0
"""Interval at which the limit of host memory next to a device's is read, in seconds."""


class Capacity(NamedTuple):
    """Memory of the device as this process sees it, in bytes; may be UNKNOWN."""

    total: int
    free: int
    reserved_limit: int = UNKNOWN
    """The most that the allocator may reserve."""

    def remaining(self, reserved: int) -> int:
        """Returns the bytes that a process with `reserved` bytes can still take; a negative number if that is unknown."""
        left = self.free if self.free != UNKNOWN else self.total - reserved
        return left if self.reserved_limit == UNKNOWN else min(left, self.reserved_limit - reserved)


NO_CAPACITY = Capacity(UNKNOWN, UNKNOWN)


class MemorySample:
    """Figures that were read between steps; stands for a reader in a source."""

    __slots__ = ("_read", "allocated", "capacity", "high_water")

    def __init__(self, figures: Figures, parts: Parts) -> None:
        self._read = figures, parts
        self.allocated = figures[0]
        self.high_water: HighWater = (UNKNOWN, UNKNOWN)
        self.capacity: Optional[Capacity] = None
        """None where the reader's own can be read on any thread."""

    def figures(self, _taken: Any, _at: float) -> Tuple[Figures, Parts]:
        """Returns the figures that were read."""
        return self._read


class HostReader:
    """Anonymous resident memory of this process, and shared memory that it holds (Linux).

    Excludes pages of files, because reading through a memory-mapped data set is not a leak.
    """

    device = "cpu"
    memory_kind: Optional[str] = None
    high_water: HighWater = (UNKNOWN, UNKNOWN)

    def __init__(self, budget: Optional[int] = None) -> None:
        """`budget`: the bytes that this process may take, instead of the limit that is found."""
        self._budget = budget
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = KeptFile("/proc/self/statm")
        self._shared = SharedMemory()
        self._children, self._files = ChildProcesses(), SharedFiles()
        self._has_shared = False
        self._limits: Tuple[int, int] = (UNKNOWN, UNKNOWN)
        """The kernel's limits of the process's data and address space."""

    def close(self) -> None:
        """Closes `/proc/self/statm`."""
        self._statm.close()

    def take(self) -> Reading:
        """Makes one system call."""
        return self._statm.read(PROC_BYTES)

    def read_shared(self) -> None:
        """Reads the shared memory that this process holds."""
        self._shared.read(time.monotonic())

    def read_parts(self) -> Parts:
        """Reads the figures that need not be read at each step, on the sender's thread, and returns those of child processes."""
        self.read_shared()
        now = time.monotonic()
        children, files = self._children.read(now), self._files.read(now)
        if children is None and files is None:
            return NO_PARTS
        n = children or (UNKNOWN,) * 8
        return (*NO_PARTS[:3], *n[:4], UNKNOWN, UNKNOWN, *n[4:], *(files or (UNKNOWN, UNKNOWN)), *NO_LIMITS)

    def figures(self, taken: Reading, at: float) -> Tuple[Figures, Parts]:
        """Returns the figures of a value that `take` returned at a time on the monotonic clock, and the shared memory and limits."""
        space, resident, of_files, _, _, data, *_ = self._statm.checked(taken).split()
        shared, split = self._shared.at(int(of_files) * self._page, at)
        allocated = (int(resident) - int(of_files)) * self._page + shared
        self._has_shared = self._has_shared or shared > 0
        parts = (shared, split, *NO_PARTS[2:]) if self._has_shared else NO_PARTS
        if self._limits != (UNKNOWN, UNKNOWN):
            used = (int(data) * self._page, int(space) * self._page)
            pairs = ((limit, of) if limit != UNKNOWN else (UNKNOWN, UNKNOWN) for limit, of in zip(self._limits, used))
            parts = (*parts[: -len(NO_LIMITS)], *(value for pair in pairs for value in pair))
        # There is no caching allocator in between: reserved is what is allocated.
        return (allocated, UNKNOWN, allocated, *(UNKNOWN,) * 7), parts

    def n_ooms(self) -> int:
        """Returns UNKNOWN: nothing counts the errors of the host."""
        return UNKNOWN

    def sample(self) -> "MemorySample":
        """Returns the memory as it is, on any thread."""
        return MemorySample(*self.figures(self.take(), time.monotonic()))

    def capacity(self) -> Capacity:
        """Returns the budget, or the smaller of the machine's memory and the cgroup limit. Reads the limits of the process again, too.

        `free` is UNKNOWN of a budget, and of a cgroup whose use cannot be read.
        """
        self._limits = _process_limits(self._limits)
        if self._budget is not None:
            return Capacity(self._budget, UNKNOWN)
        smallest = _machine()
        group = tightest()
        if group is not None and (smallest.total == UNKNOWN or group.limit < smallest.total):
            used = group.used()
            smallest = Capacity(group.limit, UNKNOWN if used == UNKNOWN else max(0, group.limit - used))
        return smallest


class HostMemory:
    """Host memory of a process whose other figures are a GPU's. What fails leaves it unknown, and the GPU's figures as they are."""

    def __init__(self, reader: Optional[HostReader]) -> None:
        """`reader`: the one that was used before the process began to use a GPU."""
        self._reader: Optional[HostReader] = None
        self._limit = UNKNOWN
        self._limit_due_at = 0.0
        try:
            self._reader = reader or HostReader()
        except (OSError, ValueError) as error:
            raise_if_of_handler(error)
            self._fail(error)

    def close(self) -> None:
        """Closes its file."""
        if self._reader is not None:
            self._reader.close()

    def take(self) -> Optional[Reading]:
        """Makes one system call; returns None where that fails."""
        try:
            return None if self._reader is None else self._reader.take()
        except OSError as error:
            raise_if_of_handler(error)
            return None

    def read_parts(self) -> Parts:
        """Reads what need not be read at each step, and returns the figures of child processes."""
        if self._reader is None:
            return NO_PARTS
        if time.monotonic() >= self._limit_due_at:
            self._limit_due_at = time.monotonic() + LIMIT_EVERY
            self._limit = self._reader.capacity().total
        return self._reader.read_parts()

    def parts(self, taken: Optional[Reading], at: float) -> Parts:
        """Returns the figures of a value that `take` returned at a time on the monotonic clock."""
        if taken is None or self._reader is None:
            return NO_PARTS
        try:
            figures, parts = self._reader.figures(taken, at)
        except (OSError, ValueError) as error:
            raise_if_of_handler(error)
            self._fail(error)
            return NO_PARTS
        return (*parts[:7], figures[0], self._limit, *parts[9:])

    def _fail(self, error: Exception) -> None:
        self._reader = None
        warn_once("host", f"host memory is not read: {error!r}")


class CudaReader:
    """PyTorch's caching allocator on one GPU. Never initializes CUDA and never waits for the GPU."""

    def __init__(self, torch: Any, idx: int, counts_peaks: bool, host: "HostMemory") -> None:
        """Reads device `idx`, and host memory next to it. `counts_peaks`: whether each step gets its peaks."""
        self._torch = torch
        self._counts_peaks = counts_peaks
        self._idx = idx
        self.high_water: HighWater = (UNKNOWN, UNKNOWN)
        self.device = device_uuid(torch, idx)
        self._reserved_limit = UNKNOWN
        self._has_pinned, self._pinned_due_at = False, 0.0
        self.memory_kind = UNIFIED if is_integrated(torch, idx) else None
        """The kind of the GPU's memory, where PyTorch shows that it is not its own."""
        counters = self._counters = share_peak_counters(torch, idx) if counts_peaks else None
        self._host = host
        device, read_host, due_at = self._raw if counters is None else counters.step_end(idx), host.take, 0.0

        def take() -> Any:
            nonlocal due_at
            now = monotonic()
            if now < due_at:
                return device(), None
            due_at = now + HOST_EVERY
            return device(), read_host()

        self.take: Callable[[], Any] = take
        """Calls the allocator once, and once more to reset its peaks; makes one system call if HOST_EVERY has passed. Its callers hold the lock of
        `step_lock`."""

    @staticmethod
    def of_current(torch: Any, counts_peaks: bool, host: "Optional[HostReader]" = None) -> "CudaReader":
        """Returns the reader of the current device; `host` is the one that was used before."""
        return CudaReader(torch, int(torch.cuda.current_device()), counts_peaks, HostMemory(host))

    def settled(self) -> "Optional[CudaReader]":
        """Returns the reader of the device that holds most of this process's tensors: itself if it holds any; None if none does."""
        used = self._torch.cuda.memory_allocated
        if used(self._idx) > 0:
            return self
        most = max(range(self._torch.cuda.device_count()), key=used, default=self._idx)
        return CudaReader(self._torch, most, self._counts_peaks, self._host) if used(most) > 0 else None

    def close(self) -> None:
        """Closes the file of the host's memory."""
        self._host.close()

    def read_parts(self) -> Parts:
        """Reads shared memory, and the limit of host memory; returns pinned memory and the figures of child processes. Runs on the sender's thread."""
        parts, pinned = self._host.read_parts(), self._pinned()
        return parts if pinned == UNKNOWN else (*parts[:2], pinned, *parts[3:])

    def _pinned(self) -> int:
        """Returns the bytes of pinned memory that PyTorch's allocator holds; UNKNOWN within PINNED_EVERY of the last reading, before PyTorch
        2.7, and of a program that never had any."""
        now = monotonic()
        read = getattr(self._torch._C, "_cuda_hostMemoryStats", None)
        if read is None or now < self._pinned_due_at or running:
            return UNKNOWN
        self._pinned_due_at = now + PINNED_EVERY
        stats = read()
        # Until PyTorch 2.9 bytes that are cached, too, are the reserved ones.
        held = max((int(stats[name]["current"]) for name in ("allocated_bytes", "reserved_bytes") if name in stats), default=0)
        self._has_pinned = self._has_pinned or held > 0
        return held if self._has_pinned else UNKNOWN

    def figures(self, both: Any, at: float = 0.0) -> Tuple[Figures, Parts]:
        """Returns the figures of a value that `take` returned, and raises the high-water marks to them."""
        counters = self._counters
        taken, host = both
        stats: Dict[str, Any] = taken if counters is None else counters.settle(taken)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        peak = step_peak = allocated["peak"]
        peak_reserved = step_peak_reserved = reserved["peak"]
        highest, highest_reserved = self.high_water
        if counters is None:
            # Only a new high-water mark is known to be of this step. The first may be of any time before.
            step_peak = peak if UNKNOWN < highest < peak else UNKNOWN
            step_peak_reserved = peak_reserved if UNKNOWN < highest_reserved < peak_reserved else UNKNOWN
        if peak > highest or peak_reserved > highest_reserved:
            self.high_water = max(highest, peak), max(highest_reserved, peak_reserved)
        figures = (
            allocated["current"],
            step_peak,
            reserved["current"],
            step_peak_reserved,
            *_further(stats),
        )
        return figures, self._host.parts(host, at)

    def n_ooms(self) -> int:
        """Returns how many out-of-memory errors the allocator counted, also those that the program caught."""
        return int(self._raw().get("num_ooms", UNKNOWN))

    def _raw(self) -> Dict[str, Any]:
        """Returns the allocator's statistics as nested dictionaries."""
        read = getattr(self._torch._C, "_cuda_memoryStats", self._torch.cuda.memory_stats_as_nested_dict)
        stats: Dict[str, Any] = read(self._idx)
        return stats

    def sample(self) -> "MemorySample":
        """Returns the memory as it is, on any thread. The steps' peaks stay as they are; those that the program sees become high-water marks."""
        stats = self._raw()
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        sample = MemorySample((allocated["current"], UNKNOWN, reserved["current"], UNKNOWN, *_further(stats)), self._host.parts(self._host.take(), time.monotonic()))
        sample.high_water = max(self.high_water[0], allocated["peak"]), max(self.high_water[1], reserved["peak"])
        total = getattr(self._torch.cuda.get_device_properties(self._idx), "total_memory", None)
        if total is not None:
            # A call of the driver makes a context on GPU 0, where this process has one already.
            limit = self._limit(int(total)) if self._idx == 0 else self._reserved_limit
            sample.capacity = Capacity(int(total), UNKNOWN, limit)
        else:
            sample.capacity = NO_CAPACITY
        return sample

    def capacity(self) -> Capacity:
        """Returns the device's memory, and the program's limit of it. On any but the training thread it would create a context on GPU 0."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return NO_CAPACITY
        free, total = cuda.mem_get_info(self._idx)
        return Capacity(int(total), int(free), self._limit(int(total)))

    def _limit(self, total: int) -> int:
        """Returns the most that the allocator may reserve of `total` bytes: all of them where a limit was lifted, UNKNOWN where none was found."""
        try:
            fraction = memory_fraction(self._torch, self._idx)
        except Exception as error:
            raise_if_of_handler(error)
            fraction = None
            warn_once("fraction", f"the limit of the allocator is not read: {error!r}")
        if fraction is not None and (fraction < 1 or self._reserved_limit != UNKNOWN):
            self._reserved_limit = int(fraction * total)
        return self._reserved_limit


def _further(stats: Dict[str, Any]) -> Tuple[int, int, int, int, int, int]:
    """Returns inactive split bytes, retries, OOMs, requested bytes, live blocks and the bytes of private pools; an allocator need not count them."""
    inactive = stats["inactive_split_bytes"]["all"]["current"] if "inactive_split_bytes" in stats else UNKNOWN
    # 0 next to live bytes: this allocator (cudaMallocAsync) counts neither requested bytes nor blocks.
    requested, blocks = (stats[name]["all"]["current"] if name in stats else 0 for name in ("requested_bytes", "allocation"))
    return inactive, stats.get("num_alloc_retries", UNKNOWN), stats.get("num_ooms", UNKNOWN), requested or UNKNOWN, blocks or UNKNOWN, _of_private_pools(stats)


def _of_private_pools(stats: Dict[str, Any]) -> int:
    """Returns the reserved bytes of private pools; UNKNOWN where there are none, or more than PRIVATE_POOLS_MAX, and before PyTorch counts them."""
    pools = stats.get("reserved_bytes_by_private_pools")
    if not pools or len(pools) > PRIVATE_POOLS_MAX:
        return UNKNOWN
    return sum(int(of["all"]["current"]) for of in pools.values())


def find_reader(settings: Settings) -> "CudaReader | HostReader":
    """Returns a CudaReader if this process uses CUDA, otherwise a HostReader."""
    torch = cuda_torch()
    return CudaReader.of_current(torch, settings.counts_peaks) if torch is not None else HostReader(settings.capacity_bytes)


def _machine() -> Capacity:
    """Returns the machine's memory; UNKNOWN where `/proc/meminfo` has no figure."""
    figures = {b"MemTotal": UNKNOWN, b"MemAvailable": UNKNOWN}
    for line in (read("/proc/meminfo") or b"").split(b"\n"):
        name, _, value = line.partition(b":")
        if name in figures:
            figures[name] = kib(value) * 1024 or UNKNOWN
    return Capacity(figures[b"MemTotal"], figures[b"MemAvailable"])


def _process_limits(before: Tuple[int, int]) -> Tuple[int, int]:
    """Returns `ulimit -d` and `ulimit -v` in bytes: UNKNOWN where there was no limit `before` either, STEP_MAX where it was lifted."""
    limits = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    data, space = (min(limit, STEP_MAX) if limit > 0 else _lifted(of) for limit, of in zip(limits, before))
    return data, space


def _lifted(before: int) -> int:
    return UNKNOWN if before == UNKNOWN else STEP_MAX
