#!/usr/bin/env python3
"""Attacks an exporter over loopback, a few seconds each, while eight ranks push and a scraper reads.

    run.py [--tls] BINARY [ATTACK…]
    run.py --write docs/security.md BINARY     # without TLS, then with it

An attack passes if no push of the ranks was lost, the exporter's resident memory stayed within 32 MiB (40 with TLS), and 99 of 100
scrapes took at most 10 ms beyond what the scheduler kept exporter and scraper waiting. Exits with 1 if one did not.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import gzip
import itertools
import json
import os
import pathlib
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from typing import Any, Callable, Dict, List, Tuple

MIB = 1 << 20
SECONDS = 4.0
RSS_MAX = {False: 32 * MIB, True: 40 * MIB}
"""By whether TLS is spoken."""
SCRAPE_MAX = 0.010
RECORD = b'{"run":"evil","rank":0,"step":1,"allocated_bytes":1}'


def head(path: str, n_bytes: int, *lines: str) -> bytes:
    fields = ["Host: test", "Content-Type: application/json", f"Content-Length: {n_bytes}", *lines]
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode()


class Client:
    """A process of its own, with an interpreter of its own, that pushes or scrapes until it is ended."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def end(self) -> Dict[str, Any]:
        """Ends it and returns what it saw."""
        output, _ = self._process.communicate("\n", timeout=60)
        answer: Dict[str, Any] = json.loads(output)
        return answer


def until_ended(pause: float, work: Callable[[], None]) -> None:
    """Works until standard input ends."""
    while not select.select([sys.stdin], [], [], pause)[0]:
        work()


def connected(port: int, is_tls: bool) -> socket.socket:
    """Connects, and shakes hands where TLS is spoken. The certificate is not checked: an attacker does not."""
    plain = socket.create_connection(("127.0.0.1", port), 10)
    if not is_tls:
        return plain
    # As clients do: without it, a request waits for the answer to the end of the handshake, 40 ms.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(plain)
    except OSError:
        plain.close()
        raise


def asked(port: int, is_tls: bool, request: bytes) -> bytes:
    with connected(port, is_tls) as connection:
        connection.sendall(request)
        answer = b""
        while True:
            part = connection.recv(65536)
            if not part:
                return answer
            answer += part


def push_ranks(port: int, is_tls: bool) -> None:
    """Pushes steps of eight ranks, and prints how many and which were lost."""
    step, n_pushes, lost = 0, 0, []

    def work() -> None:
        nonlocal step, n_pushes
        step += 1
        for rank in range(8):
            body = b'{"run":"good","rank":%d,"step":%d,"allocated_bytes":1}' % (rank, step)
            n_pushes += 1
            try:
                answer = asked(port, is_tls, head("/v1/steps", len(body), "Connection: close") + body)
            except OSError as error:
                answer = repr(error).encode()
            if not answer.startswith(b"HTTP/1.1 200"):
                lost.append(answer[:200].decode("utf-8", "replace"))

    until_ended(0.02, work)
    print(json.dumps({"n": n_pushes, "lost": lost}))


