#!/usr/bin/env python3
"""Attacks an exporter over loopback, a few seconds each, while eight ranks push and a scraper reads.

    run.py BINARY [--write docs/security.md] [ATTACK…]

An attack passes if no push of the ranks was lost, the exporter's resident memory stayed within 16 MiB, and 99 of 100 scrapes took at
most 10 ms beyond what the scheduler kept exporter and scraper waiting. Exits with 1 if one did not.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, Dict, Iterator, List, Optional, Tuple

MIB = 1 << 20
SECONDS = 5.0
RSS_MAX = 16 * MIB
SCRAPE_MAX = 0.010
RECORD = b'{"run":"evil","rank":0,"step":1,"allocated_bytes":1}'


def head(path: str, n_bytes: int, *lines: str) -> bytes:
    fields = ["Host: test", "Content-Type: application/json", f"Content-Length: {n_bytes}", *lines]
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode()


class Victim:
    """An exporter with default settings, eight ranks that push to it, and a scraper."""

    def __init__(self, binary: str, *arguments: str) -> None:
        addresses = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [binary, "serve", "--no-nvml", "--log.format", "json", *addresses, *arguments], stderr=subprocess.PIPE, text=True
        )
        self.ports: Dict[str, int] = {}
        is_up = threading.Event()
        threading.Thread(target=self._read, args=(is_up,), daemon=True).start()
        if not is_up.wait(30):
            raise RuntimeError("the exporter did not start")
        self._is_over = threading.Event()
        self.n_pushes = 0
        self.lost: List[str] = []
        self.scrapes: List[float] = []
        self._threads = [threading.Thread(target=each) for each in (self._push, self._scrape)]
        for thread in self._threads:
            thread.start()
        time.sleep(1)

    def _read(self, is_up: threading.Event) -> None:
        for line in self.process.stderr or []:
            fields = json.loads(line).get("fields", {}) if line.startswith("{") else {}
            if fields.get("message") == "listening":
                self.ports[fields["what"]] = int(fields["address"].rsplit(":", 1)[1])
            if len(self.ports) == 2:
                is_up.set()

    def connect(self, what: str = "push") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[what]), 10)

    def ask(self, what: str, request: bytes) -> bytes:
        with self.connect(what) as connection:
            connection.sendall(request)
            answer = b""
            while True:
                part = connection.recv(65536)
                if not part:
                    return answer
                answer += part

    def _push(self) -> None:
        step = 0
        while not self._is_over.wait(0.02):
            step += 1
            for rank in range(8):
                body = b'{"run":"good","rank":%d,"step":%d,"allocated_bytes":1}' % (rank, step)
                self.n_pushes += 1
                try:
                    answer = self.ask("push", head("/v1/steps", len(body), "Connection: close") + body)
                except OSError as error:
                    answer = repr(error).encode()
                if not answer.startswith(b"HTTP/1.1 200"):
                    self.lost.append(answer[:200].decode("utf-8", "replace"))

    def _scrape(self) -> None:
        while not self._is_over.wait(0.05):
            began, waited = time.monotonic(), self._starved()
            try:
                answer = self.ask("web", b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            except OSError as error:
                answer = repr(error).encode()
            took = time.monotonic() - began - (self._starved() - waited)
            self.scrapes.append(took if answer.startswith(b"HTTP/1.1 200") else float("inf"))

    def _starved(self) -> float:
        """Seconds for which the exporter's main thread and this one were ready without a processor."""
        paths = [f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat", "/proc/thread-self/schedstat"]
        return sum(int(pathlib.Path(path).read_text().split()[1]) for path in paths) / 1e9

    def resident_max(self) -> int:
        """The most resident memory so far, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

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


def trickle(victim: Victim) -> int:
    opened = unread(victim, "push", [head("/v1/steps", 1000)], 250)
    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for connection in opened:
            with contextlib.suppress(OSError):
                n += connection.send(b" ")
        time.sleep(0.1)
    close_all(opened)
    return n


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
        return close_all(unread(victim, "push", [b""], 300)) + close_all(unread(victim, "web", [b"GET / HTTP/1.1\r\n"], 300))

    return again(work)


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


ATTACKS: List[Tuple[str, Callable[[Victim], int]]] = [
    ("refusals of packed keys of 1 MiB, not read", unread_refusals),
    ("packed bodies without end, of 1 MiB", packed_without_end),
    ("plain bodies without end, of 16 KB and 1 MiB", plain_without_end),
    ("bodies of 1 KB byte by byte, on 250 connections", trickle),
    ("requests whose answers are not read", unread_answers),
    ("connections that say nothing, or half a head", silent_connections),
    ("connections beyond 60 file descriptors", no_descriptors),
    ("mutated requests", mutated_requests),
    ("reports about snapshots of ranks that are not held", foreign_reports),
    ("requests of pages of others", rebound_names),
]


def attacked(binary: str, name: str, attack: Callable[[Victim], int]) -> "Tuple[str, bool]":
    """Returns the row of an attack, and whether it passed."""
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(binary, "--state.file", os.path.join(folder, "state"))
        before = victim.resident_max()
        try:
            count: Optional[int] = attack(victim)
        finally:
            victim.end()
        resident = victim.resident_max()
        stopped = victim.stop()
    scrapes = sorted(victim.scrapes)
    p99 = scrapes[min(len(scrapes) - 1, int(len(scrapes) * 0.99))]
    is_good = not victim.lost and resident <= RSS_MAX and p99 <= SCRAPE_MAX and stopped < 10
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("attack", nargs="*")
    arguments = parser.parse_args()
    rows = ["| attack | count | resident | pushes lost | scrape p99 | |", "|---|---|---|---|---|---|"]
    is_good = True
    for name, attack in ATTACKS:
        if arguments.attack and attack.__name__ not in arguments.attack:
            continue
        row, is_held = attacked(arguments.binary, name, attack)
        print(row, flush=True)
        rows.append(row)
        is_good &= is_held
    if arguments.write:
        text = arguments.write.read_text()
        before, _, rest = text.partition("<!-- attacks -->\n")
        after = rest.partition("<!-- end of attacks -->")[2]
        arguments.write.write_text(f"{before}<!-- attacks -->\n" + "\n".join(rows) + f"\n<!-- end of attacks -->{after}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
