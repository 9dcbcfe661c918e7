"""Decides whether this Python can stop tracemalloc safely, without importing it: that takes memory."""

from __future__ import annotations

import sys

FIXED = {(3, 12): 9, (3, 13): 2, (3, 14): 4}
"""Versions of CPython and the first release of each in which a thread may stop tracemalloc while others allocate (gh-128679, and
for 3.14 gh-144763). Newer versions are fixed, older ones are not."""

UNSAFE = "unsafe"
"""The outcome of a search for lines in a Python that cannot."""


def is_safe() -> bool:
    """Returns whether a window of tracemalloc may be opened."""
    version, release = sys.version_info[:2], sys.version_info[2]
    is_fixed = version > max(FIXED) or version in FIXED and release >= FIXED[version]
    return sys.implementation.name == "cpython" and "t" not in getattr(sys, "abiflags", "") and is_fixed