def scrape(port: int, is_tls: bool, pid: int) -> None:
    """Scrapes, and prints how long each took beyond what the scheduler kept the exporter's thread and this one waiting."""
    took: List[float] = []

    def starved() -> float:
        paths = [f"/proc/{pid}/task/{pid}/schedstat", "/proc/thread-self/schedstat"]
        return sum(int(pathlib.Path(path).read_text().split()[1]) for path in paths) / 1e9

    def work() -> None:
        waited, began = starved(), time.monotonic()
        try:
            answer = asked(port, is_tls, b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        except OSError as error:
            answer = repr(error).encode()
        seconds = time.monotonic() - began
        seconds -= starved() - waited
        took.append(seconds if answer.startswith(b"HTTP/1.1 200") else 60.0)

    until_ended(0.02, work)
    print(json.dumps({"took": took}))


class Victim:
    """An exporter with default settings, eight ranks that push to it, and a scraper."""

    def __init__(self, binary: str, is_tls: bool, *arguments: str) -> None:
        self.binary = binary
        self.is_tls = is_tls
        addresses = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [binary, "serve", "--no-nvml", "--log.format", "json", *addresses, *arguments], stderr=subprocess.PIPE, text=True
        )
        self.ports: Dict[str, int] = {}
        is_up = threading.Event()
        threading.Thread(target=self._read, args=(is_up,), daemon=True).start()
        if not is_up.wait(30):
            raise RuntimeError("the exporter did not start")
        speaks = "tls" if is_tls else "plain"
        self._pusher = Client("--push", str(self.ports["push"]), speaks)
        self._scraper = Client("--scrape", str(self.ports["web"]), speaks, str(self.process.pid))
        self.n_pushes = 0
        self.lost: List[str] = []
        self.scrapes: List[float] = []
        while b'rank="7"' not in self.ask("web", b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"):
            time.sleep(0.1)
        time.sleep(1)

    def _read(self, is_up: threading.Event) -> None:
        for line in self.process.stderr or []:
            fields = json.loads(line).get("fields", {}) if line.startswith("{") else {}
            if fields.get("message") == "listening":
                self.ports[fields["what"]] = int(fields["address"].rsplit(":", 1)[1])
            if len(self.ports) == 2:
                is_up.set()

    def connect(self, what: str = "push") -> socket.socket:
        return connected(self.ports[what], self.is_tls)

    def connect_plain(self, what: str) -> socket.socket:
        """Connects without a handshake."""
        return connected(self.ports[what], False)

    def ask(self, what: str, request: bytes) -> bytes:
        return asked(self.ports[what], self.is_tls, request)

    def resident_max(self) -> int:
        """The most resident memory so far, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    def end(self) -> None:
        """Ends pusher and scraper."""
        pushed, self.scrapes = self._pusher.end(), self._scraper.end()["took"]
        self.n_pushes, self.lost = pushed["n"], pushed["lost"]

    def stop(self) -> float:
        """Stops it as an orchestrator does; returns how long that took, in seconds."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(40)
        return time.monotonic() - began


def unread(victim: Victim, what: str, requests: List[bytes], n_connections: int) -> List[socket.socket]:
    """Sends on each connection, and reads nothing."""
    opened = []
    for idx in range(n_connections):
        with contextlib.suppress(OSError):
            connection = victim.connect(what)
            opened.append(connection)
            connection.setblocking(False)
            connection.send(requests[idx % len(requests)])
    return opened


def again(work: Callable[[], int]) -> int:
    """Repeats `work` for the time of an attack; returns the sum of its counts."""
    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        n += work()
        time.sleep(0.2)
    return n


def close_all(opened: List[socket.socket]) -> int:
    for connection in opened:
        connection.close()
    return len(opened)


def unread_refusals(victim: Victim) -> int:
    key, escaped = (gzip.compress(b'{"%s":1}' % (byte * (MIB // len(byte) - 16))) for byte in (b"k", b"\\u001b"))
    requests = [head("/v1/steps", len(body), "Content-Encoding: gzip") + body for body in (key, escaped)]
    return again(lambda: close_all(unread(victim, "push", requests, 250)))


def packed_without_end(victim: Victim) -> int:
    body = gzip.compress(b" " * (MIB - 1))
    request = head("/v1/steps", len(body), "Content-Encoding: gzip") + body[:-9]
    opened = unread(victim, "push", [request], 250)
    time.sleep(SECONDS)
    return close_all(opened)


def plain_without_end(victim: Victim) -> int:
    def work() -> int:
        opened = unread(victim, "push", [head("/v1/steps", 16_001) + b" " * 16_000], 200)
        for _ in range(12):
            with contextlib.suppress(OSError):
                connection = victim.connect()
                opened.append(connection)
                connection.settimeout(0.3)
                connection.sendall(head("/v1/steps", MIB) + b" " * (MIB - 1))
        time.sleep(0.5)
        return close_all(opened)

    return again(work)


def drip(opened: "List[socket.socket]", byte: bytes) -> int:
    """Sends a byte on each connection again and again, and closes them. Returns how many it sent."""
    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for connection in opened:
            with contextlib.suppress(OSError):
                n += connection.send(byte)
        time.sleep(0.1)
    close_all(opened)
    return n


def trickle(victim: Victim) -> int:
    return drip(unread(victim, "push", [head("/v1/steps", 1000)], 250), b" ")


def unread_answers(victim: Victim) -> int:
    paths = ["/metrics", "/api/v1/status", "/api/v1/runs/good/summary", "/"]
    codings = ["gzip", "identity"]
    requests = [
        f"GET {path} HTTP/1.1\r\nHost: test\r\nAccept-Encoding: {coding}\r\n\r\n".encode() * 400
        for path in paths
        for coding in codings
    ]
    opened = unread(victim, "web", requests, 240)
    time.sleep(SECONDS)
    return 400 * close_all(opened)


def silent_connections(victim: Victim) -> int:
    def work() -> int:
        silent = []
        for _ in range(300):
            with contextlib.suppress(OSError):
                silent.append(victim.connect_plain("push"))
        return close_all(silent) + close_all(unread(victim, "web", [b"GET / HTTP/1.1\r\n"], 300))

    return again(work)


def half_handshakes(victim: Victim) -> int:
    """Sends most of a greeting, as long as one can be, on every connection of both listeners, and on some more than may come."""
    greeting = b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc\x03\x03" + b"h" * 15_900
    parts = [greeting[:6_000]] * 4 + [greeting]
    opened = []
    for what in ("push", "web"):
        for idx in range(250):
            with contextlib.suppress(OSError):
                connection = victim.connect_plain(what)
                opened.append(connection)
                connection.sendall(parts[idx % len(parts)])
    time.sleep(SECONDS / 2)
    return close_all(opened)


def half_records(victim: Victim) -> int:
    """Sends most of a record of application data after the handshake."""
    opened = []
    for what in ("push", "web"):
        for _ in range(250):
            with contextlib.suppress(OSError):
                connection = victim.connect(what)
                opened.append(connection)
                os.write(connection.fileno(), b"\x17\x03\x03\x40\x00" + b"r" * 16_000)
    time.sleep(SECONDS / 2)
    return close_all(opened)


def no_descriptors(victim: Victim) -> int:
    subprocess.run(["prlimit", "--pid", str(victim.process.pid), "--nofile=60:60"], check=True)
    return again(lambda: close_all(unread(victim, "push", [b""], 100)))


def mutated_requests(victim: Victim) -> int:
    of = random.Random(1)
    seeds = [
        head("/v1/steps", len(RECORD)) + RECORD,
        head("/v1/runs/evil/end", 19) + b'{"outcome":"oom"}  ',
        head("/v1/snapshots", 60) + b'{"rank":0,"outcome":"written","path":"/a/b"}'.ljust(60),
        head("/v1/runs/evil/ack", 2) + b"{}",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    pieces = [b"\x00", b"\r\n", b"Host: x\r\n", b"Transfer-Encoding: chunked\r\n", b"[" * 3000, b"\xff", b'"', b"9" * 400]

    def one() -> int:
        request = bytearray(of.choice(seeds))
        for _ in range(of.randrange(1, 5)):
            at = of.randrange(len(request))
            if of.random() < 0.5:
                request[at] ^= 1 << of.randrange(8)
            else:
                request[at:at] = of.choice(pieces)
        with contextlib.suppress(OSError):
            connection = victim.connect(of.choice(["push", "web"]))
            connection.sendall(bytes(request))
            connection.close()
        return 1

    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        n += one()
    return n


def foreign_reports(victim: Victim) -> int:
    def one(idx: int) -> int:
        body = b'{"run":"none-%d","rank":1,"outcome":"written","path":"/x"}' % idx
        answer = victim.ask("push", head("/v1/snapshots", len(body), "Connection: close") + body)
        if not answer.startswith(b"HTTP/1.1 404"):
            raise AssertionError(answer)
        return 1

    return sum(one(idx) for idx in range(500))


def rebound_names(victim: Victim) -> int:
    for path in ("/", "/api/v1/status"):
        answer = victim.ask("web", f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
        if not answer.startswith(b"HTTP/1.1 403"):
            raise AssertionError(answer)
    origin = head("/v1/steps", len(RECORD), "Origin: http://evil.example", "Connection: close") + RECORD
    if not victim.ask("push", origin).startswith(b"HTTP/1.1 403"):
        raise AssertionError("a page of others pushed")
    return 3


def flood(victim: Victim, what: str, requests: List[bytes]) -> int:
    """Sends one request after another, a connection each, and reads the beginning of each answer."""
    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), victim.connect(what) as connection:
            connection.sendall(requests[n % len(requests)])
            connection.settimeout(1)
            connection.recv(65536)
        n += 1
    return n


def refused(victim: Victim, what: str, request: bytes, *statuses: int) -> int:
    """Checks that a request gets one of these answers."""
    answer = victim.ask(what, request)
    if not any(answer.startswith(b"HTTP/1.1 %d" % status) for status in statuses):
        raise AssertionError((request[:200], answer[:200]))
    return 1


def slow_heads(victim: Victim) -> int:
    opened = unread(victim, "push", [b"POST /v1/steps HTTP/1.1\r\n"], 150) + unread(victim, "web", [b"GET / HTTP/1.1\r\n"], 80)
    return drip(opened, b"a")


def odd_json(victim: Victim) -> int:
    keys = b"{" + b",".join(b'"k%d":1' % n for n in range(60_000)) + b"}"
    records = b"[" + b",".join(RECORD for _ in range(9_000)) + b"]"
    deep = [byte * 900_000 for byte in (b"[", b'{"a":')]
    numbers = [b'{"run":"evil","rank":0,"step":%s,"allocated_bytes":1}' % (b"9" * n) for n in (400, 400_000)]
    bodies = [keys, records, *(body[: MIB - 8] for body in deep), *numbers, b'"' * 1000, b"\\u" * 1000]
    return flood(victim, "push", [head("/v1/steps", len(body), "Connection: close") + body for body in bodies])


def packed_bombs(victim: Victim) -> int:
    zeros, members = gzip.compress(b"\0" * (64 * MIB)), gzip.compress(b"") * 5_000
    nested = gzip.compress(zeros)
    bodies = [zeros, members, nested, zeros[:-20] + bytes(20), b"\x1f\x8b\x08" + bytes(5_000)]
    requests = [head("/v1/steps", len(body), "Content-Encoding: gzip", "Connection: close") + body for body in bodies]
    return flood(victim, "push", requests)


def hostile_names(victim: Victim) -> int:
    names = ["a\nb", 'a"} 1\nup{x="', "\u202egnp.exe", "a\u200bb", "\ufeffa", "\x1b[2J", "x" * 60_000, "", "\u2066a\u2069", "a\x00b"]
    n = 0
    for name in names:
        body = json.dumps({"run": name, "rank": 0, "step": 1, "allocated_bytes": 1}).encode()
        n += refused(victim, "push", head("/v1/steps", len(body), "Connection: close") + body, 400, 413)
        body = json.dumps({"run": "good", "rank": 0, "step": 1, "allocated_bytes": 1, "device": name or "\n"}).encode()
        n += refused(victim, "push", head("/v1/steps", len(body), "Connection: close") + body, 400, 413)
    for path in ("/v1/runs/%0a/end", "/v1/runs/%e2%80%ae/end", "/v1/runs/%ff/end", "/v1/runs/..%2f..%2fa/end", "/v1/devices/%0d%0a/ack"):
        n += refused(victim, "push", head(path, 2, "Connection: close") + b"{}", 400, 404)
    return n


def many_ranks(victim: Victim) -> int:
    """Ranks and runs beyond every bound; those that are held stay."""
    bodies = [b'{"run":"evil","rank":%d,"world_size":1024,"step":1,"allocated_bytes":1}' % n for n in range(1024)]
    bodies += [b'{"run":"evil-%d","rank":0,"step":1,"allocated_bytes":1}' % n for n in range(1024)]
    batch = b"\n".join(bodies[:1024])
    requests = [head("/v1/steps", len(body), "Connection: close") + body for body in bodies]
    requests.append(head("/v1/steps", len(batch), "Connection: close").replace(b"json", b"x-ndjson") + batch)
    return flood(victim, "push", requests)


def half_closed(victim: Victim) -> int:
    def work() -> int:
        opened = []
        for what, request in (("push", head("/v1/steps", len(RECORD)) + RECORD), ("web", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")):
            for connection in unread(victim, what, [request, request[:-5], b""], 100):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                opened.append(connection)
        return close_all(opened)

    return again(work)


def pipelined(victim: Victim) -> int:
    body = b'{"run":"evil","rank":0,"step":1}'
    request = (head("/v1/steps", len(body)) + body) * 1000

    def work() -> int:
        return 1000 * close_all(unread(victim, "push", [request], 100))

    return again(work)


def odd_chunks(victim: Victim) -> int:
    chunked = b"POST /v1/steps HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    one = b"".join(b"1\r\n%c\r\n" % byte for byte in RECORD)
    bodies = [
        one + b"0\r\n\r\n",
        b"ffffffffffffffff\r\n" + RECORD,
        b"fffffffffffffffff\r\n" + RECORD,
        b"-1\r\n" + RECORD,
        b"5;" + b"e" * 100_000 + b"\r\n",
        b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"0" * 100_000 + b"1\r\n",
        b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n",
        b"5\n12345\n0\n\n",
    ]
    return flood(victim, "push", [chunked + body for body in bodies])


def smuggled(victim: Victim) -> int:
    """Requests that two servers could see differently: the one hidden inside is not carried out."""
    inner = b'{"run":"smuggled","rank":0,"step":1,"allocated_bytes":1}'
    hidden = head("/v1/steps", len(inner)) + inner
    heads = [
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: %d" % (len(hidden) + 5)],
        ["Content-Length: 4", "Content-Length: 5"],
        ["Content-Length: +4"],
        ["Content-Length: 0x4"],
        ["Content-Length: 4, 4"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding: xchunked"],
        [" Transfer-Encoding: chunked"],
        ["Host: b"],
    ]
    requests = [
        "\r\n".join(["POST /v1/nothing HTTP/1.1", "Host: a", "Content-Type: application/json", *lines, "", ""]).encode()
        + b"0\r\n\r\n"
        for lines in heads
    ]
    # Content-Length 5 covers the chunk, and what follows it would be a request of its own: it has to be one at the end.
    n = flood(victim, "push", [request + b"G" for request in requests])
    for lines in heads[:3] + heads[6:9]:
        request = "\r\n".join(["POST /v1/steps HTTP/1.1", "Host: a", "Content-Type: application/json", *lines, "", ""]).encode()
        with contextlib.suppress(OSError), victim.connect() as connection:
            connection.sendall(request + b"%x\r\n" % len(hidden) + hidden + b"\r\n0\r\n\r\n")
            connection.settimeout(1)
            connection.recv(65536)
        n += 1
    metrics = victim.ask("web", b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    if b"smuggled" in metrics:
        raise AssertionError("a hidden request was carried out")
    return n


def acknowledged(victim: Victim) -> int:
    body = b'{"rank":%d,"kind":"HIGH_PRESSURE","for_seconds":9,"reason":"' + b"r" * 200 + b'"}'
    bodies = [body % rank for rank in range(16)]
    requests = [head(f"/v1/runs/{run}/ack", len(each), "Connection: close") + each for run in ("good", "none") for each in bodies]
    asks = [b'{"rank":%d}' % rank for rank in range(16)]
    requests += [head("/v1/runs/none/snapshot", len(each), "Connection: close") + each for each in asks]
    return flood(victim, "push", requests)


def hostile_states(victim: Victim) -> int:
    """Starts exporters on pipes, links and directories; each listens, and stops within its grace."""
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pipe", "link", "directory", "zeros"):
            state = os.path.join(folder, name)
            if name == "pipe":
                os.mkfifo(state)
            elif name == "link":
                os.symlink("/dev/zero", state)
            elif name == "directory":
                os.mkdir(state)
            else:
                with open(state, "wb") as file:
                    file.truncate(1 << 40)
            addresses = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"]
            command = [victim.binary, "serve", "--no-nvml", *addresses, "--state.file", state]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            for line in process.stderr or []:
                if "ready" in line or "listening" in line:
                    break
            process.terminate()
            process.communicate(timeout=20)
            n += 1
    return n


def killed_states(victim: Victim) -> int:
    """Kills exporters over one state: each resumes it, until two ended before its ranks were judged."""
    record = b'{"run":"r","rank":0,"step":1,"allocated_bytes":1}'
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        state = os.path.join(folder, "state")
        aside = state + ".set-aside"
        for is_killed in (False, True, True, True):
            addresses = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"]
            command = [victim.binary, "serve", "--no-nvml", "--log.format", "json", *addresses, "--state.file", state]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            for line in process.stderr or []:
                fields = json.loads(line)["fields"]
                if fields["message"] == "listening" and fields["what"] == "push" and not is_killed:
                    asked(int(fields["address"].rpartition(":")[2]), False, head("/v1/steps", len(record), "Connection: close") + record)
                if fields["message"] == "started":
                    break
            n_aside = int(os.path.exists(aside))
            assert n_aside == int(n == 3), f"the state is {'' if n_aside else 'not '}set aside after {n} exporters"
            process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
            process.communicate(timeout=20)
            n += 1
    return n


def other_exporter(binary: str, *arguments: str) -> "subprocess.Popen[str]":
    """Starts another exporter on free ports, and waits until it has started or ended."""
    addresses = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"]
    command = [binary, "serve", "--no-nvml", "--log.format", "json", *addresses, *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    logged(process, "started")
    return process


def logged(process: "subprocess.Popen[str]", message: str) -> bool:
    """Reads a process's log to the line of a message; False if it ends before."""
    for line in process.stderr or []:
        if line.startswith("{") and json.loads(line)["fields"].get("message") == message:
            return True
    return False


def locked_sockets(victim: Victim) -> int:
    """Holds the lock of a push socket, as a container can through a read-only mount: exporters serve there nevertheless."""
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "push.sock")
        pathlib.Path(f"{path}.lock").touch(0o644)
        with open(f"{path}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for _ in range(3):  # the second and third find the socket of one that was killed
                process = other_exporter(victim.binary, "--push.unix-socket", path)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(path)
                    connection.sendall(head("/v1/steps", len(RECORD), "Connection: close") + RECORD)
                    assert connection.recv(64).startswith(b"HTTP/1.1 200"), "the socket does not take a push"
                process.kill()
                process.communicate()
                n += 1
    return n


def shared_states(victim: Victim) -> int:
    """Starts a second exporter on a state file: it keeps none while the first lives, and takes it over from one that is killed."""
    n = 0
    with tempfile.TemporaryDirectory() as folder:
        state = os.path.join(folder, "state")
        first = other_exporter(victim.binary, "--state.file", state)
        for _ in range(3):
            second = other_exporter(victim.binary, "--state.file", state)
            first.kill()
            first.communicate()
            began = time.monotonic()
            assert logged(second, "this exporter keeps the state from now on"), "the second exporter ended"
            assert time.monotonic() - began < 10, "it took over late"
            first = second
            n += 1
        first.terminate()
        first.communicate(timeout=20)
    return n


def unusable_places(victim: Victim) -> int:
    """Starts exporters where nothing can be written or listened on: strict ones end, sidecars serve."""
    n = 0
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        file = os.path.join(folder, "file")
        pathlib.Path(file).touch()
        below = f"{file}/{'d/' * 1000}x"
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        places = [("summary.dir", file), ("record.directory", below), ("state.file", below), ("push.unix-socket", file), ("push.listen-address", address)]
        for setting, value in places:
            strict = other_exporter(victim.binary, f"--{setting}", value) if setting != "push.listen-address" else None
            arguments = ["--no-nvml", "--web.listen-address", "127.0.0.1:0", f"--{setting}", value]
            ended = subprocess.run([victim.binary, "check", *arguments], capture_output=True, text=True, timeout=20)
            assert ended.returncode == 1 and f"{setting}: " in ended.stderr, f"check: {ended.stderr[:300]}"
            if strict:
                assert strict.wait(20) == 1, f"it started with {setting}"
                strict.communicate()
            arguments = ["serve", "--sidecar", "--log.format", "json", *arguments]
            sidecar = subprocess.Popen([victim.binary, *arguments], stderr=subprocess.PIPE, text=True)
            assert logged(sidecar, "started"), f"a sidecar does not start with {setting}"
            sidecar.terminate()
            sidecar.communicate(timeout=20)
            n += 1
    return n


def waiting_listeners(victim: Victim) -> int:
    """Listens on the default push address and waits for tokens: commands and the client send none there."""
    caught: List[bytes] = []

    def wait(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(5)
                caught.append(connection.recv(65536))
                connection.close()

    client = "import stepmem; stepmem.step_end(1); stepmem.flush(3)"
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 9478)) as listener:
        threading.Thread(target=wait, args=(listener,), daemon=True).start()
        token = os.path.join(folder, "token")
        pathlib.Path(token).write_text("secret-of-the-admin")
        ask = ["--run", "good", "--rank", "0"]
        reports = [["ack", *ask, "--kind", "HIGH_PRESSURE", "--for", "1m", "--reason", "r"], ["end", "--run", "good"], ["release", "--for", "1m"]]
        for command in reports:
            ended = subprocess.run([victim.binary, *command, "--token-file", token], capture_output=True, text=True, timeout=20)
            assert ended.returncode != 0 and "--" in ended.stderr, f"{command[0]}: {ended.stderr}"
        environment = {**os.environ, "STEPMEM_PUSH_TOKEN_FILE": token, "PYTHONPATH": str(pathlib.Path(__file__).parents[2] / "python")}
        ended = subprocess.run([sys.executable, "-c", client], env=environment, capture_output=True, text=True, timeout=60)
        assert ended.stderr.count("STEPMEM_PUSH_URL must name") == 1, ended.stderr
        assert not caught, f"they sent {caught[:3]}"
    return len(reports) + 1


def endless_prometheus(victim: Victim) -> int:
    """Answers `status --prometheus` without end; the command ends, within memory for the longest answer that it reads."""
    beginning = b'{"status":"success","data":{"resultType":"vector","result":['
    series = b'{"metric":{"__name__":"stepmem_rank_info","run":"r","rank":"1"},"value":[1,"1"]},' * 700

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + beginning)
                    while True:
                        connection.sendall(series)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen([victim.binary, "status", "--prometheus", url, "--run", "r"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 1, f"it ended with {process.returncode}"
        assert 1024 * usage.ru_maxrss <= 256 * MIB, f"it took {usage.ru_maxrss / 1024:.0f} MiB"
    return 1


def full_prometheus(victim: Victim) -> int:
    """Answers each query of `status --prometheus` with many ranks, then many launches; the command shows them, within memory that grows with their number."""
    now = time.time()

    def body(name: str) -> bytes:
        series = b",".join(
            b'{"metric":{"run":"r","namespace":"n","pod":"pod-%d","rank":"%d","launch":"%d"},"value":[%f,"1"]}'
            % ((k, k, 0, now) if name == "ranks" else (0, 0, k, now - k))
            for k in range(16_384)
        )
        return b'{"status":"success","data":{"resultType":"vector","result":[' + series + b"]}}"

    def serve(listener: socket.socket, answer: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer)
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    connection.recv(65536)
                    connection.sendall(head + answer)

    for name in ("ranks", "launches"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener, body(name)), daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            process = subprocess.Popen([victim.binary, "status", "--prometheus", url, "--run", "r"], stdout=subprocess.PIPE)
            shown = process.stdout.read() if process.stdout else b""
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and b"Run r" in shown, f"{name}: it ended with {process.returncode}: {shown[:300]!r}"
        assert 1024 * usage.ru_maxrss <= 256 * MIB, f"{name}: it took {usage.ru_maxrss / 1024:.0f} MiB"
        assert usage.ru_utime <= 30, f"{name}: it computed for {usage.ru_utime:.1f} s"
    return 2


def steering_texts(victim: Victim) -> int:
    """Pushes texts that steer a terminal in every place; returns how many, of which none is in an answer or a page."""
    steering = ["\x1b[2J", "\x9b2J", "\u202e", "\u2066", "\x00", "\r", "\x07", "\x08", "\u200b", "x" * 100_000 + "\x1b"]
    kinds: List[Tuple[str, Dict[str, Any]]] = [
        ("/v1/steps", {"run": "s", "rank": 0, "step": 1, "allocated_bytes": 1, "device": "d", "phase": "train", "launch": "l"}),
        ("/v1/snapshots", {"run": "good", "rank": 0, "outcome": "written", "path": "p", "file": "f", "id": "i"}),
        ("/v1/snapshots", {"run": "good", "rank": 0, "outcome": "failed", "error": "e"}),
        ("/v1/holders", {"run": "good", "rank": 0, "outcome": "failed", "error": "e", "id": "i"}),
        ("/v1/runs/none/end", {"outcome": "failed", "error_type": "t", "error_message": "m"}),
        ("/v1/runs/good/ack", {"rank": 0, "kind": "HIGH_PRESSURE", "for_seconds": 1, "reason": "r"}),
    ]
    n = 0
    for path, body in kinds:
        for key in [key for key, value in body.items() if isinstance(value, str)]:
            for text in steering:
                pushed = json.dumps({**body, key: "a" + text + "b"}).encode()
                check_plain(victim.ask("push", head(path, len(pushed), "Connection: close") + pushed), f"{path} {key}")
                n += 1
    for page in ("/api/v1/status", "/metrics", "/api/v1/runs/good/summary"):
        check_plain(victim.ask("web", f"GET {page} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()), page)
    return n


def check_plain(answer: bytes, what: str) -> None:
    """Checks that the body of an answer has no character that steers a terminal."""
    text = answer.partition(b"\r\n\r\n")[2].decode()
    raw = {c for c in text if c not in "\r\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert not raw, f"{what}: {sorted(map(ascii, raw))}"


def full_batches(victim: Victim) -> int:
    """Pushes as many valid records at once as a batch may have, from four connections."""
    first = itertools.count(1, 8192)

    def push(until: float) -> int:
        n = 0
        while time.monotonic() < until:
            begin = next(first)
            records = (b'{"run":"evil","rank":%d,"step":%d,"allocated_bytes":%d}' % (k % 4, begin + k, k) for k in range(8192))
            body = b"[" + b",".join(records) + b"]"
            with contextlib.suppress(OSError):
                n += victim.ask("push", head("/v1/steps", len(body), "Connection: close") + body).startswith(b"HTTP/1.1 200")
        return n

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        n = sum(pool.map(push, [time.monotonic() + SECONDS] * 4))
    assert n, "no batch was taken"
    return n


ATTACKS: List[Tuple[str, Callable[[Victim], int]]] = [
    ("batches of 8,192 valid records", full_batches),
    ("refusals of packed keys of 1 MiB, not read", unread_refusals),
    ("packed bodies without end, of 1 MiB", packed_without_end),
    ("plain bodies without end, of 16 KB and 1 MiB", plain_without_end),
    ("bodies of 1 KB byte by byte, on 250 connections", trickle),
    ("requests whose answers are not read", unread_answers),
    ("connections that send nothing, or half a head", silent_connections),
    ("connections beyond 60 file descriptors", no_descriptors),
    ("mutated requests", mutated_requests),
    ("reports about snapshots of ranks that are not held", foreign_reports),
    ("requests of pages of others", rebound_names),
    ("heads byte by byte, on 230 connections", slow_heads),
    ("JSON of many keys, records, brackets and digits", odd_json),
    ("gzip of 64 MiB of zeros, of many members, nested, cut off", packed_bombs),
    ("names that break lines, labels, paths and terminals", hostile_names),
    ("1,024 ranks and 1,024 runs of others, `--rank.max 64`", many_ranks),
    ("half-closed connections", half_closed),
    ("pipelined pushes whose answers are not read", pipelined),
    ("chunks of odd sizes, extensions and trailers", odd_chunks),
    ("heads that two servers read differently", smuggled),
    ("acknowledgments and requests for ranks of others", acknowledged),
    ("texts that steer terminals, in every field", steering_texts),
    ("exporters on a pipe, a link, a directory, a TiB of zeros", hostile_states),
    ("exporters killed while they resume a state", killed_states),
    ("locks of the push socket that others hold", locked_sockets),
    ("exporters on the state file of another, which is killed", shared_states),
    ("exporters where nothing can be written or listened on", unusable_places),
    ("listeners on the default address that wait for tokens", waiting_listeners),
    ("answers of Prometheus without end", endless_prometheus),
    ("16,384 ranks, and launches, in each answer of Prometheus", full_prometheus),
]

OF_FILES = (hostile_states, killed_states, locked_sockets, shared_states, unusable_places, waiting_listeners, endless_prometheus, full_prometheus)
"""Those that are about the start and the files of exporters, or about commands."""

TLS_ATTACKS: List[Tuple[str, Callable[[Victim], int]]] = [
    *((name, attack) for name, attack in ATTACKS if attack not in OF_FILES),
    ("greetings of 6 and 16 KB without end, on 500 connections", half_handshakes),
    ("records of 16 KB without end, on 500 connections", half_records),
]
"""Those that come over a connection, and those of TLS itself."""

ARGUMENTS: Dict[Callable[[Victim], int], List[str]] = {many_ranks: ["--rank.max", "64"]}
"""What the exporter is started with beside its defaults: a sidecar's bound where the attack is about a bound."""


def web_config(folder: str) -> str:
    """Makes a certificate; returns the path of a file that has the exporter's listeners speak TLS with it."""
    certificate, key = os.path.join(folder, "server.pem"), os.path.join(folder, "server.key")
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=victim"]
    subprocess.run(["openssl", "req", *kind, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    path = os.path.join(folder, "web.yaml")
    pathlib.Path(path).write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\n")
    return path


def attacked(binary: str, is_tls: bool, name: str, attack: Callable[[Victim], int]) -> "Tuple[str, bool]":
    """Returns the row of an attack, and whether it passed."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--state.file", os.path.join(folder, "state"), *ARGUMENTS.get(attack, [])]
        if is_tls:
            arguments += ["--web.config.file", web_config(folder)]
        victim = Victim(binary, is_tls, *arguments)
        before = victim.resident_max()
        try:
            count = attack(victim)
        finally:
            victim.end()
        resident = victim.resident_max()
        stopped = victim.stop()
    scrapes = sorted(victim.scrapes)
    # Without a scrape, nothing was measured, and nothing held.
    p99 = scrapes[int(len(scrapes) * 0.99)] if scrapes else float("inf")
    is_good = not victim.lost and resident <= RSS_MAX[is_tls] and p99 <= SCRAPE_MAX and stopped < 10
    cells = [
        name,
        f"{count:,}",
        f"{before / MIB:.1f} → {resident / MIB:.1f} MiB",
        f"{len(victim.lost)} of {victim.n_pushes:,}",
        f"{max(p99, 0) * 1000:.1f} ms",
        "held" if is_good else "**not held**",
    ]
    if victim.lost:
        print(victim.lost[:3], file=sys.stderr)
    return "| " + " | ".join(cells) + " |", is_good


def main() -> int:
    if sys.argv[1:2] == ["--push"]:
        push_ranks(int(sys.argv[2]), sys.argv[3] == "tls")
        return 0
    if sys.argv[1:2] == ["--scrape"]:
        scrape(int(sys.argv[2]), sys.argv[3] == "tls", int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("attack", nargs="*")
    arguments = parser.parse_args()
    rows = []
    is_good = True
    for is_tls in (False, True) if arguments.write else (arguments.tls,):
        title = "attack, over TLS" if is_tls else "attack"
        rows += [f"| {title} | count | resident | pushes lost | scrape p99 | |", "|---|---|---|---|---|---|"]
        for name, attack in TLS_ATTACKS if is_tls else ATTACKS:
            if arguments.attack and attack.__name__ not in arguments.attack:
                continue
            row, is_held = attacked(arguments.binary, is_tls, name, attack)
            print(row, flush=True)
            rows.append(row)
            is_good &= is_held
        rows.append("")
    if arguments.write:
        text = arguments.write.read_text()
        before, _, rest = text.partition("<!-- attacks -->\n")
        after = rest.partition("<!-- end of attacks -->")[2]
        arguments.write.write_text(f"{before}<!-- attacks -->\n" + "\n".join(rows) + f"<!-- end of attacks -->{after}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
