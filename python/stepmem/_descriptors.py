"""Descriptors that the client keeps open, in a program that may close them and then have its own files under their numbers."""

from __future__ import annotations

import os
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Optional, Tuple

FLOORS = (64, 32, 3)
"""A kept descriptor has at least the first of these numbers that the system allows: the program's next files get low ones, and
the standard streams may be closed."""

PROC_BYTES = 128
"""A line of numbers in `/proc` is shorter."""

File = Tuple[int, int]
"""Device and inode."""


def file_of(descriptor: int) -> Optional[File]:
    """Returns the file behind a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def duplicate(descriptor: int) -> int:
    """Returns another descriptor of the same file, out of the program's way. Raises OSError if there is none left."""
    for floor in FLOORS:
        try:
            return fcntl(descriptor, F_DUPFD_CLOEXEC, floor)
        except OSError as error:
            failure = error
    raise failure


Reading = Tuple[int, bytes]
"""Number and content of a reading."""


class KeptFile:
    """A file of `/proc` that stays open. It is opened again after the program has closed it.

    One thread reads, and another one checks later, with one check for all readings so far, whether the file was still this one: each
    system call takes a training thread up to 20 µs.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._n_read = 0
        self._n_checked = 0
        self._n_foreign = 0
        """The last reading that may be of a file of the program."""
        self._open()

    def _open(self) -> None:
        opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._descriptor = duplicate(opened)
        finally:
            os.close(opened)
        self._file = file_of(self._descriptor)

    def read(self, n_bytes: int) -> Reading:
        """Reads its first bytes. Raises OSError if it cannot be opened again."""
        self._n_read += 1
        try:
            return self._n_read, os.pread(self._descriptor, n_bytes, 0)
        except OSError:
            self._n_foreign = self._n_read - 1  # those that were not checked yet
            self._open()
            return self._n_read, os.pread(self._descriptor, n_bytes, 0)

    def checked(self, reading: Reading) -> bytes:
        """Returns what was read; what is there now if that may be of another file. Raises OSError if it cannot be opened again."""
        n, content = reading
        if n > self._n_checked:
            n_read = self._n_read
            if file_of(self._descriptor) != self._file:
                self._open()
                self._n_foreign = n_read
            self._n_checked = n_read
        return content if n > self._n_foreign else os.pread(self._descriptor, max(len(content), PROC_BYTES), 0)

    def close(self) -> None:
        """Closes the file unless the program has."""
        if file_of(self._descriptor) == self._file:
            os.close(self._descriptor)
