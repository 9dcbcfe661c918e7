"""Memory of this process on its GPU, also beyond PyTorch's allocator, as the driver lists it (NVML).

An exporter in another container does not see this process in the driver's list. NVML may hang, so a daemon thread of its own calls
it, which nothing waits for. NVML stays initialized until the process ends: the program may use it too.
"""

from __future__ import annotations

import ctypes
import os
import sys
from time import monotonic
from typing import Any, List, Optional, Tuple

from ._captures import running
from ._process import Process
from ._signals import raise_if_of_handler
from ._threads import Event, Thread
from ._warn import note_once
from ._wire import FOREIGN_PID_NAMESPACE, MEMORY_HIDDEN, NO_ANSWER, NUMA_NODE, UNIFIED, UNKNOWN, UNSUPPORTED

READ_EVERY, READ_MOVING_EVERY, READ_SLOWLY_EVERY = 5.0, 2.0, 15.0
"""Seconds between two readings; after one that differs from the last; after one for which the driver took too long."""

SLOW_SECONDS = 0.005
"""Time of a call of the driver from which on readings are slow, next to the time that this thread may wait for the interpreter then."""

ANSWER_SECONDS = 15.0
"""Seconds after which a reading counts as not answered."""

LIBRARY = "libnvidia-ml.so.1"

