"""Measures what the Python client takes of the processor time of a server that answers 2,000 calls a second.

A process calls a model of eight parts 2,000 times a second, without the client and with it, pushing to a listener that accepts all. Of both it
counts the processor time of the thread that calls, within the calls, and that of all other threads. The difference, per second, is what the client
takes of a server that such calls keep busy. The modules stand in for PyTorch's, and do nothing: with them no other time is in the figures.

    python3 benches/calls.py [--seconds 20]
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent

CALLS_PER_SECOND = 2000
SHARE_MAX = 0.005
PAIRS = 5

SERVER = """
import json, sys, threading, time
import torch, torch.optim.optimizer
from torch._modules import Module
class Part(Module):
    def forward(self): pass
class Model(Module):
    def __init__(self): self.parts, self._parameters = [Part() for _ in range(8)], {"weight": 0}
    def forward(self):
        for part in self.parts: part()
model = Model()
if len(sys.argv) > 3:
    import stepmem; stepmem.auto()
for _ in range(100): model(); time.sleep(0.01)  # until it is seen
n, per_second = int(sys.argv[1]), float(sys.argv[2])
clock, work = time.perf_counter, 0
began, of_all, of_thread = clock(), time.process_time_ns(), time.thread_time_ns()
for idx in range(n):
    before = time.thread_time_ns()
    model()
    work += time.thread_time_ns() - before
    time.sleep(0.0001)  # it waits for a request, and then works
    while clock() < began + (idx + 1) / per_second:
        pass
took = clock() - began
others = time.process_time_ns() - of_all - (time.thread_time_ns() - of_thread)
print(json.dumps([work / 1e9 / took, others / 1e9 / took, "_compiled_call_impl" in vars(Model)]))
"""


class Listener(http.server.BaseHTTPRequestHandler):
    """Accepts all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers a push."""
        self.rfile.read(int(self.headers["content-length"]))
        answer = b'{"accepted":1,"actions":[]}'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""


def measured(url: str, seconds: float, *with_client: str) -> "list[float]":
    """Returns processor time per second: within the calls, and of other threads; and whether the calls were counted."""
    paths = [str(ROOT / "python/tests/stub"), str(ROOT / "python")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "STEPMEM_PUSH_URL": url}
    command = [sys.executable, "-c", SERVER, str(int(seconds * CALLS_PER_SECOND)), str(CALLS_PER_SECOND), *with_client]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    pairs = [(measured(url, seconds / PAIRS), measured(url, seconds / PAIRS, "client")) for _ in range(PAIRS)]
    if not all(watched[2] for _, watched in pairs):
        raise SystemExit("the calls were not counted")
    in_calls, others = (statistics.median(watched[idx] - bare[idx] for bare, watched in pairs) for idx in (0, 1))
    share = in_calls + others
    print(f"a server with {CALLS_PER_SECOND:,} calls a second: the client takes {100 * share:.2f} % of its processor time")
    print(f"  in the calls {100 * in_calls:.2f} % ({1e6 * in_calls / CALLS_PER_SECOND:.2f} µs each), on threads of its own {100 * others:.2f} %")
    print(f"  target: at most {100 * SHARE_MAX:.1f} %: {'PASS' if share <= SHARE_MAX else 'MISS'}")


if __name__ == "__main__":
    main()
