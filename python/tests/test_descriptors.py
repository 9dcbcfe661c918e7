"""A program that closes the client's descriptors, and then has its own files and sockets under their numbers, keeps those as it
made them; and what the client pushes still arrives."""

from __future__ import annotations

import os
import pathlib
import socket
import ssl
import subprocess
import sys
import threading
import textwrap
import time
from typing import List

import pytest
from conftest import ROOT, STUB

from stepmem._connection import Connection
from stepmem._descriptors import FLOORS, KeptFile, file_of
from stepmem._settings import Settings
from stepmem._wire import JSON_LINES, STEPS_PATH, Request

TAKEN = """
    import atexit, os, resource, socket, sys
    import stepmem  # its exit runs after that of the program, which is registered later

    def intact():
        sizes = [os.fstat(file).st_size for file in files]
        for ours, theirs in pairs:
            ours.setblocking(False)
            try:
                sizes.append(len(ours.recv(65536)))
            except BlockingIOError:
                pass
        return len(sizes) == 200 and not any(sizes)

    for step in range(1, 21):
        stepmem.step_end(step)
    assert stepmem.flush(60)
    before = set(os.listdir("/proc/self/fd"))
    os.closerange(3, 4096)
    files, pairs = [], []
    for n in range(200):
        files.append(os.open(f"file{n}", os.O_CREAT | os.O_RDWR))
        pairs.append(socket.socketpair())
    assert before & {str(file) for file in files} | {str(each.fileno()) for pair in pairs for each in pair}
    for step in range(21, 61):
        stepmem.step_end(step)
    assert stepmem.flush(60)
    print(intact(), flush=True)
    child = os.fork()
    if child == 0:
        print(intact(), flush=True)
        os.environ["STEPMEM_RUN"] = "child"
        stepmem.step_end(1)
        stepmem.flush(60)
        print(intact(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    for pair in pairs:
        for each in pair:
            each.detach()
    pairs.clear()
    os.closerange(3, 4096)
    files[:] = [os.open(f"file{n}", os.O_CREAT | os.O_RDWR) for n in range(200)]
    stepmem.end()
    assert stepmem.flush(60)
    print(intact(), flush=True)
"""


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_program_that_closes_all_descriptors_keeps_its_own_as_they_were(train, start, tmp_path, kind):
    exporter = start("--push.unix-socket", str(tmp_path / "push.sock")) if kind == "unix" else start()
    ended = train(TAKEN, exporter.url).ended()
    assert (ended.code, ended.out) == (0, "True\n" * 4), ended.err
    assert ended.err == ""
    assert sorted(rank["steps_total"] for rank in exporter.status()["ranks"]) == [1, 60]


def test_memory_is_read_on_from_where_it_was(train, exporter, without_cuda):
    """A file of the program that has the number of `/proc/self/statm` is not taken for it."""
    code = """
        import os, stepmem
        for step in range(1, 11):
            stepmem.step_end(step)
        stepmem.flush(60)
        os.closerange(3, 4096)
        for n in range(200):
            file = os.open(f"file{n}", os.O_CREAT | os.O_RDWR)
            os.write(file, b"9000000 9000000 1 1 0 1 0")
        for step in range(11, 21):
            stepmem.step_end(step)
        stepmem.flush(60)
        print(os.path.getsize("file5"), os.read(3, 1))
    """
    ended = train(code, exporter.url, PATHS=without_cuda).ended()
    assert (ended.code, ended.out, ended.err) == (0, "25 b''\n", "")
    rank = exporter.rank()
    assert rank["steps_total"] == 20
    assert 0 < rank["allocated_bytes"] < 1 << 30, rank


def test_program_without_standard_streams_has_its_files_to_itself(tmp_path):
    """Its first file has number 0, 1 or 2, where the client would write its warnings."""
    code = f"""
        import os, sys
        files = [os.open(f"file{{n}}", os.O_CREAT | os.O_RDWR) for n in range(4)]
        sys.path[:0] = [{STUB!r}, {str(ROOT / "python")!r}]
        import stepmem
        for step in range(1, 5):
            stepmem.step_end(step)
        stepmem.flush(0.5)
        sockets = [fd for fd in range(3) if not os.readlink(f"/proc/self/fd/{{fd}}").startswith(os.getcwd())]
        assert not any(os.fstat(file).st_size for file in files) and not sockets
        os._exit(7)
    """
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[8:] for line in code.splitlines()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        absent = f"http://127.0.0.1:{listener.getsockname()[1]}"
    shell = f"exec {sys.executable} {script} 0>&- 1>&- 2>&-"
    ended = subprocess.run(["sh", "-c", shell], cwd=tmp_path, env={**os.environ, "STEPMEM_PUSH_URL": absent}, timeout=60)
    assert ended.returncode == 7


def test_kept_descriptors_are_out_of_the_programs_way(tmp_path):
    kept = KeptFile("/proc/self/statm")
    assert kept._number >= FLOORS[0]
    assert not os.get_inheritable(kept._number)
    number = kept._number
    kept.close()
    assert file_of(number) is None


