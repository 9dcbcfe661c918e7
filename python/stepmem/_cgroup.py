"""The control group that limits this process's memory: its limit, what cannot be reclaimed of its memory, and the kernel's kills in it.

In a container that group is the container's own. No function raises.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from ._descriptors import read_file
from ._procfs import Budget
from ._signals import raise_if_of_handler
from ._wire import UNKNOWN

ROOT = "/sys/fs/cgroup"
"""Where control groups are mounted."""

OWN_GROUPS = "/proc/self/cgroup"
BOOT_ID = "/proc/sys/kernel/random/boot_id"

BYTES_MAX = 1 << 53
"""A limit as large as this means that there is none."""

NUMBER_MAX, COUNT_MAX = (1 << 63) - 1, (1 << 31) - 1
FILE_BYTES_MAX = 1 << 16
"""A file of more bytes is not read."""

SHARE_MAX = 0.0005
CREDIT_SECONDS = 0.1
READ_EVERY, READ_EVERY_MAX = 1.0, 10.0
"""The processor time that readings may take: share of a core, seconds at first; and seconds between two, unless they cost more."""

NEARLY_FULL = 0.9
"""From this share of the limit on, READ_EVERY holds at any time: what was held last shows why a process was killed."""

KERNEL = (b"slab_unreclaimable", b"kernel_stack", b"pagetables", b"sec_pagetables", b"percpu", b"vmalloc")
"""Lines of `memory.stat` whose sum is the kernel's own memory where Linux, before 5.18, has no line `kernel`."""

Reading = Tuple[int, int, int, int]
"""Number of the group, its limit and the bytes that it uses, and how many of its processes the kernel killed for lack of memory. Any
but the first may be UNKNOWN."""

NO_READING: Reading = (UNKNOWN,) * 4


class Limited(NamedTuple):
    """A control group with a limit."""

    directory: str
    is_v2: bool
    limit: int

    def used(self) -> int:
        """Returns the bytes that the kernel cannot reclaim: anonymous and shared memory and, in version 2, the kernel's own; or UNKNOWN."""
        stat = _fields(os.path.join(self.directory, "memory.stat"))
        anonymous, shared = (b"anon", b"shmem") if self.is_v2 else (b"total_rss", b"total_shmem")
        if anonymous not in stat:
            return UNKNOWN
        used = stat[anonymous] + stat.get(shared, 0) + stat.get(b"sock", 0)
        if b"kernel" in stat:
            return used + max(0, stat[b"kernel"] - stat.get(b"slab_reclaimable", 0))
        return used + sum(stat.get(name, 0) for name in KERNEL)

    def n_kills(self) -> int:
        """Returns how many processes of the group and of those below it the kernel killed; or UNKNOWN."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        return min(COUNT_MAX, _fields(os.path.join(self.directory, name)).get(b"oom_kill", UNKNOWN))

    def number(self) -> int:
        """Returns a number that no other control group has, on this machine or another; or UNKNOWN."""
        boot = _read(BOOT_ID) or b""
        try:
            return (os.stat(self.directory).st_ino ^ int(boot.replace(b"-", b"")[:15] or b"0", 16)) & NUMBER_MAX
        except (OSError, ValueError) as error:
            raise_if_of_handler(error)
            return UNKNOWN


class Container:
    """Reads the control group at intervals, on the sender's thread."""

    def __init__(self) -> None:
        self._budget = Budget(SHARE_MAX, CREDIT_SECONDS, READ_EVERY, READ_EVERY_MAX)

    def read(self, now: float) -> Reading:
        """Returns the group at `now`, on the monotonic clock; NO_READING if no group has a limit, or if no reading is due."""
        if now < self._budget.due_at:
            return NO_READING
        self._budget.begin()
        group = tightest()
        reading = NO_READING if group is None else (group.number(), group.limit, group.used(), group.n_kills())
        self._budget.end(now, reading[2] >= NEARLY_FULL * reading[1])
        return NO_READING if reading[0] == UNKNOWN else reading


def tightest() -> Optional[Limited]:
    """Returns the group with the smallest limit, of this process's and those above it; None if none that is visible has one."""
    found: List[Limited] = []
    for line in (_read(OWN_GROUPS) or b"").decode("utf-8", "replace").splitlines():
        _, _, of = line.partition(":")
        controllers, _, path = of.partition(":")
        if controllers == "":
            found += _limited(ROOT, path, True)
        elif "memory" in controllers.split(","):
            found += _limited(os.path.join(ROOT, "memory"), path, False)
    return min(found, key=lambda group: group.limit, default=None)


def _limited(root: str, path: str, is_v2: bool) -> List[Limited]:
    """Returns the groups with a limit: `path` below `root` and those above it, the innermost first."""
    directory = root + path.rstrip("/")
    if ".." in path.split("/") or not os.path.isdir(directory):  # in a container the path may be the host's
        directory = root
    found: List[Limited] = []
    while directory.startswith(root):
        limit = _number(_read(os.path.join(directory, "memory.max" if is_v2 else "memory.limit_in_bytes")))
        if limit is not None and 0 < limit < BYTES_MAX:
            found.append(Limited(directory, is_v2, limit))
        directory = os.path.dirname(directory)
    return found


def _fields(path: str) -> Dict[bytes, int]:
    """Returns the numbers in lines `NAME NUMBER` of a file; those that can be read."""
    pairs = (line.split() for line in (_read(path) or b"").splitlines())
    numbers = {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(text: Optional[bytes]) -> Optional[int]:
    digits = (text or b"").strip()
    return int(digits) if digits.isdigit() and len(digits) <= 20 else None


def _read(path: str) -> Optional[bytes]:
    """Returns the whole of a file; None if it cannot be read, or is too large. Waits for no other process."""
    text = read_file(path, FILE_BYTES_MAX + 1)
    return text if text is None or len(text) <= FILE_BYTES_MAX else None
