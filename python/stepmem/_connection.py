"""One connection to the exporter: HTTP/1.1 over TCP or a Unix socket, each call within a deadline."""

from __future__ import annotations

import _socket as socket
import struct
from typing import Any, Optional

from ._descriptors import OwnSocket
from ._settings import LOOPBACK, Settings, Target, read_token
from ._stream import Stream, connected, from_octets, octets, patience, remaining
from ._warn import warn_once
from ._wire import Request

ANSWER_BYTES_MAX = 65536
"""Longest answer that is read, head and body each."""

TLS_CONTEXT_USES = 16
"""Connections after which the certificate files are read again."""


class UntrustedTarget(OSError):
    """Whoever listens there may be another than the exporter."""


class Answer:
    """An answer of the exporter; `retry_after` is in seconds, 0 if the exporter names no pause."""

    __slots__ = ("body", "retry_after", "status")

    def __init__(self, status: int, retry_after: float, body: bytes) -> None:
        self.status = status
        self.retry_after = retry_after
        self.body = body


class Connection:
    """One HTTP/1.1 connection that is kept alive. `http.client` would take 5 MiB of memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stream: Optional[Stream] = None
        self.target: Target = settings.target()
        """Target of the connection; chosen again whenever it is opened."""
        self.n_opened = 0
        """Number of times that it was opened."""
        self._token = settings.token
        self._tls: Any = None
        if self.target.is_tls:
            import ssl  # noqa: F401  # before the program can lose the files of it
        self._used_socket: Optional[Target] = None
        """The default socket, once it was used: the pushes never go elsewhere then."""

    def close(self) -> None:
        """Closes the connection if it is open."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def post(self, request: Request, deadline: float) -> Answer:
        """Sends one request and returns the answer.

        Raises OSError or ValueError if there is none by `deadline`, on the monotonic clock.
        """
        is_kept = self._stream is not None
        try:
            return self._exchange(request, deadline)
        except (OSError, ValueError) as error:
            self.close()
            # The exporter may have restarted, or closed the idle connection.
            if not is_kept or isinstance(error, (TimeoutError, socket.timeout)):
                raise
        try:
            return self._exchange(request, deadline)
        except (OSError, ValueError):
            self.close()
            raise

    def _exchange(self, request: Request, deadline: float) -> Answer:
        stream = self._stream = self._stream or Stream(self._connect(deadline))
        target = self.target
        host = f"[{target.host}]" if ":" in target.host else target.host
        head = (
            f"POST {target.prefix}{request.path} HTTP/1.1\r\nHost: {host}\r\n"
            f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n"
        )
        if self._token:
            if target.socket_path is None and not target.is_tls and target.host not in LOOPBACK:
                warn_once("plain token", f"the token is sent to {target} without encryption; https:// would protect it")
            head += f"Authorization: Bearer {self._token}\r\n"
        stream.send(octets(f"{head}\r\n") + request.body, deadline)
        return self._answer(stream, deadline)

    def _connect(self, deadline: float) -> OwnSocket:
        self.target = target = self._used_socket or self._settings.target()
        self.n_opened += 1
        if not self._settings.may_push(target):
            raise UntrustedTarget("with STEPMEM_PUSH_TOKEN_FILE, STEPMEM_PUSH_URL must name a TCP address")
        if target.socket_path is None:
            made = connected(target.host, target.port, deadline)
            try:
                made.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if target.is_tls:
                    self._encrypt(made, target, deadline)
                return made
            except BaseException:
                made.close()
                raise
        made = OwnSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.socket.settimeout(patience(deadline))
            made.socket.connect(target.socket_path)
            self._check_owner(made.socket, target.socket_path)
        except BaseException:
            made.close()
            raise
        self._used_socket = target
        return made

    def _check_owner(self, opened: socket.socket, path: str) -> None:
        """Raises UntrustedTarget if a process of another user than the exporter's listens on the socket."""
        option = getattr(socket, "SO_PEERCRED", None)
        if option is None:
            return
        _, uid, _ = struct.unpack("3i", opened.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
        uid &= 0xFFFFFFFF
        if not self._settings.trusts_owner(path, uid):
            raise UntrustedTarget(
                f"its socket belongs to uid {uid}; if the exporter runs as that, set STEPMEM_PUSH_SOCKET_UID={uid}"
            )

    def _encrypt(self, opened: OwnSocket, target: Target, deadline: float) -> None:
        """Checks the exporter's certificate and encrypts the connection."""
        import ssl

        settings = self._settings
        if self._tls is None or self.n_opened % TLS_CONTEXT_USES == 0:
            context = ssl.create_default_context(cafile=settings.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if settings.cert_file:
                context.load_cert_chain(settings.cert_file, settings.key_file)
            self._tls = context
        opened.socket.settimeout(remaining(deadline))
        try:
            # Without the handshake, which would close the number itself if it failed.
            opened.socket = self._tls.wrap_socket(opened.socket, do_handshake_on_connect=False, server_hostname=target.host)
            opened.socket.do_handshake()
        except ssl.SSLError:
            self._tls = None  # the files may have been renewed
            raise

    def renew_token(self) -> bool:
        """Reads the token's file again. Returns whether the token has changed."""
        before = self._token
        try:
            if self._settings.token_file:
                self._token = read_token(self._settings.token_file)
        except (OSError, ValueError) as error:
            warn_once("token", f"the token cannot be read again: {error}")
        return self._token != before

    def _answer(self, stream: Stream, deadline: float) -> Answer:
        received = b""
        while b"\r\n\r\n" not in received:
            if len(received) > ANSWER_BYTES_MAX:
                raise ValueError(f"the answer's head exceeds {ANSWER_BYTES_MAX} bytes")
            received += stream.receive(deadline)
        head, _, body = received.partition(b"\r\n\r\n")
        status_line, *lines = from_octets(head).split("\r\n")
        version, status, *_ = status_line.split(" ", 2)
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise ValueError(f"{status_line[:80]!r} is not an HTTP status line")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > ANSWER_BYTES_MAX:
            raise ValueError(f"Content-Length {length!r} of the answer is not in 0..={ANSWER_BYTES_MAX}")
        while len(body) < int(length):
            body += stream.receive(deadline)
        if headers.get("connection", "").lower() == "close" or len(body) > int(length):
            self.close()
        retry_after = headers.get("retry-after", "")
        return Answer(int(status), float(retry_after) if retry_after.isdecimal() else 0.0, body)
