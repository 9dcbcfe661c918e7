"""Whom the client trusts: the owner of a socket, a certificate, and no answer further than it has to."""

from __future__ import annotations

import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any, Iterator, List

import pytest

from stepmem._connection import Connection, UntrustedTarget
from stepmem._process import Process
from stepmem._sender import Sender
from stepmem._settings import SOCKET_DEFAULT, Settings
from stepmem._warn import printable
from stepmem._wire import Held, Request, decode_snapshot_requests, decode_heap_scan_requests, unknown_key

REQUEST = Request("/v1/steps", "application/json", b"{}")
OTHER_UID = 12345


def settings(**variables: str) -> Settings:
    return Settings.read(variables)


class Answering:
    """Listens on a socket and answers every connection with the same bytes."""

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        self.heads: List[bytes] = []
        self._listener, self._answer = listener, answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.heads.append(connection.recv(65536))
            connection.sendall(self._answer)
            connection.close()


ACCEPTED = b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\nConnection: close\r\n\r\n{"accepted":1,"actions":[]}'


LISTENING = f"""
import os, socket, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    try:
        connection.recv(65536)
        connection.sendall({ACCEPTED!r})
    except OSError:
        pass
    connection.close()
"""


@pytest.fixture
def of_other_user() -> Iterator[str]:
    """A socket that a process of another user listens on."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to listen as another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "push.sock")
        child = subprocess.Popen([sys.executable, "-c", LISTENING, path, str(OTHER_UID)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield path
        child.kill()
        child.wait()


def post(of: Settings) -> int:
    import time

    return Connection(of).post(REQUEST, time.monotonic() + 60).status


def test_socket_of_another_user_is_refused_with_its_uid_and_the_variable(of_other_user: str) -> None:
    with pytest.raises(UntrustedTarget, match=f"uid {OTHER_UID};.*STEPMEM_PUSH_SOCKET_UID={OTHER_UID}"):
        post(settings(STEPMEM_PUSH_URL=f"unix://{of_other_user}"))
    named = settings(STEPMEM_PUSH_URL=f"unix://{of_other_user}", STEPMEM_PUSH_SOCKET_UID=str(OTHER_UID))
    assert post(named) == 200


def test_own_socket_and_root_are_trusted(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "push.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    Answering(listener, ACCEPTED)
    assert post(settings(STEPMEM_PUSH_URL=f"unix://{path}")) == 200
    listener.close()


def test_users_of_the_default_socket() -> None:
    plain, other = settings(), settings(STEPMEM_PUSH_SOCKET_UID="1000")
    assert plain.trusts_owner(SOCKET_DEFAULT, 65532) and plain.trusts_owner(SOCKET_DEFAULT, 0)
    assert not plain.trusts_owner("/elsewhere/push.sock", 65532)
    assert not plain.trusts_owner(SOCKET_DEFAULT, OTHER_UID)
    assert other.trusts_owner("/elsewhere/push.sock", 1000) and not other.trusts_owner(SOCKET_DEFAULT, 65532)
    for value in ("-1", "root", "4294967296", "١"):
        with pytest.raises(ValueError, match="STEPMEM_PUSH_SOCKET_UID"):
            settings(STEPMEM_PUSH_SOCKET_UID=value)


def test_pushes_never_leave_a_socket_for_tcp(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "push.sock")
    monkeypatch.setattr("stepmem._settings.SOCKET_DEFAULT", path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    Answering(listener, ACCEPTED)
    import time

    connection = Connection(settings())
    assert connection.post(REQUEST, time.monotonic() + 60).status == 200
    listener.close()
    os.unlink(path)
    with pytest.raises(OSError):
        connection.post(REQUEST, time.monotonic() + 5)
    assert connection.target.socket_path == path


def test_token_goes_where_it_is_protected_or_where_the_user_says(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    for url, expected in [
        ("unix:///a.sock", True),
        ("https://other:1", True),
        ("http://other:1", True),
        (None, False),
    ]:
        variables = {"STEPMEM_PUSH_TOKEN_FILE": str(file), **({"STEPMEM_PUSH_URL": url} if url else {})}
        of = settings(**variables)
        assert of.may_push(of.target()) is expected, url
    without = settings()
    assert without.may_push(without.target()), "there is nothing to steal"


BY_DEFAULT = """
    import sys, stepmem
    from stepmem import _settings
    _settings.ADDRESS_DEFAULT = ("127.0.0.1", int(sys.argv[1]))
    _settings.SOCKET_DEFAULT = sys.argv[2]
    for step in range(1, 4):
        stepmem.step_end(step)
        print(stepmem.flush(5))