def test_file_whose_number_was_taken_is_opened_again_and_what_took_it_is_not_closed(tmp_path):
    kept = KeptFile("/proc/self/statm")
    number = kept._number
    before = kept.read(128)
    assert kept.checked(before) == before[1]
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    os.write(other, b"1 2 3 4 5 6 7")
    os.dup2(other, number)
    foreign = [kept.read(128), kept.read(128)]
    assert [content for _, content in foreign] == [b"1 2 3 4 5 6 7"] * 2
    assert all(int(kept.checked(reading).split()[0]) > 1000 for reading in foreign)
    after = kept.read(128)
    assert kept.checked(after) == after[1] and int(after[1].split()[0]) > 1000
    kept.close()
    assert file_of(number) == file_of(other)
    os.close(number)
    os.close(other)


@pytest.mark.parametrize("taken_by", ["nothing", "a pipe"])
def test_file_that_cannot_be_read_is_opened_again_at_once(taken_by):
    kept = KeptFile("/proc/self/statm")
    ends = os.pipe()
    if taken_by == "nothing":
        os.close(kept._number)
    else:
        os.dup2(ends[0], kept._number)
    assert len(kept.checked(kept.read(128)).split()) == 7
    for end in ends:
        os.close(end)


def test_reading_of_a_file_of_the_program_does_not_count_though_the_program_closed_it_since(tmp_path):
    kept = KeptFile("/proc/self/statm")
    own = os.open(tmp_path / "own", os.O_CREAT | os.O_RDWR)
    os.write(own, b"of the program")
    os.dup2(own, kept._number)
    foreign = kept.read(128)
    os.close(kept._number)
    kept.read(128)
    assert foreign[1] == b"of the program"
    assert len(kept.checked(foreign).split()) == 7
    os.close(own)


@pytest.fixture
def encrypted(certificates: pathlib.Path) -> str:
    """The address of an exporter that speaks TLS, and accepts everything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as opened:
            while opened.recv(65536):
                opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"https://127.0.0.1:{listener.getsockname()[1]}"


def test_encrypted_connection_whose_number_was_taken_is_opened_again(encrypted, tmp_path):
    variables = {"STEPMEM_PUSH_URL": encrypted, "STEPMEM_PUSH_CA_FILE": str(tmp_path / "cert.pem")}
    connection = Connection(Settings.read(variables))
    request = Request(STEPS_PATH, JSON_LINES, b"{}")
    assert connection.post(request, time.monotonic() + 30).status == 200
    number = connection._stream._socket.fileno()  # type: ignore[union-attr]
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), number)
    assert connection.post(request, time.monotonic() + 30).status == 200
    assert connection.n_opened == 2
    connection.close()
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    assert file_of(number) == file_of(ours.fileno())
    os.close(number)


def test_forgotten_connection_is_not_closed_when_it_is_closed(encrypted, tmp_path):
    """As in a forked child, and at exit."""
    variables = {"STEPMEM_PUSH_URL": encrypted, "STEPMEM_PUSH_CA_FILE": str(tmp_path / "cert.pem")}
    connection = Connection(Settings.read(variables))
    connection.post(Request(STEPS_PATH, JSON_LINES, b"{}"), time.monotonic() + 30)
    number = connection._stream._socket.fileno()  # type: ignore[union-attr]
    taken: List[int] = [os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)]
    os.dup2(taken[0], number)
    connection.close()
    del connection
    assert file_of(number) == file_of(taken[0])
    os.close(number)


READS_AT_FORK = """
    import os, threading, stepmem
    from stepmem._descriptors import opened
    stepmem.step_end(1)
    is_open, may_go_on = threading.Event(), threading.Event()

    def read():
        with opened("/proc/self/status") as file:
            is_open.set()
            may_go_on.wait()

    thread = threading.Thread(target=read)
    thread.start()
    is_open.wait()

    def statuses():
        links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and os.readlink(link).endswith("/status") for link in links)

    print(statuses(), flush=True)
    child = os.fork()
    if child == 0:
        print(statuses(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(statuses(), flush=True)
    may_go_on.set()
    thread.join()
    print(statuses(), flush=True)
"""


def test_forked_child_keeps_no_file_that_a_thread_of_the_client_reads_meanwhile(fake, train):
    ended = train(textwrap.dedent(READS_AT_FORK), fake(200).url).ended()
    assert (ended.code, ended.out.split()) == (0, ["1", "0", "1", "0"]), (ended.out, ended.err)


TAKEN_AT_FORK = """
    import os, threading, stepmem
    from stepmem._descriptors import opened
    stepmem.step_end(1)
    file = opened("/proc/self/status")
    taken = os.open("/proc/self/status", os.O_RDONLY)
    os.dup2(taken, file.number)
    child = os.fork()
    if child == 0:
        print(os.read(file.number, 5).decode(), flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_forked_child_keeps_a_file_of_the_program_under_the_number_of_the_clients(fake, train):
    ended = train(textwrap.dedent(TAKEN_AT_FORK), fake(200).url).ended()
    assert (ended.code, ended.out.split()) == (0, ["Name:", "0"]), (ended.out, ended.err)
