"""Memory of glibc's allocator: what it has given out, and what was freed and stays in its arenas."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

FIGURES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
"""Members of `struct mallinfo2`."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIGURES]


class Arenas:
    """Reads the allocator twice. Knows nothing before glibc 2.33, nor of another allocator."""

    def __init__(self) -> None:
        self._read: Any = None
        self._before: Optional[Tuple[int, int]] = None
        try:
            self._read = ctypes.CDLL(None).mallinfo2
            self._read.restype = _Mallinfo2
        except (AttributeError, OSError):
            pass

    def mark(self) -> None:
        """Reads the memory from which on `growth` counts."""
        self._before = self._now()

    def growth(self) -> Tuple[Optional[int], Optional[int]]:
        """Returns by how many bytes used and free memory have grown since the mark; None if that is unknown."""
        now, before = self._now(), self._before
        if now is None or before is None:
            return None, None
        return now[0] - before[0], now[1] - before[1]

    def _now(self) -> Optional[Tuple[int, int]]:
        if self._read is None:
            return None
        info = self._read()
        used = info.uordblks + info.hblkhd
        return (used, info.fordblks) if used else None  # another allocator, such as jemalloc, leaves them at 0
