"""The private memory of this rank's child processes: DataLoader workers, and others.

Pages that a worker shares with this process are counted here already. A child that pushes is a rank of its own.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ._procfs import Budget, age_of, children_of, is_over, is_rank, read
from ._wire import UNKNOWN

SHARE_MAX = 0.0005
CREDIT_SECONDS = 1.0
READ_EVERY, READ_EVERY_MAX = 1.0, 60.0
"""The processor time that this may take: share of a core, seconds at first; and seconds between two readings, unless they cost more."""

PROCESSES_MAX = 256
"""Child processes that are read, at most. With more, their memory is unknown."""

AGE_SECONDS_MIN = 0.5
"""A child is read from this age on: until it runs its program, that of `vfork` shows its parent's memory."""

SHARED_PART = 16
"""Shared memory of less than one part in so many of a child's private memory is not separated from it."""

FIELD = re.compile(rb"^(Private_Dirty|Anonymous|Pss_Shmem): +(\d+) kB", re.M)


class Children(NamedTuple):
    """Numbers of child processes and their private bytes; UNKNOWN where these cannot be read."""

    workers: int
    workers_bytes: int
    others: int
    others_bytes: int


class ChildProcesses:
    """Reads the child processes, on the sender's thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._budget = Budget(SHARE_MAX, CREDIT_SECONDS, READ_EVERY, READ_EVERY_MAX)
        self._has_had_any = False

    def read(self, now: float) -> Optional[Children]:
        """Returns the child processes at `now`, on the monotonic clock; None if there never was one, or if no reading is due."""
        if now < self._budget.due_at:
            return None
        self._budget.begin()
        children = self._read()
        self._budget.end(now)
        self._has_had_any = self._has_had_any or children.workers + children.others > 0
        return children if self._has_had_any else None

    def _read(self) -> Children:
        workers = _started_by_multiprocessing()
        below = {pid: pid in workers for pid in children_of(self._pid) or workers}
        counts, sums = [0, 0], [0, 0]
        seen: Set[int] = set()
        while below:
            pid, is_of_worker = below.popitem()
            if pid in seen or age_of(pid) < AGE_SECONDS_MIN or is_rank(pid):
                continue
            seen.add(pid)
            if len(seen) > PROCESSES_MAX:
                return Children(counts[1], UNKNOWN, counts[0], UNKNOWN)
            for child in children_of(pid) or ():
                below[child] = is_of_worker or child in workers
            n_bytes = _private_bytes(pid)
            if n_bytes is None:
                continue  # it has ended meanwhile
            counts[is_of_worker] += pid in workers or not is_of_worker  # a worker's own child is a part of it
            sums[is_of_worker] = UNKNOWN if UNKNOWN in (n_bytes, sums[is_of_worker]) else sums[is_of_worker] + n_bytes
        return Children(counts[1], sums[1], counts[0], sums[0])


def _started_by_multiprocessing() -> Set[int]:
    """Returns the processes that `multiprocessing` started from this one and has not joined."""
    found: Set[int] = set()
    for process in list(getattr(sys.modules.get("multiprocessing.process"), "_children", ())):
        pid: Any = getattr(getattr(process, "_popen", None), "pid", None)
        if isinstance(pid, int):
            found.add(pid)
    return found


def _private_bytes(pid: int) -> Optional[int]:
    """Returns the anonymous memory that a process shares with no other; UNKNOWN if that cannot be read, None if it has ended."""
    sums = _fields(read(f"/proc/{pid}/smaps_rollup"))
    if sums is not None and sums[1] * SHARED_PART <= sums[0]:
        return sums[0]
    lines = read(f"/proc/{pid}/smaps")
    if lines:
        # A mapping at a time: in the sum, dirty pages of files and of shared memory would count as anonymous ones.
        mappings = [_fields(each) for each in re.split(rb"^(?=[0-9a-f]+-[0-9a-f]+ )", lines, flags=re.M)]
        return sum(each[0] for each in mappings if each is not None)
    return None if is_over(pid) else UNKNOWN


def _fields(text: Optional[bytes]) -> Optional[Tuple[int, int]]:
    """Returns the bytes of private anonymous memory and of shared memory in lines of `smaps`; None if they are not there."""
    found: Dict[bytes, int] = {name: int(kib) * 1024 for name, kib in FIELD.findall(text or b"")}
    if b"Private_Dirty" not in found:
        return None
    private = found[b"Private_Dirty"]
    return min(private, found.get(b"Anonymous", private)), found.get(b"Pss_Shmem", 0)
