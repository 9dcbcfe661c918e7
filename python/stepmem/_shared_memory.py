"""Shared memory that this rank holds: batches from DataLoader workers, pinned buffers, memfds.

Counts segments of PyTorch, unlinked ones and memfds. Never counts other files on tmpfs: a data set, the object store of Ray. A segment
that several ranks map counts for the one that created it; if none of them did, each of n ranks counts one n-th.

A segment of PyTorch counts as a whole, because its maker has written all of it. Others count as far as they are resident here.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ._environment import environment
from ._procfs import Budget, children_of, is_rank, kib, lines, parent_of, read, sizes
from ._settings import is_first_of_machine
from ._signals import raise_if_of_handler

NOTABLE_BYTES = 1 << 20
"""Shared memory of fewer bytes is not listed."""

SHARE_MAX = 0.0005
CREDIT_SECONDS = 0.1
READ_EVERY = 1.0
"""The processor time that the list of mappings may take: share of a core, seconds at first; and seconds between two readings."""

RENEW_EVERY = 10.0
"""The list of mappings is read again after so many seconds if nothing here has changed: another rank may map the same by now."""

RESIDENT_BYTES_MAX = 16 << 30
"""Resident memory up to which the pages of each mapping are read. With more, the kernel would hold up threads that map memory."""

RANKS_MAX = 64
"""Other ranks on this machine whose mappings are read, at most."""

ANCESTORS_MAX = 8
"""Processes between a rank and the maker of its segment, at most."""

SHARE_OF_RESIDENT_MAX = 4.0
"""Multiple of the resident pages that counts until the next reading, at most, of a segment that this process has not read in full."""

OWN_MAX = 4096
"""Processes below this one that are remembered, at most."""

TORCH = b"torch"
"""Beginning of the name of a segment of PyTorch. Then come the process that made it, a random number and, in some versions, a count."""

DELETED = b" (deleted)"

PLASMA = b"/plasma"
"""Beginning of the name of Ray's object store."""

STATUS = (b"VmSize", b"RssAnon", b"RssFile", b"RssShmem")

FILES_EVERY = 1.0
"""Seconds between two readings of the files in `/dev/shm`."""

FILES_GROWN = 32 << 20
"""Bytes by which they must have grown to be told."""

Key = Tuple[bytes, bytes, bytes]
"""Device, inode and offset of a segment."""


class Resident(NamedTuple):
    """Resident bytes of this process by kind, and the bytes that it maps."""

    size: int
    anonymous: int
    file: int
    shared: int


class Segments(NamedTuple):
    """Sums over the list of mappings, in bytes."""

    counted: int = 0
    split: int = 0
    """The part of `counted` that is one n-th of segments of n ranks."""
    share: float = 0.0
    """The part that counts of each byte by which resident shared memory changes until the next reading."""
    of: Resident = Resident(0, 0, 0, 0)
    """The process as it was then."""


class Reading(NamedTuple):
    """Shared memory at one time, on the monotonic clock, in bytes."""

    at: float
    resident: int
    """Resident pages of files and of shared memory: what `statm` has of each step."""
    counted: int
    split: int


class SharedFiles:
    """Files in `/dev/shm`, whoever made them: the first rank of a machine reads them.

    One that nobody unlinks outlasts its process, and no process's memory shows it.
    """

    def __init__(self) -> None:
        self._least = -1
        self._due_at = 0.0 if is_first_of_machine(environment()) else math.inf
        self._is_told = False

    def read(self, now: float) -> Optional[Tuple[int, int]]:
        """Returns what they take and what fits, in bytes, at `now` on the monotonic clock; None until they have grown, and if no reading is due."""
        if now < self._due_at:
            return None
        self._due_at = now + FILES_EVERY
        try:
            found = os.statvfs("/dev/shm")
        except OSError as error:
            raise_if_of_handler(error)
            return None
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self._least = used if self._least < 0 else min(used, self._least)
        self._is_told = self._is_told or used - self._least >= FILES_GROWN
        return (used, found.f_blocks * found.f_frsize) if self._is_told and found.f_blocks else None


