"""Shared memory that this rank holds: batches from DataLoader workers, pinned buffers, memfds.

Counts segments of PyTorch, unlinked ones and memfds. Never counts other files on tmpfs: a data set, the object store of Ray. A segment
that several ranks map counts for the one that created it; if none of them did, each of n ranks counts one n-th.

A segment of PyTorch counts as a whole, because its maker has written all of it. Others count as far as they are resident here.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from ._procfs import Budget, children_of, is_rank, parent_of, read

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

TORCH = re.compile(rb"/torch_(\d+)_\d+(?:_\d+)?(?: \(deleted\))?$")
"""Path of a segment of PyTorch: the process that made it, a random number, a count."""

PLASMA = b"/plasma"
"""Beginning of the name of Ray's object store."""

STATUS = re.compile(rb"^(VmSize|RssAnon|RssFile|RssShmem):\s+(\d+) kB", re.M)

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


class SharedMemory:
    """Reads shared memory on the sender's thread, and gives it for each step between two readings."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pattern = _pattern()
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
            made_by = TORCH.search(path)
            if made_by is not None:
                known = torchs.get(key, (0, 0))[0]
                torchs[key] = (max(known, n_bytes), int(made_by[1]))
            elif path.endswith(b" (deleted)") and PLASMA not in path:
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
        lines = self._pattern.findall(read(f"/proc/{process}/maps") or b"")
        return [
            ((device, inode, offset), int(end, 16) - int(start, 16), path) for start, end, offset, device, inode, path in lines
        ]

    def _resident_of(self, others: Dict[Key, int], is_mixed: bool, resident: Resident) -> Dict[Key, int]:
        """Returns the bytes of segments that are resident in this process, because such a segment may have holes."""
        n_bytes = sum(others.values())
        if n_bytes < NOTABLE_BYTES:
            return others
        if is_mixed and resident.anonymous + resident.file + resident.shared <= RESIDENT_BYTES_MAX:
            found: Dict[Key, int] = {}
            pages = re.compile(self._pattern.pattern + rb"\n(?:(?!Rss:).*\n)*?Rss: +(\d+) kB", re.M)
            for _, _, offset, device, inode, _, kib in pages.findall(read("/proc/self/smaps") or b""):
                key = (device, inode, offset)
                if key in others:
                    found[key] = max(found.get(key, 0), int(kib) * 1024)
            return found
        # In proportion, as only their sum is known.
        return {key: each * min(n_bytes, resident.shared) // n_bytes for key, each in others.items()}

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
    found = {name: int(kib) * 1024 for name, kib in STATUS.findall(read("/proc/self/status") or b"")}
    try:
        return Resident(found[b"VmSize"], found[b"RssAnon"], found[b"RssFile"], found[b"RssShmem"])
    except KeyError:
        return None


def _pattern() -> "re.Pattern[bytes]":
    """Returns what finds the mappings of shared memory and of files on tmpfs in the list of mappings."""
    devices = {"00:01"}
    try:
        file = os.memfd_create("stepmem")
        number = os.fstat(file).st_dev
        os.close(file)
        devices.add(f"{os.major(number):02x}:{os.minor(number):02x}")
    except (AttributeError, OSError):
        pass
    for line in (read("/proc/self/mountinfo") or b"").decode("utf-8", "replace").splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith("tmpfs "):
            major, _, minor = mount.split()[2].partition(":")
            devices.add(f"{int(major):02x}:{int(minor):02x}")
    either = "|".join(sorted(devices)).encode()
    return re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (" + either + rb") (\d+) +(/.*)$", re.M)
