"""What glibc's allocator has given out, and what was freed and stays with it (`mallinfo2`), while host memory grows.

The call passes over all free pieces under the locks of their arenas, and nothing bounds its time. So it is made on the sender's thread,
where the exporter asks, seldom, and never again after one that took too long.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from time import monotonic
from typing import Any, NamedTuple, Optional, Tuple

from ._descriptors import read_file
from ._procfs import read
from ._warn import inform_once
from ._wire import UNKNOWN

EVERY_SECONDS = 60.0
"""Seconds from one call to the next, at least."""

CALL_SECONDS = 0.0001
"""A call that takes n times as long makes the time until the next one n times as long."""

CALL_SECONDS_MAX = 0.005
"""After a call that takes longer there is none."""

EXPLAINED_MIN = 0.5
"""Less than this share of the private memory tells too little of it."""

LIBRARY_BYTES_MAX = 4 << 20
"""Bytes of PyTorch's library in which an allocator of its own is searched for, at most."""

FUNCTIONS = ("malloc", "free", "calloc", "realloc", "memalign")
"""Those that another allocator replaces."""

GLIBC = "gnu_get_libc_version"
"""A function of glibc alone."""

FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
"""Members of `struct mallinfo2`."""

PLACE_WORDS, BASE_WORD = 4, 1
"""Pointers that `dladdr1` returns; the one to the object."""

SYMBOL_ENTRY = 1
"""Makes it return the entry of the symbol, too."""

SYMBOL_WORDS = 4
SECTION_WORD = 3
"""Words of two bytes at its beginning; the one with the section, 0 of a function that another object defines."""

START_OF_HEAP = 44
"""The field of `/proc/self/stat`, behind the name, with the address at which the heap begins."""

clock = time.thread_time
"""Processor time of this thread: a busy machine makes no call longer."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIGURES]


class MallocReading(NamedTuple):
    """One reading, in bytes."""

    step: int
    used: int
    """Given out."""
    free: int
    """Freed, and kept by it."""
    of_threads: int
    """The part of both outside of the first arena, or UNKNOWN."""


class Malloc:
    """The readings of this process. A forked child has its own."""

    def __init__(self) -> None:
        self.last: Optional[MallocReading] = None
        self.before: Optional[MallocReading] = None
        """The reading before the last one."""
        self._new: Optional[MallocReading] = None
        self._library: Any = None
        self._due_at = self._asked_at = 0.0
        self._is_over = False

    def read(self, step: int) -> None:
        """Reads the memory if that is due and possible. Runs on the sender's thread."""
        now = monotonic()
        if self._is_over or now < self._due_at:
            return
        if self._library is None:
            self._library = glibc()
        if self._library is None or _has_torch_own():
            self._is_over = True
            return
        private, first = private_bytes(), _first_arena(self._library)
        self._asked_at = self._asked_at or now
        is_early = self.last is None and now - self._asked_at < EVERY_SECONDS
        if is_early and first is not None and first < EXPLAINED_MIN * private:
            return  # it would likely explain too little yet
        began = clock()
        info = self._library.mallinfo2()
        seconds = clock() - began
        self._due_at = now + EVERY_SECONDS * max(1.0, seconds / CALL_SECONDS)
        if seconds > CALL_SECONDS_MAX:
            self._is_over = True
            what = f"glibc has {info.ordblks:,} free pieces of memory, of which to read the size took {1e3 * seconds:.0f} ms"
            inform_once("malloc", f"{what}: they are not read again in this process")
        used, free = info.uordblks + info.hblkhd, info.fordblks
        if used and used + free >= EXPLAINED_MIN * private:
            of_threads = UNKNOWN if first is None else max(0, info.arena - first)
            self.before, self.last = self.last, MallocReading(step, used, free, of_threads)
            self._new = self.last

    def take(self) -> Tuple[int, int, int]:
        """Returns the values of MALLOC for the next record."""
        new, self._new = self._new, None
        return (UNKNOWN,) * 3 if new is None else (new.used, new.free, new.of_threads)

    def rates(self) -> Optional[Tuple[float, float]]:
        """Returns the growth per step of what is given out and of what is free between the last two readings; None without them."""
        before, last = self.before, self.last
        if before is None or last is None or last.step <= before.step:
            return None
        n_steps = last.step - before.step
        return (last.used - before.used) / n_steps, (last.free - before.free) / n_steps


def _has_torch_own() -> bool:
    """Returns whether PyTorch brings an allocator of its own."""
    torch: Any = sys.modules.get("torch")
    file = torch.__dict__.get("__file__") if type(torch) is type(sys) else None
    library = os.path.join(os.path.dirname(file), "lib", "libc10.so") if type(file) is str else ""
    return b"mimalloc" in (read_file(library, LIBRARY_BYTES_MAX) or b"")


def glibc() -> Any:
    """Returns the library with `mallinfo2`; None without it (musl, glibc before 2.33), and where another allocator takes the place of glibc's."""
    try:
        library = ctypes.CDLL(None)  # a call of it releases the interpreter's lock
        library.mallinfo2.restype = _Mallinfo2
        library.sbrk.restype, library.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
        defined = [_defined_in(library, name) for name in (GLIBC, "mallinfo2", *FUNCTIONS)]
    except (AttributeError, OSError):
        return None
    glibc, own = defined[0], [each for each in defined[2:] if each is not None]
    return library if glibc is not None and defined[1] == glibc and own and all(each == glibc for each in own) else None


def given_out(library: Any) -> Optional[int]:
    """Returns the bytes that malloc has given out, however long that takes: for tests of a program. None without `glibc()`."""
    info = None if library is None else library.mallinfo2()
    return None if info is None else (info.uordblks + info.hblkhd) or None


def _defined_in(library: Any, name: str) -> Optional[int]:
    """Returns the address of the object that defines a function; None if that is unknown: the interpreter may have an entry of its own for it."""
    place, symbol = (ctypes.c_void_p * PLACE_WORDS)(), ctypes.POINTER(ctypes.c_uint16 * SYMBOL_WORDS)()
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    if not library.dladdr1(address, ctypes.byref(place), ctypes.byref(symbol), SYMBOL_ENTRY):
        return None
    is_defined = bool(symbol) and symbol.contents[SECTION_WORD] != 0
    return place[BASE_WORD] if is_defined else None


def _first_arena(library: Any) -> Optional[int]:
    """Returns the bytes of the arena of the main thread, which is the heap; None if they are unknown."""
    fields = (read("/proc/self/stat") or b"").rpartition(b")")[2].split()
    begin = int(fields[START_OF_HEAP]) if len(fields) > START_OF_HEAP else 0
    end: Optional[int] = library.sbrk(0)
    return end - begin if begin and end and end >= begin else None


def private_bytes() -> int:
    """Returns the resident memory of this process without shared memory and files; 0 if it cannot be read."""
    fields = (read("/proc/self/statm") or b"").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 2 else 0
