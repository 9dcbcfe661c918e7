"""Descriptors of the client, in a program that may close them at any time and then have its own files under their numbers.

Another thread of the program may do that between a check and the use that it allows. So the last part of each check, and the call that
closes, keep the interpreter's lock: code in Python does not run in between.
"""

from __future__ import annotations

import _socket as socket
import ctypes
import os
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._signals import raise_if_of_handler

FLOORS = (64, 32, 3)
"""A kept descriptor has at least the first of these numbers that the system allows: the program's next files get low ones, and
the standard streams may be closed."""

PROC_BYTES = 128
"""A line of numbers in `/proc` is shorter."""

FIRST_BYTES = 1 << 12
PART_BYTES = 1 << 16
"""Bytes that one call reads at first, and later: it allocates as much."""

CLOSED = -1
"""Number of a file that is closed."""

SO_COOKIE = 57
"""The option of a socket that no other socket has the value of; Linux 4.12 and newer."""

NAME_OFFSET = 2 * ctypes.sizeof(ctypes.c_long) + 3
"""Bytes before the name in an entry of a directory: inode, offset, length and type."""

close_at_once = ctypes.pythonapi["close"]
"""Closes a number, and keeps the interpreter's lock. Returns -1 if it is closed already."""

_directory_of, _next_entry, _close_directory = (ctypes.pythonapi[name] for name in ("fdopendir", "readdir", "closedir"))
_directory_of.restype = _next_entry.restype = ctypes.c_void_p
_next_entry.argtypes = _close_directory.argtypes = [ctypes.c_void_p]

File = Tuple[int, int, int]
"""Device, inode and type."""


def file_of(descriptor: int) -> Optional[File]:
    """Returns the file behind a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        raise_if_of_handler(error)
        return None
    return status.st_dev, status.st_ino, status.st_mode >> 12


def duplicate(descriptor: int) -> int:
    """Returns another descriptor of the same file, out of the program's way. Raises OSError if there is none left."""
    for floor in FLOORS:
        try:
            return fcntl(descriptor, F_DUPFD_CLOEXEC, floor)
        except OSError as error:
            raise_if_of_handler(error)
            failure = error
    raise failure


def _never_waits(descriptor: int) -> bool:
    """Returns whether a descriptor is open and has O_NONBLOCK. Keeps the interpreter's lock."""
    try:
        return not os.get_blocking(descriptor)
    except OSError as error:
        raise_if_of_handler(error)
        return False


def _is_same(descriptor: int, file: Optional[File], is_marked: bool) -> bool:
    """Returns whether a descriptor is still that of a file of the client. Keeps the interpreter's lock at the end."""
    is_same = is_marked if file is None else file_of(descriptor) == file
    return is_same and (not is_marked or _never_waits(descriptor))


class ClosedFile:
    """What an `OwnFile` becomes once nothing is left to close.

    Python ignores what a signal handler of the program raises in `__del__`. So that method is only there between an error and the end
    of a file, and no file that is closed runs it.
    """

    __slots__ = ("_is_marked", "file", "number")


class OwnFile(ClosedFile):
    """A file that is used, and closed, only while its descriptor is that of the file that was opened.

    It has O_NONBLOCK, which a regular file that the program opens has not: so it is known from the first moment on.
    """

    __slots__ = ()

    def __init__(self, open_: Callable[..., int], *arguments: Any, is_marked: bool = True) -> None:
        """`open_` opens it, with O_NONBLOCK if `is_marked`. A signal handler of the program may raise at any time from then on."""
        self._is_marked = is_marked
        self.file: Optional[File] = None
        try:
            self.number = open_(*arguments)
        except OSError:
            self.forget()
            raise
        self.file = file_of(self.number)
        _open[id(self)] = self.number, self.file, is_marked

    def __enter__(self) -> "OwnFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "number"):
            self.close()

    def is_ours(self) -> bool:
        """Returns whether the program has not closed it."""
        return _is_same(self.number, self.file, self._is_marked)

    def close(self) -> None:
        """Closes it unless the program has."""
        if self.is_ours(): close_at_once(self.number)  # fmt: skip
        self.forget()

    def forget(self) -> None:
        """Leaves its descriptor to others."""
        _open.pop(id(self), None)
        self.number = CLOSED
        self.__class__ = ClosedFile  # type: ignore[assignment]

    def read(self, n_bytes_max: int) -> bytes:
        """Returns its first bytes. Raises OSError if they cannot be read, or the program closed it meanwhile."""
        parts: List[bytes] = []
        n_bytes = 0
        while n_bytes < n_bytes_max:
            part = self.part(min(PART_BYTES if n_bytes else FIRST_BYTES, n_bytes_max - n_bytes), n_bytes)
            if not part:
                break
            parts.append(part)
            n_bytes += len(part)
        if not self.is_ours():
            raise OSError("the program closed a file of the client")
        return b"".join(parts)

    def part(self, n_bytes_max: int, offset: int) -> bytes:
        """Returns bytes from an offset on. A file of the program that is read instead keeps its position, and a pipe what is in it."""
        return os.pread(self.number, n_bytes_max, offset)

    def write(self, data: Any) -> int:
        """Writes bytes at the end of what was written, and returns how many. Raises OSError if the program has closed it."""
        if self.is_ours(): return os.write(self.number, data)  # fmt: skip
        raise OSError("the program closed a file of the client")


