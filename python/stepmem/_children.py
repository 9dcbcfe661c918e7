"""The private memory of this rank's child processes: DataLoader workers, and others.

Pages that a worker shares with this process are counted here already. A child that pushes is a rank of its own.
"""

from __future__ import annotations

import os
import sys
from types import GetSetDescriptorType
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ._isolation import library
from ._procfs import Budget, age_of, children_of, is_over, is_rank, lines, sizes
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

PRIVATE, ANONYMOUS, SHARED = FIELDS = (b"Private_Dirty", b"Anonymous", b"Pss_Shmem")


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
    """Returns the processes that `multiprocessing` started from this one and has not joined.

    Asks none of these objects: their class may be one of the program.
    """
    found: Set[int] = set()
    module = library("multiprocessing.process")
    attributes: Any = vars(getattr(module, "BaseProcess", object)).get("__dict__")
    for process in list(getattr(module, "_children", ())) if type(attributes) is GetSetDescriptorType else ():
        for popen in [each for name, each in list(attributes.__get__(process).items()) if name == "_popen"]:
            held = vars(popen) if type(popen).__module__.startswith("multiprocessing.popen_") else {}
            if type(held.get("pid")) is int:
                found.add(held["pid"])
    return found


def _private_bytes(pid: int) -> Optional[int]:
    """Returns the anonymous memory that a process shares with no other; UNKNOWN if that cannot be read, None if it has ended."""
    found = sizes(lines(f"/proc/{pid}/smaps_rollup", FIELDS), FIELDS)
    if PRIVATE in found and found.get(SHARED, 0) * SHARED_PART <= _private(found):
        return _private(found)
    n_bytes = -1
    mapping: Dict[bytes, int] = {}
    # A mapping at a time: in the sum, dirty pages of files and of shared memory would count as anonymous ones.
    for line in lines(f"/proc/{pid}/smaps", FIELDS):
        if line.startswith(FIELDS):
            mapping.update(sizes(iter((line,)), FIELDS))
        elif line.startswith(b"Size:"):
            n_bytes, mapping = max(0, n_bytes) + _private(mapping), {}
    if n_bytes >= 0:
        return n_bytes + _private(mapping)
    return None if is_over(pid) else UNKNOWN


def _private(found: Dict[bytes, int]) -> int:
    """Returns the bytes of private anonymous memory in fields of `smaps`."""
    private = found.get(PRIVATE, 0)
    return min(private, found.get(ANONYMOUS, private))
