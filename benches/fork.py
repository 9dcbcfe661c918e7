#!/usr/bin/env python3
"""Measures what the client's idle threads cost a fork, which they leave before it from Python 3.12 on: forks of a process without the client and of one
that pushes to an exporter that accepts everything, in turn.

    python3 benches/fork.py [PYTHON]
"""

from __future__ import annotations

import pathlib
import socket
import statistics
import subprocess
import sys
import threading
from typing import List

ROOT = pathlib.Path(__file__).resolve().parent.parent

N_FORKS = 200
ROUNDS = 3

FORKS = f"""
import os, sys, time, warnings
warnings.simplefilter("ignore")
if len(sys.argv) > 1:
    import stepmem
    for n in range(1, 20):
        stepmem.step_end(n)
    assert stepmem.flush(60)
for n in range({N_FORKS}):
    time.sleep(0.02)
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(0)
    print(time.perf_counter() - began)
    os.waitpid(child, 0)
"""


def serve(listener: socket.socket) -> None:
    def answer(connection: socket.socket) -> None:
        while connection.recv(1 << 20):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def forks(python: str, port: int, arguments: List[str]) -> List[float]:
    environment = {"PYTHONPATH": str(ROOT / "python"), "STEPMEM_PUSH_URL": f"http://127.0.0.1:{port}", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([python, "-c", FORKS, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=300)
    return [float(line) for line in ended.stdout.split()]


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    alone: List[float] = []
    watched: List[float] = []
    for _ in range(ROUNDS):
        alone += forks(python, listener.getsockname()[1], [])
        watched += forks(python, listener.getsockname()[1], ["watched"])
    for name, seconds in (("without the client", alone), ("with the client", watched)):
        tenths = statistics.quantiles(seconds, n=100)
        print(f"{name}: median {tenths[49] * 1e3:.2f} ms, 95th percentile {tenths[94] * 1e3:.2f} ms, longest {max(seconds) * 1e3:.2f} ms")
    print(f"the client adds {1e3 * (statistics.median(watched) - statistics.median(alone)):.2f} ms to the median")


if __name__ == "__main__":
    main()
