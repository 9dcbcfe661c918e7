"""Reads `/proc` on the sender's thread. Each function returns less where a process is gone or cannot be read; none raises."""

from __future__ import annotations

import math
import os
import time
from typing import Collection, Dict, Iterator, List, Optional, Sequence

from ._descriptors import PART_BYTES, names_in, opened, read_file
from ._signals import raise_if_of_handler

CLIENT_THREAD = b"stepmem"
"""Name of the sender's thread for the operating system. By it the ranks of one machine know each other."""

TASKS_MAX = 256
"""Threads of a process that are read, at most."""


SPREAD = 5.0

FILE_BYTES_MAX = 1 << 20
"""A file is read up to so many bytes, unless it is a list of mappings."""

MAPPINGS_BYTES_MAX = 64 << 20
"""A list of mappings with more bytes is not read: with as many as Linux allows by default, it has 8 MiB, with details 60."""


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
    """Returns a file, FILE_BYTES_MAX at most; None if it cannot be read, as that of a process that is gone."""
    return read_file(path, FILE_BYTES_MAX)


def lines(path: str, marks: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the lines of a list of mappings in those parts that contain one of `marks`; none if it cannot be read.

    Raises ValueError if it has more than MAPPINGS_BYTES_MAX.
    """
    try:
        with opened(path) as file:
            rest, n_bytes = b"", 0
            while True:
                part = file.part(PART_BYTES, n_bytes)
                n_bytes += len(part)
                if n_bytes > MAPPINGS_BYTES_MAX:
                    raise ValueError(f"{path} has more than {MAPPINGS_BYTES_MAX >> 20} MiB")
                whole, _, rest = (rest + part).rpartition(b"\n") if part else (rest, b"", b"")
                if any(mark in whole for mark in marks):
                    yield from whole.split(b"\n")
                if not part:
                    return
                time.sleep(0)
    except OSError as error:
        raise_if_of_handler(error)
        return


def sizes(text_lines: Iterator[bytes], names: Collection[bytes]) -> Dict[bytes, int]:
    """Returns, in bytes, those of lines such as `Rss:   12 kB` that have one of these names; the last one of each."""
    found: Dict[bytes, int] = {}
    for line in text_lines:
        name, _, value = line.partition(b":")
        if name in names:
            found[name] = kib(value) * 1024
    return found


def kib(value: bytes) -> int:
    """Returns the number in a text such as `   12 kB`; 0 if there is none."""
    number = value.strip().partition(b" ")[0]
    return int(number) if number.isdigit() and len(number) < 20 else 0


def name_own_thread() -> None:
    """Gives the calling thread the name CLIENT_THREAD."""
    try:
        with opened("/proc/thread-self/comm", os.O_WRONLY) as file:
            file.write(CLIENT_THREAD)
    except OSError as error:
        raise_if_of_handler(error)


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


def started_of(pid: int) -> int:
    """Returns when a process was started, in ticks since the machine was; -1 if that cannot be read."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else -1


def age_of(started: int) -> float:
    """Returns how long ago a process was started, in seconds; infinite if that is -1."""
    return math.inf if started < 0 else time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def anonymous_of(pid: int) -> int:
    """Returns the anonymous memory of a process, in bytes; 0 if it cannot be read."""
    fields = (read(f"/proc/{pid}/statm") or b"").split()
    return max(0, int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 2 else 0


def is_over(pid: int) -> bool:
    """Returns whether a process has ended, though its parent may not know yet."""
    state = _stat(pid)[:1]
    if state:
        return state[0] in (b"Z", b"X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError as error:
        raise_if_of_handler(error)
    return False  # it is hidden


def _stat(pid: int) -> List[bytes]:
    """Returns the fields of `stat` behind the name, the first of which is the state; empty if they cannot be read."""
    return (read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()


def _threads(pid: int) -> List[str]:
    return names_in(f"/proc/{pid}/task", TASKS_MAX)
