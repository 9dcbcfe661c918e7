"""Starts a program on free loopback ports and makes sure that it ends when this process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

START_SECONDS_MAX = 300
"""How long a program may take until it listens."""

START_ATTEMPTS_MAX = 3
"""Attempts to start a program that ends at once, each on other ports."""

STOP_SECONDS_MAX = 300
"""How long a program may take to stop on SIGTERM before it is killed."""

POLL_SECONDS = 0.02
"""Pause between two looks at a condition."""

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """A check failed; the message is for the reader of the test's output."""


def end_on_sigterm():
    """Turns SIGTERM into an exit that runs every `finally`, so that no child is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_ports(n_ports):
    """Picks TCP ports of 127.0.0.1 that are free at the moment."""
    sockets = []
    try:
        for _ in range(n_ports):
            sockets.append(socket.socket())
            sockets[-1].bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def accepts(port):
    """Whether something accepts connections on this loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(condition, deadline_seconds, explain):
    """Polls `condition` until it is truthy and returns its value; raises `explain()` at the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise Failure(explain())
        time.sleep(POLL_SECONDS)


class Child:
    """A running program; its stderr, and unless asked for its stdout, go to `log_path`.

    Use it in a `with`. If this process is killed, the kernel kills the child too.
    """

    def __init__(self, argv, log_path, stdout=None, env=None):
        self.name = os.path.basename(str(argv[0]))
        self.log_path = log_path
        with open(log_path, "ab") as log:
            try:
                self.process = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout or log,
                    stderr=log,
                    env=env,
                    preexec_fn=_die_with_parent,
                )
            except FileNotFoundError:
                raise Failure(f"no program {argv[0]} (tests/peers/install.sh installs the third-party ones)") from None
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def has_ended(self):
        """Whether the program is no longer running."""
        return self.process.poll() is not None

    def log_tail(self, n_lines=20):
        """The last lines of the log, for a message."""
        with open(self.log_path, errors="replace") as log:
            return "".join(log.readlines()[-n_lines:]) or "(its log is empty)"

    def stop(self):
        """Ends the program: SIGTERM, then SIGKILL after `STOP_SECONDS_MAX`. Returns its exit status."""
        if not self.has_ended():
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def start_listening(argv_of, n_ports, log_path, is_ready=None, stdout=None):
    """Starts `argv_of(*ports)` on free ports and waits until it is ready; returns (Child, ports).

    Ready means that every port accepts, and then that `is_ready(*ports)` is true. Another process may
    take a port between the choice and the start, so a program that ends at once is tried on other ports.
    """
    for _ in range(START_ATTEMPTS_MAX):
        ports = free_ports(n_ports)
        child = Child(argv_of(*ports), log_path, stdout)
        if _became_ready(child, ports, is_ready):
            return child, ports
    raise Failure(f"{child.name} ended with status {child.process.returncode} at once:\n{child.log_tail()}")


def _became_ready(child, ports, is_ready):
    """Waits until the child is ready or has ended; returns whether it is ready. Stops it on a timeout."""

    def is_settled():
        return child.has_ended() or (all(map(accepts, ports)) and (is_ready is None or is_ready(*ports)))

    def explain():
        return f"{child.name} was not ready in {START_SECONDS_MAX:.0f} s:\n{child.log_tail()}"

    try:
        wait_until(is_settled, START_SECONDS_MAX, explain)
    except BaseException:
        child.stop()
        raise
    return not child.has_ended()


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
