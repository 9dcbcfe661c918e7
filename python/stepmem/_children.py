"""The memory of this rank's child processes: DataLoader workers, and others.

Pages that a worker shares with this process are counted here already. A child that pushes is a rank of its own.
"""

from __future__ import annotations

import os
from types import GetSetDescriptorType
from typing import Any, Dict, List, NamedTuple, Optional, Set

from ._isolation import library
from ._procfs import Budget, age_of, anonymous_of, children_of, is_over, is_rank, lines, sizes, started_of
from ._wire import UNKNOWN

SHARE_MAX = 0.0005
CREDIT_SECONDS = 1.0
READ_EVERY = 1.0
"""The processor time that this may take, and the pages of new children as much again: share of a core, seconds at first; and seconds between
two readings, unless they cost more."""

PAGES_EVERY = 60.0
"""The pages of a child are read when it is new, and again after so many seconds: the kernel passes over all of them, and a thread of the
child that maps memory waits. In between it is one number that is read."""

PROCESSES_MAX = 256
"""Child processes that are read, at most. With more, their memory is unknown, and the rest is counted."""

AGE_SECONDS_MIN = 0.5
"""A child is read from this age on: until it runs its program, that of `vfork` shows its parent's memory."""

SHARED_PART = 16
"""Shared memory of less than one part in so many of a child's private memory is not separated from it."""

PRIVATE, ANONYMOUS, SHARED = FIELDS = (b"Private_Dirty", b"Anonymous", b"Pss_Shmem")


class Children(NamedTuple):
    """Numbers of child processes and bytes; UNKNOWN where these cannot be read."""

    workers: int
    workers_bytes: int
    others: int
    others_bytes: int
    workers_own: int
    """The private memory that they had at first, and allocated since: without pages that only stopped being shared."""
    others_own: int
    shared: int
    """Anonymous memory that they share with others: what they take in addition if no page stays shared."""
    unread: int
    """Processes beyond PROCESSES_MAX; UNKNOWN until there are any."""


class Child:
    """A child process, as it was read last."""

    def __init__(self, started: int) -> None:
        self.started = started
        self.is_worker = self.is_of_worker = False
        self.anonymous = 0
        self.shared_first = self.shared = UNKNOWN
        """The part of that which it shared with others, when it was new and lately."""
        self.pages_due_at = self.rank_due_at = -1.0

    def held(self, shared: int) -> int:
        """Returns its anonymous memory without a part of it; UNKNOWN if that is."""
        return UNKNOWN if shared == UNKNOWN else max(0, self.anonymous - shared)


class ChildProcesses:
    """Reads the child processes, on the sender's thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._budget = Budget(SHARE_MAX, CREDIT_SECONDS, READ_EVERY, READ_EVERY)
        self._pages_budget = Budget(SHARE_MAX, CREDIT_SECONDS, 0.0, 0.0)
        self._known: Dict[int, Child] = {}
        self._has_had_any = False
        self._unread = UNKNOWN

    def read(self, now: float) -> Optional[Children]:
        """Returns the child processes at `now`, on the monotonic clock; None if there never was one, or if no reading is due."""
        if now < self._budget.due_at:
            return None
        self._budget.begin()
        self._known = self._find(now)
        self._budget.end(now)
        has_pages = self._read_pages(now)
        self._has_had_any = self._has_had_any or len(self._known) > 0
        return self._sum() if has_pages and self._has_had_any else None

    def _find(self, now: float) -> Dict[int, Child]:
        """Returns the child processes with their anonymous memory, PROCESSES_MAX at most, and notes how many more there are."""
        workers = _started_by_multiprocessing()
        below = {pid: pid in workers for pid in children_of(self._pid) or workers}
        found: Dict[int, Child] = {}
        while below and len(found) < PROCESSES_MAX:
            pid, is_of_worker = below.popitem()
            started = started_of(pid)
            child = self._known.get(pid)
            if child is None or child.started != started:
                child = Child(started)
            age = age_of(started)
            if pid in found or age < AGE_SECONDS_MIN:
                continue
            if now >= child.rank_due_at:
                child.rank_due_at = now + min(age, PAGES_EVERY)
                if is_rank(pid):
                    continue
            for below_it in children_of(pid) or ():
                below[below_it] = is_of_worker or below_it in workers
            child.anonymous, child.is_worker, child.is_of_worker = anonymous_of(pid), pid in workers, is_of_worker
            if child.anonymous or not is_over(pid):
                found[pid] = child
        self._unread = len(below) or min(self._unread, 0)
        return found

    def _read_pages(self, now: float) -> bool:
        """Reads what children share, of which that is due. Returns whether it is known of all."""
        due = [(pid, child) for pid, child in self._known.items() if now >= child.pages_due_at]
        if not due or self._unread > 0:
            return True
        if now < self._pages_budget.due_at:
            return all(child.pages_due_at > 0.0 for _, child in due)
        self._pages_budget.begin()
        for pid, child in due:
            shared = _shared_bytes(pid)
            if shared is None:
                del self._known[pid]  # it has ended meanwhile
                continue
            if child.pages_due_at < 0.0:
                child.shared_first = shared
            child.shared, child.pages_due_at = shared, now + PAGES_EVERY
        self._pages_budget.end(now)
        return True

    def _sum(self) -> Children:
        """Returns the sums over all."""
        is_known = self._unread <= 0
        counts, held, own = [0, 0], [0, 0], [0, 0]
        shared = 0
        for child in self._known.values():
            group = child.is_of_worker
            counts[group] += child.is_worker or not group  # a worker's own child is a part of it
            held[group] = _added(held[group], child.held(child.shared) if is_known else UNKNOWN)
            own[group] = _added(own[group], child.held(child.shared_first) if is_known else UNKNOWN)
            shared = _added(shared, min(child.shared, child.anonymous) if is_known else UNKNOWN)
        return Children(counts[1], held[1], counts[0], held[0], own[1], own[0], shared, self._unread)


def _added(n_bytes: int, more: int) -> int:
    return UNKNOWN if UNKNOWN in (n_bytes, more) else n_bytes + more


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


def _shared_bytes(pid: int) -> Optional[int]:
    """Returns the anonymous memory that a process shares with others; UNKNOWN if that cannot be read, None if it has ended."""
    found = sizes(lines(f"/proc/{pid}/smaps_rollup", FIELDS), FIELDS)
    if PRIVATE in found and found.get(SHARED, 0) * SHARED_PART <= found[PRIVATE]:
        return _shared(found)
    n_bytes = -1
    mapping: Dict[bytes, int] = {}
    # A mapping at a time: in the sum, dirty pages of files and of shared memory would count as anonymous ones.
    for line in lines(f"/proc/{pid}/smaps", FIELDS):
        if line.startswith(FIELDS):
            mapping.update(sizes(iter((line,)), FIELDS))
        elif line.startswith(b"Size:"):
            n_bytes, mapping = max(0, n_bytes) + _shared(mapping), {}
    if n_bytes >= 0:
        return n_bytes + _shared(mapping)
    return None if is_over(pid) else UNKNOWN


def _shared(found: Dict[bytes, int]) -> int:
    """Returns the bytes of shared anonymous memory in fields of `smaps`."""
    return max(0, found.get(ANONYMOUS, 0) - found.get(PRIVATE, 0))
