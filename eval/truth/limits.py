"""Sets the kernel's limits of a program: `ulimit -d`, and a control group of its own."""

import contextlib
import os
import pathlib
import resource
import time
from typing import Any, Callable, Iterator, Optional

GROUPS = (
    (pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (pathlib.Path("/sys/fs/cgroup"), "memory.max"),
    (pathlib.Path("/sys/fs/cgroup/unified"), "memory.max"),
)
"""Where control groups of the two versions are mounted, and the file of their limit."""

REMOVAL_SECONDS = 5.0
"""A group is removed once its processes are gone, which takes a moment after their end."""


class NoGroup(Exception):
    """This machine lets nobody here make a control group that limits memory."""


@contextlib.contextmanager
def within(kind: str, capacity: Optional[float], name: str) -> "Iterator[Optional[Callable[[], Any]]]":
    """Gives what a process has to call before it becomes the program; None where the kernel limits nothing."""
    if kind == "data" and capacity is not None:
        n_bytes = int(capacity)
        yield lambda: resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes))
    elif kind == "cgroup" and capacity is not None:
        group = _group(int(capacity), name)
        try:
            yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        finally:
            _remove(group)
    else:
        yield None


def _group(n_bytes: int, name: str) -> pathlib.Path:
    for root, limit in GROUPS:
        group = root / f"stepmem-truth-{os.getpid()}-{name}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(n_bytes))
            return group
        except OSError:
            group.rmdir()
    raise NoGroup("a control group that limits memory cannot be made here")


def _remove(group: pathlib.Path) -> None:
    until = time.monotonic() + REMOVAL_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.05)