class SharedMemory:
    """Reads shared memory on the sender's thread, and gives it for each step between two readings."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._devices = _devices()
        self._budget = Budget(SHARE_MAX, CREDIT_SECONDS, READ_EVERY, READ_EVERY)
        self._segments = Segments()
        self._renew_at = 0.0
        self._own = {self._pid}
        """This process, and those below it that made a segment."""
        self._span: Tuple[Optional[Reading], Optional[Reading], float] = (None, None, 0.0)
        """The last two readings, and the part of the resident pages' change that is of counted memory."""

    def read(self, now: float) -> None:
        """Reads what is held at `now`, on the monotonic clock. Lists the mappings only if that can have changed and the time is left."""
        resident = _resident()
        if resident is None:
            return
        last = self._segments
        is_old = resident.shared >= NOTABLE_BYTES and now >= self._renew_at
        is_notable = max(resident.shared, abs(resident.size - last.of.size)) >= NOTABLE_BYTES or last.counted > 0
        has_changed = (resident.size, resident.shared) != (last.of.size, last.of.shared)
        if is_notable and (has_changed or is_old) and now >= self._budget.due_at:
            self._budget.begin()
            last = self._segments = self._list(resident)
            self._budget.end(now)
            self._renew_at = now + RENEW_EVERY
        counted = last.counted
        if counted:
            counted = max(0, counted + int(last.share * (resident.shared - last.of.shared)))
        split = last.split * counted // last.counted if counted else 0
        reading = Reading(now, resident.file + resident.shared, counted, split)
        _, before, share = self._span
        if before is not None:
            share = _share(counted - before.counted, reading.resident - before.resident, share)
        self._span = (before, reading, share)

    def at(self, resident: int, at: float) -> Tuple[int, int]:
        """Returns the bytes that count at a time, and the split part of them.

        `resident`: pages of files and of shared memory then, in bytes. Between two readings it gives the course, and they the ends.
        """
        before, now, share = self._span
        if now is None or not (now.counted or (before is not None and before.counted)):
            return 0, 0
        if before is None or at >= now.at:
            counted = now.counted + share * (resident - now.resident)
        else:
            part = min(1.0, max(0.0, (at - before.at) / (now.at - before.at)))
            missing = now.counted - before.counted - share * (now.resident - before.resident)
            counted = before.counted + share * (resident - before.resident) + part * missing
        n_bytes = max(0, int(counted))
        newest = now if now.counted or before is None else before
        return n_bytes, n_bytes * newest.split // newest.counted

    def _list(self, resident: Resident) -> Segments:
        """Reads the list of mappings, and counts the segments in it."""
        torchs: Dict[Key, Tuple[int, int]] = {}
        others: Dict[Key, int] = {}
        has_files = False
        for key, n_bytes, path in self._mapped("self"):
            maker = _maker(path)
            if maker is not None:
                known = torchs.get(key, (0, 0))[0]
                torchs[key] = (max(known, n_bytes), maker)
            elif path.endswith(DELETED) and PLASMA not in path:
                others[key] = max(others.get(key, 0), n_bytes)
            else:
                has_files = True
        if others:
            others = self._resident_of(others, bool(torchs) or has_files, resident)
        held = {**{key: n_bytes for key, (n_bytes, _) in torchs.items()}, **others}
        makers = {key: maker for key, (_, maker) in torchs.items()}
        split = self._split(held, makers)
        counted = sum(n_bytes // split.get(key, 1) for key, n_bytes in held.items() if split.get(key) != 0)
        part = sum(n_bytes // split[key] for key, n_bytes in held.items() if split.get(key, 1) > 1)
        last = self._segments
        share = last.share if last.counted else counted / max(counted, resident.shared, 1)
        change = resident.shared - last.of.shared
        if last.counted and abs(change) >= NOTABLE_BYTES:
            share = min(SHARE_OF_RESIDENT_MAX, max(0.0, (counted - last.counted) / change))
        return Segments(counted, part, share, resident)

    def _mapped(self, process: str) -> List[Tuple[Key, int, bytes]]:
        """Returns segment, bytes and path of each mapping of shared memory, and of files on tmpfs."""
        mappings = (_mapping(line, self._devices) for line in lines(f"/proc/{process}/maps", self._devices))
        return [each for each in mappings if each is not None]

    def _resident_of(self, others: Dict[Key, int], is_mixed: bool, resident: Resident) -> Dict[Key, int]:
        """Returns the bytes of segments that are resident in this process, because such a segment may have holes."""
        n_bytes = sum(others.values())
        if n_bytes < NOTABLE_BYTES:
            return others
        if is_mixed and resident.anonymous + resident.file + resident.shared <= RESIDENT_BYTES_MAX:
            return self._resident_pages(others)
        # In proportion, as only their sum is known.
        return {key: each * min(n_bytes, resident.shared) // n_bytes for key, each in others.items()}

    def _resident_pages(self, others: Dict[Key, int]) -> Dict[Key, int]:
        found: Dict[Key, int] = {}
        key: Optional[Key] = None
        for line in lines("/proc/self/smaps", self._devices):
            if line[:1] in _HEX:  # the first line of a mapping
                mapping = _mapping(line, self._devices)
                key = None if mapping is None or mapping[0] not in others else mapping[0]
            elif key is not None and line.startswith(b"Rss:"):
                found[key] = max(found.get(key, 0), kib(line[4:]) * 1024)
        return found

    def _split(self, held: Dict[Key, int], makers: Dict[Key, int]) -> Dict[Key, int]:
        """Returns the number of ranks that hold a segment, where that is not this one alone; 0 if another one of them created it."""
        foreign = {key: makers.get(key, 0) for key in held if not self._is_own(makers.get(key, 0))}
        if sum(held[key] for key in foreign) < NOTABLE_BYTES:
            return {}
        ranks = self._ranks()
        homes = {maker: self._home(maker, ranks) for maker in set(foreign.values())} if ranks else {}
        split: Dict[Key, int] = {}
        for rank in ranks:
            for key in {key for key, _, _ in self._mapped(str(rank))} & foreign.keys():
                is_creators = homes[foreign[key]] == rank or split.get(key) == 0
                split[key] = 0 if is_creators else split.get(key, 1) + 1
        return split

    def _is_own(self, maker: int) -> bool:
        """Returns whether this process or one below it made a segment. Remembers those below, which may end before their segments."""
        if maker not in self._own and self._home(maker, [self._pid]) == self._pid:
            if len(self._own) >= OWN_MAX:
                self._own = {self._pid}
            self._own.add(maker)
        return maker in self._own

    @staticmethod
    def _home(maker: int, ranks: List[int]) -> int:
        """Returns the one of these ranks that a process is or descends from; 0 if there is none."""
        for _ in range(ANCESTORS_MAX):
            if maker <= 1 or maker in ranks:
                break
            maker = parent_of(maker)
        return maker if maker in ranks else 0

    def _ranks(self) -> List[int]:
        """Returns other ranks on this machine: siblings, the parent, and those below this one."""
        parent = os.getppid()
        near: Set[int] = {parent, *(children_of(parent) or ()), *(children_of(self._pid) or ())} - {self._pid, 0, 1}
        return [pid for pid in sorted(near)[: 2 * RANKS_MAX] if is_rank(pid)][:RANKS_MAX]


def _share(part: int, whole: int, before: float) -> float:
    """Returns which part of a change is that of `part`; what it was `before` if nothing changed."""
    n_bytes = abs(part) + abs(whole - part)
    return abs(part) / n_bytes if n_bytes else before


def _resident() -> Optional[Resident]:
    found = sizes(iter((read("/proc/self/status") or b"").split(b"\n")), STATUS)
    return Resident(*(found[name] for name in STATUS)) if len(found) == len(STATUS) else None


_HEX = tuple(b"%x" % digit for digit in range(16))


def _mapping(line: bytes, devices: Tuple[bytes, ...]) -> Optional[Tuple[Key, int, bytes]]:
    """Returns segment, bytes and path of a mapping on one of these devices; None of another one."""
    fields = line.split(None, 5)
    if len(fields) < 6 or fields[3] not in devices:
        return None
    start, _, end = fields[0].partition(b"-")
    return (fields[3], fields[4], fields[2]), int(end, 16) - int(start, 16), fields[5]


def _maker(path: bytes) -> Optional[int]:
    """Returns the process that made a segment of PyTorch; None of another file."""
    name = path[: -len(DELETED)] if path.endswith(DELETED) else path
    prefix, *numbers = name.rpartition(b"/")[2].split(b"_", 4)
    is_torchs = prefix == TORCH and len(numbers) in (2, 3) and all(each.isdigit() for each in numbers)
    return int(numbers[0]) if is_torchs and len(numbers[0]) < 11 else None


def _device_of_memfds() -> Iterator[bytes]:
    """Yields the device of shared memory without a file system, from a mapping of such, which needs no descriptor."""
    try:
        mapping = mmap.mmap(-1, mmap.PAGESIZE)
        start = b"%08x-" % ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        yield from (line.split(None, 4)[3] for line in lines("/proc/self/maps", (start,)) if line.startswith(start))
    except (OSError, ValueError) as error:
        raise_if_of_handler(error)


def _devices() -> Tuple[bytes, ...]:
    """Returns the devices of shared memory and of files on tmpfs, as the list of mappings has them."""
    devices = {b"00:01", *_device_of_memfds()}
    for line in (read("/proc/self/mountinfo") or b"").split(b"\n"):
        mount, _, kind = line.partition(b" - ")
        numbers = mount.split(None, 3)[2:3]
        if kind.startswith(b"tmpfs ") and numbers:
            major, _, minor = numbers[0].partition(b":")
            devices.add(b"%02x:%02x" % (int(major), int(minor)))
    return tuple(sorted(devices))
