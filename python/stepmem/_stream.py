"""One connected socket, with a deadline for each call. `socket` is the module below Python's own, which programs replace parts of."""

from __future__ import annotations

import _socket as socket
import struct
import sys
import time

from ._descriptors import OwnSocket

RECEIVED_BYTES_MAX = 65536
"""Bytes that one call receives, at most."""

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Makes a closed connection an error instead of a SIGPIPE, which would kill a program that restored its default."""

SECONDS_MIN = 0.01
"""Time for which a connection is awaited, at least."""

HAS_KERNEL_LIMITS = sys.platform == "linux"
"""Set if the kernel limits the time that a call waits, without Python's `poll` before each, which hands Python's lock over twice as often."""


class Stream:
    """A connection that is used only while its descriptor is that of the socket that was opened.

    A program that closes all descriptors, as to become a daemon, closes this one too, and opens its own files under the number.
    """

    def __init__(self, opened: OwnSocket) -> None:
        self._own = opened
        self._socket = opened.socket
        self._is_encrypted = hasattr(opened.socket, "cipher")
        self._has_kernel_limits = HAS_KERNEL_LIMITS and not self._is_encrypted
        if self._has_kernel_limits:
            opened.socket.settimeout(None)

    def close(self) -> None:
        """Closes the socket, or forgets its number if the program closed it."""
        self._own.close()

    def send(self, message: bytes, deadline: float) -> None:
        """Sends all of the message. Raises OSError if that takes until `deadline`, on the monotonic clock."""
        if not self._has_kernel_limits:
            self._limit(socket.SO_SNDTIMEO, deadline)
            # An encrypted connection takes no flags; it sends with MSG_NOSIGNAL's effect or Python's own handler.
            self._socket.sendall(message, 0 if self._is_encrypted else NO_SIGNAL)
            return
        while message:
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                message = message[self._socket.send(message, NO_SIGNAL) :]
            except BlockingIOError:
                raise TimeoutError("the exporter does not read within the deadline") from None

    def receive(self, deadline: float) -> bytes:
        """Returns what comes next, at least a byte. Raises OSError if nothing does until `deadline`."""
        self._limit(socket.SO_RCVTIMEO, deadline)
        try:
            received: bytes = self._socket.recv(RECEIVED_BYTES_MAX)
        except BlockingIOError:
            raise TimeoutError("no answer within the deadline") from None
        if not received:
            raise ConnectionResetError("the exporter closed the connection")
        return received

    def _limit(self, option: int, deadline: float) -> None:
        """Limits the next call to the time until the deadline. Raises OSError if it would go to a file of the program."""
        seconds = remaining(deadline)
        if not self._own.is_ours():
            raise ConnectionResetError("the program closed the connection")
        if self._has_kernel_limits:
            microseconds = max(1, int(seconds * 1e6))  # none would be no limit
            limit = struct.pack("@ll", *divmod(microseconds, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
        else:
            self._socket.settimeout(seconds)


def connected(host: str, port: int, deadline: float) -> OwnSocket:
    """Returns a connection to the first of the host's addresses that takes one. Raises OSError if none does by `deadline`."""
    failure = OSError(f"{host} has no address")
    # As bytes, a name is not encoded by a module that Python would import for that.
    for family, kind, protocol, _, address in socket.getaddrinfo(_name(host), port, 0, socket.SOCK_STREAM):
        opened = OwnSocket(family, kind, protocol)
        try:
            opened.socket.settimeout(patience(deadline))
            opened.socket.connect(address)
            return opened
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
    raise failure


def _name(host: str) -> bytes:
    return host.encode() if host.isascii() else host.encode("idna")


def octets(text: str) -> bytes:
    """Encodes text in Latin-1, for which `encode` would import a module in a program of `python -X dev`. Raises ValueError."""
    return bytes(map(ord, text))


def from_octets(octets: bytes) -> str:
    """Decodes text in Latin-1."""
    return "".join(map(chr, octets))


def patience(deadline: float) -> float:
    """Returns the seconds for which a connection is awaited, also after the deadline."""
    return max(SECONDS_MIN, deadline - time.monotonic())


def remaining(deadline: float) -> float:
    """Returns the seconds until the deadline. Raises TimeoutError if it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("no answer within the deadline")
    return seconds
