"""Memory of the process, and of glibc's allocator: what it has given out, and what was freed and stays in its arenas."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple, Optional, Tuple

from .._procfs import read
from .._signals import raise_if_of_handler

FIGURES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
"""Members of `struct mallinfo2`."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIGURES]


class Gains(NamedTuple):
    """Bytes by which memory has grown."""

    private: int
    """Resident memory of the process without shared memory and files."""
    used: Optional[int]
    free: Optional[int]
    """Of the allocator; None if it does not report that."""


class Arenas:
    """Reads the memory twice. Knows nothing of the allocator before glibc 2.33, nor of another one."""

    def __init__(self) -> None:
        self._read: Any = None
        self._before: Tuple[int, Optional[Tuple[int, int]]] = (0, None)
        try:
            self._read = ctypes.CDLL(None).mallinfo2
            self._read.restype = _Mallinfo2
        except (AttributeError, OSError) as error:
            raise_if_of_handler(error)

    def mark(self) -> None:
        """Reads the memory from which on `gains` count."""
        self._before = private_bytes(), self._now()

    def gains(self) -> Gains:
        """Returns the growth since the mark."""
        private, before = self._before
        private, now = private_bytes() - private, self._now()
        if now is None or before is None:
            return Gains(private, None, None)
        return Gains(private, now[0] - before[0], now[1] - before[1])

    def used(self) -> Optional[int]:
        """Returns the bytes that the allocator has given out; None if it does not report that."""
        now = self._now()
        return None if now is None else now[0]

    def _now(self) -> Optional[Tuple[int, int]]:
        if self._read is None:
            return None
        info = self._read()
        used = info.uordblks + info.hblkhd
        return (used, info.fordblks) if used else None  # another allocator, such as jemalloc, leaves them at 0


def private_bytes() -> int:
    """Returns the resident memory of this process without shared memory and files; 0 if it cannot be read."""
    fields = (read("/proc/self/statm") or b"").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 2 else 0