"""


def test_token_and_steps_go_to_no_default_address_but_to_the_socket(fake: Any, start: Any, train: Any, tmp_path: pathlib.Path) -> None:
    listener, token, path = fake(200), tmp_path / "token", str(tmp_path / "push.sock")
    port = listener.url.rpartition(":")[2]
    token.write_text("secret")
    ended = train(BY_DEFAULT, None, port, path, STEPMEM_PUSH_TOKEN_FILE=str(token)).ended()
    reason = "with STEPMEM_PUSH_TOKEN_FILE, STEPMEM_PUSH_URL must name a TCP address"
    assert (ended.code, ended.err) == (0, f"stepmem: not pushing to http://127.0.0.1:{port}: {reason}\n")
    assert (listener.received, ended.information, ended.out) == ([], [], "False\n" * 3)
    exporter = start("--push.unix-socket", path, "--push.token-file", str(token))
    ended = train(BY_DEFAULT, None, port, path, STEPMEM_PUSH_TOKEN_FILE=str(token)).ended()
    assert (ended.code, ended.err, ended.out) == (0, "", "True\n" * 3)
    assert exporter.rank()["step"] == 3 and listener.received == []
    # Without a token there is nothing to steal.
    assert train(BY_DEFAULT, None, port, str(tmp_path / "none")).ended().out == "True\n" * 3
    assert listener.received


def test_token_is_read_anew_when_it_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    connection = Connection(settings(STEPMEM_PUSH_TOKEN_FILE=str(file)))
    assert not connection.renew_token()
    file.write_text("new")
    assert connection.renew_token() and not connection.renew_token()


def test_file_without_a_token_is_an_error(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    for text in ("", " \n"):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"^STEPMEM_PUSH_TOKEN_FILE: {file} does not hold a single word"):
            settings(STEPMEM_PUSH_TOKEN_FILE=str(file))
    file.write_text("kept")
    connection = Connection(settings(STEPMEM_PUSH_TOKEN_FILE=str(file)))
    file.write_text("")
    assert not connection.renew_token(), "the secret is being replaced"


SEEDS = [
    ACCEPTED,
    b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]',
    b'HTTP/1.1 409 Conflict\r\nRetry-After: 5\r\nContent-Length: 24\r\n\r\n{"offer":"a~2","x":null}',
    b'HTTP/1.1 400 Bad\r\nContent-Length: 46\r\n\r\n{"detail":"record 0: unknown field `instance`"}',
    b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"actions":[{"type":"snapshot","id":"1-1","run":"r","rank":0,"steps":3,"directory":"/s"}],"a":12345}',
    b'HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n{"accepted":1,"actions":[{"type":"holders","id":"h-1","rank":0}]}',
    b"HTTP/1.1 503 Busy\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
]
PIECES = [b"\x1b[2J", b"[" * 5000, b"\xff\xfe", b"Content-Length: ", b"\r\n\r\n", b'{"', b"\x00", b"9" * 5000, "‮".encode()]


def mutated(of: random.Random) -> bytes:
    answer = bytearray(of.choice(SEEDS))
    for _ in range(of.randrange(1, 6)):
        at = of.randrange(len(answer) + 1)
        kind = of.randrange(4)
        if kind == 0 and answer:
            answer[min(at, len(answer) - 1)] ^= 1 << of.randrange(8)
        elif kind == 1:
            answer[at:at] = of.choice(PIECES)
        elif kind == 2:
            del answer[at : at + of.randrange(20)]
        else:
            other = of.choice(SEEDS)
            answer[at:] = other[of.randrange(len(other)) :]
    return bytes(answer)


class FromBytes:
    """A socket of the client from which these bytes come, in pieces."""

    def __init__(self, answer: bytes) -> None:
        self._rest = answer
        self.socket = self

    def is_ours(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def settimeout(self, seconds: "float | None") -> None:
        pass

    def setsockopt(self, *option: object) -> None:
        pass

    def send(self, data: bytes, flags: int = 0) -> int:
        return len(data)

    def recv(self, n_bytes: int) -> bytes:
        taken, self._rest = self._rest[:1000], self._rest[1000:]
        return taken

    def close(self) -> None:
        self._rest = b""


def test_no_answer_breaks_the_sender(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes back, a delivery is accepted, refused or sent again, and no escape sequence reaches a terminal."""
    import time

    of = random.Random(os.environ.get("STEPMEM_FUZZ_SEED", "stepmem"))
    process = Process()
    requests: List[Any] = []
    sender = Sender(settings(), process, requests.append)
    answers: List[bytes] = []
    monkeypatch.setattr("stepmem._connection.Connection._connect", lambda connection, deadline: FromBytes(answers[0]))
    n_answers = int(os.environ.get("STEPMEM_FUZZ_ANSWERS", "3000"))
    for _ in range(n_answers):
        answers[:] = [mutated(of)]
        monkeypatch.setattr("stepmem._warn._topics", set())
        sender._connection.close()
        delivery = sender._deliver(REQUEST, time.monotonic() + 5, n_records=of.randrange(2))
        assert delivery is not None
        sender._n_renames = 0
    assert caplog.messages and requests
    assert all(message.isprintable() for message in caplog.messages), [m for m in caplog.messages if not m.isprintable()][:5]


def test_decoders_of_answers_never_raise_more_than_they_say() -> None:
    of = random.Random(7)
    for _ in range(2000):
        body = mutated(of).partition(b"\r\n\r\n")[2]
        Held(body)
        unknown_key(body)
        for decode in (decode_snapshot_requests, decode_heap_scan_requests):
            try:
                decode(body)
            except Exception:
                continue
    assert Held(b"[" * 100_000).offer is None
    assert Held(json.dumps({"offer": "a\u202eb"}).encode()).offer is None


def test_text_of_others_is_escaped() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd") == "a\\x1b[2Jb\\u202ec\\nd"
    assert printable("größe 变量") == "größe 变量"


def test_certificate_is_checked_before_anything_is_sent(certificates: pathlib.Path) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
    port = listener.getsockname()[1]
    received: List[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return
            received.append(connection.recv(65536))
            connection.sendall(ACCEPTED)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    token = certificates / "token"
    token.write_text("secret")
    variables = {"STEPMEM_PUSH_URL": f"https://127.0.0.1:{port}", "STEPMEM_PUSH_TOKEN_FILE": str(token)}
    with pytest.raises(ssl.SSLCertVerificationError):
        post(settings(**variables))
    assert not received
    trusted = {**variables, "STEPMEM_PUSH_CA_FILE": str(certificates / "cert.pem")}
    assert post(settings(**trusted)) == 200
    assert b"Authorization: Bearer secret" in received[0]
    with pytest.raises(ssl.SSLCertVerificationError):  # the certificate is of another name
        post(settings(**{**trusted, "STEPMEM_PUSH_URL": f"https://localhost:{port}"}))
    listener.close()
