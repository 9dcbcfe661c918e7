"""Reads `/proc` on the sender's thread. Each function returns less where a process is gone or cannot be read; none raises."""

from __future__ import annotations

import math
import os
import time
from typing import List, Optional

CLIENT_THREAD = b"stepmem"
"""Name of the sender's thread for the operating system. By it the ranks of one machine know each other."""

TASKS_MAX = 256
"""Threads of a process that are read, at most."""


SPREAD = 5.0


class Budget:
    """Limits the processor time that a kind of reading takes: `credit` seconds at first, later `share` of one core."""

    def __init__(self, share: float, credit: float, every: float, every_max: float) -> None:
        """`every`, `every_max`: seconds between two readings; in between it is a fifth of the time since the first."""
        self._share, self._credit, self._every, self._every_max = share, credit, every, every_max
        self._left = credit
        self._filled_at: Optional[float] = None
        self._first_at: Optional[float] = None
        self._began = 0.0
        self.due_at = 0.0
        """Time from which to read again, on the monotonic clock."""

    def begin(self) -> None:
        """Notes that a reading begins."""
        self._began = time.thread_time()

    def end(self, now: float, is_urgent: bool = False) -> None:
        """Notes at `now`, on the monotonic clock, that it ended. `is_urgent`: the next follows after `every`."""
        since = 0.0 if self._filled_at is None else now - self._filled_at
        self._filled_at = now
        self._left = min(self._credit, self._left + since * self._share) - (time.thread_time() - self._began)
        self._first_at = now if self._first_at is None else self._first_at
        spread = self._every if is_urgent else min(self._every_max, max(self._every, (now - self._first_at) / SPREAD))
        self.due_at = now + max(spread, -self._left / self._share)


def read(path: str) -> Optional[bytes]:
    """Returns the whole of a file; None if it cannot be read, as that of a process that is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            parts: List[bytes] = []
            while True:
                part = file.read(1 << 18)
                if not part:
                    return b"".join(parts)
                parts.append(part)
    except OSError:
        return None


def name_own_thread() -> None:
    """Gives the calling thread the name CLIENT_THREAD."""
    try:
        with open("/proc/thread-self/comm", "wb", buffering=0) as file:
            file.write(CLIENT_THREAD)
    except OSError:
        pass


def is_rank(pid: int) -> bool:
    """Returns whether a process has a thread of this package that pushes."""
    threads = (thread for thread in _threads(pid) if thread != str(pid))
    return any((read(f"/proc/{pid}/task/{thread}/comm") or b"").rstrip() == CLIENT_THREAD for thread in threads)


def children_of(pid: int) -> Optional[List[int]]:
    """Returns the child processes of a process; None if the kernel does not list them."""
    lists = [read(f"/proc/{pid}/task/{thread}/children") for thread in _threads(pid)]
    known = [each for each in lists if each is not None]
    return [int(child) for each in known for child in each.split()] if known else None


def parent_of(pid: int) -> int:
    """Returns the parent of a process; 0 if it is unknown."""
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def age_of(pid: int) -> float:
    """Returns how long ago a process was started, in seconds; infinite if that cannot be read."""
    fields = _stat(pid)
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK") if len(fields) > 19 else -math.inf
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def is_over(pid: int) -> bool:
    """Returns whether a process has ended, though its parent may not know yet."""
    state = _stat(pid)[:1]
    if state:
        return state[0] in (b"Z", b"X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False  # it is hidden


def _stat(pid: int) -> List[bytes]:
    """Returns the fields of `stat` behind the name, the first of which is the state; empty if they cannot be read."""
    return (read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()


def _threads(pid: int) -> List[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")[:TASKS_MAX]
    except OSError:
        return []