_open: Dict[int, Tuple[int, Optional[File], bool]] = {}
"""The descriptors of the client's open files, of every thread."""


def in_child() -> None:
    """Closes, in a forked child, what threads of the parent had open at that moment: here nothing else would."""
    for number, file, is_marked in list(_open.values()):
        if _is_same(number, file, is_marked): close_at_once(number)  # fmt: skip
    _open.clear()


def opened(path: str, flags: int = os.O_RDONLY) -> OwnFile:
    """Opens a file; never waits for another process. Raises OSError."""
    return OwnFile(os.open, path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def read_file(path: str, n_bytes_max: int) -> Optional[bytes]:
    """Returns the first bytes of a file; None if it cannot be read, as that of a process that is gone."""
    try:
        with opened(path) as file:
            return file.read(n_bytes_max)
    except OSError as error:
        raise_if_of_handler(error)
        return None


def names_in(path: str, n_max: int) -> List[str]:
    """Returns names in a directory of `/proc`; empty if it cannot be read. `os.listdir` would close a number long after it opened it."""
    try:
        own = opened(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise_if_of_handler(error)
        return []
    found: List[str] = []
    directory = None
    if own.is_ours(): directory = _directory_of(own.number)  # fmt: skip
    while directory is not None and len(found) < n_max + 2:
        entry = None
        if own.is_ours(): entry = _next_entry(directory)  # fmt: skip
        if not entry:
            break
        found.append((ctypes.c_char_p(entry + NAME_OFFSET).value or b"").decode("utf-8", "surrogateescape"))
    if directory is None:
        own.close()
    else:
        if own.is_ours(): _close_directory(directory)  # fmt: skip
        own.forget()
    return [name for name in found if name not in (".", "..")][:n_max]


class ClosedSocket:
    """What an `OwnSocket` becomes once nothing is left to close; see `ClosedFile`."""

    socket: Any
    _cookie: Optional[bytes]
    _file: Optional[File]

    def close(self) -> None:
        """It is closed."""


class OwnSocket(ClosedSocket):
    """A socket that is used, and closed, only while its descriptor is that of the socket that was opened."""

    def __init__(self, family: int, kind: int, protocol: int = 0) -> None:
        """Makes one under a number that the program's next files do not get. Raises OSError."""
        self.socket = None
        self._cookie = None
        self._file = None
        try:
            low = OwnFile(socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol).detach)
        except OSError:
            self.close()
            raise
        try:
            high = OwnFile(duplicate, low.number)
            if not (low.is_ours() and high.is_ours()):
                high.close()
                raise OSError("the program closed the connection")
            self._file = high.file
            self.socket = socket.socket(family, kind, protocol, high.number)
            high.forget()
            self._cookie = self._cookie_now()
        finally:
            low.close()

    def _cookie_now(self) -> Optional[bytes]:
        """Returns what no other socket has; None if that is unknown, or the program closed it. Keeps the interpreter's lock."""
        try:
            return bytes(self.socket.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))
        except OSError as error:
            raise_if_of_handler(error)
            return None

    def is_ours(self) -> bool:
        """Returns whether the program has not closed it."""
        return self._file is not None and file_of(self.socket.fileno()) == self._file and self._cookie in (None, self._cookie_now())

    def close(self) -> None:
        """Closes it, or forgets its number if the program closed it."""
        if self.socket is not None:
            if self.is_ours(): close_at_once(self.socket.fileno())  # fmt: skip
            self.socket.detach()
            self.socket = None
        self.__class__ = ClosedSocket  # type: ignore[assignment]

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter ends
            pass


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
        self._own: Optional[OwnFile] = None
        self._number = CLOSED
        self._open()

    def _open(self) -> None:
        self.close()  # first: the next one may get its number
        with opened(self._path) as file:
            self._own = OwnFile(duplicate, file.number)
        self._number = self._own.number

    def read(self, n_bytes: int) -> Reading:
        """Reads its first bytes. Raises OSError if it cannot be opened again."""
        self._n_read += 1
        try:
            return self._n_read, os.pread(self._number, n_bytes, 0)
        except OSError as error:
            raise_if_of_handler(error)
            self._n_foreign = self._n_read - 1  # those that were not checked yet
            self._open()
            return self._n_read, os.pread(self._number, n_bytes, 0)

    def checked(self, reading: Reading) -> bytes:
        """Returns what was read; what is there now if that may be of another file. Raises OSError if it cannot be opened again."""
        n, content = reading
        if n > self._n_checked:
            n_read = self._n_read
            if self._own is None or not self._own.is_ours():
                self._open()
                self._n_foreign = n_read
            self._n_checked = n_read
        return content if n > self._n_foreign else os.pread(self._number, max(len(content), PROC_BYTES), 0)

    def close(self) -> None:
        """Closes the file unless the program has."""
        own, self._own, self._number = self._own, None, CLOSED
        if own is not None:
            own.close()