LISTS = tuple(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute"))
"""NVML's lists of processes. The first must answer."""

HOST_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's PID namespace."""

TRANSLATING_DRIVER = (535, 113)
"""First driver that lists process ids as this namespace has them; older ones list the host's."""

PID_MAX = 1 << 22
ROWS_MAX = 65_536
"""Rows of a list that are read, at most. With more, the memory is unknown."""

LIST_TRIES = 3
"""Requests of a list that grew between count and list."""

SUCCESS, NOT_SUPPORTED, INSUFFICIENT_SIZE = 0, 3, 7

ADDRESSING_MODE_VERSION, ADDRESSING_ATS = 1 << 24 | 8, 2
"""Version and size of the structure that receives the mode, and the mode of GPUs whose memory the operating system may manage."""

ROW_WORDS, WRONG_ROW_WORDS = 3, 4
"""Words of 8 bytes in a row: process id, memory, two ids of instances; and as drivers 535.43 to 535.86 write it."""

NOT_AVAILABLE = (1 << 64) - 1
UNWRITTEN = 0xA5A5A5A5A5A5A5A5
"""Fills a list before NVML writes to it; not a possible process id or size."""


class ProcessMemory:
    """The thread and its newest reading. It starts with the first GPU."""

    def __init__(self, process: Process) -> None:
        self._thread: Optional[Thread] = None
        self._may_read = not process.is_forked  # NVML does not work on both sides of a fork
        self._wake = Event()
        self._is_closed = False
        self._driver: Optional[Driver] = None
        self._may_open = True
        self._device = ""
        self._asked_at: Optional[float] = None
        """Time at which the reading began that goes on, on the monotonic clock."""
        self._counts_from = 0.0
        """Time from which a reading has to begin, likewise."""
        self._newest: List[Tuple[str, int]] = []
        """Device and result of the newest reading, until it is taken."""
        self._memory_kind: Tuple[str, Optional[str]] = ("", None)
        """Device, and the kind of its memory."""

    def newest(self, device: str) -> int:
        """Returns the bytes, or the negative code of the reason for which they are unknown; UNKNOWN if there is nothing new.

        Runs on the sender's thread and starts the other one when `device` is a GPU.
        """
        if device != self._device:
            self._device = device
            self._wake.set()
        if device == "cpu":
            return UNKNOWN
        if not self._may_read:
            return UNSUPPORTED
        if self._thread is None:
            self._thread = thread = Thread(lambda: self._run(thread))
            try:
                self._thread.start()
            except RuntimeError as error:  # the limit of threads is reached, or the interpreter ends
                raise_if_of_handler(error)
                self._may_read = False
        if self._newest:
            of_device, result = self._newest.pop()
            return result if of_device == device else UNKNOWN
        asked_at, now = self._asked_at, monotonic()
        if asked_at is not None and now - asked_at > ANSWER_SECONDS:
            self._asked_at = now
            return NO_ANSWER
        return UNKNOWN

    def ask(self) -> None:
        """Makes the thread read now, and what it read before count no more."""
        self._counts_from = monotonic()
        self._newest.clear()
        self._wake.set()

    def memory_kind(self, device: str) -> Optional[str]:
        """Returns the kind of a GPU's memory; None if that is its own, or unknown."""
        of_device, kind = self._memory_kind
        return kind if of_device == device else None

    def close(self) -> None:
        """Makes the thread end within READ_SLOWLY_EVERY, and does not wait for it. Takes no lock: a forked child calls it, too."""
        self._is_closed = True

    def _run(self, thread: Thread) -> None:
        result = UNKNOWN
        while not self._is_closed:
            self._wake.clear()
            if running:
                thread.pause(self._wake, READ_MOVING_EVERY)
                continue
            before, device, result = result, self._device, UNSUPPORTED
            self._asked_at = began = monotonic()
            try:
                if self._driver is None and self._may_open:
                    self._may_open = False  # once
                    self._driver = Driver()
                if self._driver is not None:
                    self._memory_kind = device, self._driver.memory_kind(device)
                    result = self._driver.used_by(os.getpid(), device)
            except Exception as error:
                note_once("nvml", f"the memory of this process on its GPU is unknown: {error!r}")
            if began >= self._counts_from:
                self._newest[:] = [(device, result)]
            self._asked_at = None
            is_slow = self._driver is not None and self._driver.call_seconds > SLOW_SECONDS + sys.getswitchinterval()
            thread.pause(self._wake, READ_SLOWLY_EVERY if is_slow else READ_EVERY if result == before else READ_MOVING_EVERY)


class Driver:
    """NVML, loaded and initialized. Raises OSError where it does not answer."""

    def __init__(self) -> None:
        self._types: Any = ctypes
        self._library = ctypes.CDLL(LIBRARY)
        self._call("nvmlInit_v2")
        version = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", version, 96)
        numbers = [int(each) for each in version.value[:16].split(b".")[:2] if each.isdigit()]
        is_translated = len(numbers) < 2 or tuple(numbers) >= TRANSLATING_DRIVER
        self._lists_own_ids = is_translated or os.stat("/proc/self/ns/pid").st_ino == HOST_NAMESPACE
        """Unset if an id that equals this process's own is another's by chance."""
        self._last: Tuple[str, Any] = ("", None)
        """Device and handle of the last call."""
        self.call_seconds = 0.0
        """Time that the list of processes took last, at least."""

    def used_by(self, pid: int, device: str) -> int:
        """Returns the bytes that a process uses on a device, or the negative code of the reason for which they are unknown."""
        handle = self._handle(device)
        code, total = self._total(handle)
        rows = [row for number, name in enumerate(LISTS) for row in self._rows(name, handle, number == 0)]
        if any(not 0 < each <= PID_MAX or code == SUCCESS and total < used < NOT_AVAILABLE for each, used in rows):
            return UNSUPPORTED
        own = [used for each, used in rows if each == pid]
        if not own or not self._lists_own_ids:
            return FOREIGN_PID_NAMESPACE
        known = [used for used in own if 0 < used < NOT_AVAILABLE]
        return max(known, default=MEMORY_HIDDEN)  # a process in several lists or contexts counts once

    def memory_kind(self, device: str) -> Optional[str]:
        """Returns the kind of a device's memory; None if that is its own."""
        handle = self._handle(device)
        mode, node = (self._types.c_uint * 2)(ADDRESSING_MODE_VERSION, 0), self._types.c_uint(0)
        calls = (("nvmlDeviceGetAddressingMode", mode), ("nvmlDeviceGetNumaNodeId", self._types.byref(node)))
        is_known = all(hasattr(self._library, name) and getattr(self._library, name)(handle, out) == SUCCESS for name, out in calls)
        if is_known and mode[1] == ADDRESSING_ATS:
            return NUMA_NODE
        return UNIFIED if self._total(handle)[0] == NOT_SUPPORTED else None

    def _handle(self, device: str) -> Any:
        """Returns the handle of a GPU or MIG device by its UUID."""
        if self._last[0] != device:
            handle = self._types.c_void_p()
            self._call("nvmlDeviceGetHandleByUUID", device.encode(), self._types.byref(handle))
            self._last = device, handle
        return self._last[1]

    def _total(self, handle: Any) -> Tuple[int, int]:
        """Returns the code of the driver's answer, and the bytes of a device."""
        memory = (self._types.c_uint64 * 3)()
        code: int = self._library.nvmlDeviceGetMemoryInfo(handle, memory)
        return code, int(memory[0])

    def _rows(self, name: str, handle: Any, is_required: bool) -> List[Tuple[int, int]]:
        """Returns process ids and bytes of a list. Raises OSError where one that is required does not answer, or any makes no sense."""
        list_into = getattr(self._library, name, None)
        count = self._types.c_uint(0)
        words: Any = None
        code = INSUFFICIENT_SIZE if list_into is not None else UNKNOWN
        for _ in range(1 + LIST_TRIES):
            if code != INSUFFICIENT_SIZE or count.value > ROWS_MAX or list_into is None:
                break
            n_asked = count.value
            words = (self._types.c_uint64 * (n_asked * WRONG_ROW_WORDS))(*[UNWRITTEN] * (n_asked * WRONG_ROW_WORDS)) if n_asked else None
            began = monotonic()
            code = list_into(handle, self._types.byref(count), words)
            if is_required:
                took = monotonic() - began
                self.call_seconds = min(took, self.call_seconds) if n_asked else took
        if code != SUCCESS:
            if is_required or count.value > ROWS_MAX:
                raise OSError(f"{name} returns {code}")
            return []
        found = list(words or ())
        n_words = ROW_WORDS * (len(found) // WRONG_ROW_WORDS)
        if count.value * ROW_WORDS > n_words or any(word != UNWRITTEN for word in found[n_words:]):
            raise OSError(f"{name} writes rows of another size")
        return [(found[at] & 0xFFFFFFFF, found[at + 1]) for at in range(0, ROW_WORDS * count.value, ROW_WORDS)]

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != SUCCESS:
            raise OSError(f"{name} returns {code}")
