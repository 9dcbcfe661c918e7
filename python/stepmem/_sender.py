"""The sender: one daemon thread that takes records from the ring and pushes them in batches. Training never waits for
it, and it waits for nothing longer than it says."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Tuple

from ._connection import Connection
from ._settings import Identity, Settings
from ._warn import warn_once

Ring = Deque[bytes]

RECORD = struct.Struct("<dfqqBB5q2i2q")
"""A record in the ring: time, seconds of the step, sequence number, step, source, phase, and the readers' figures."""

RING_CAPACITY = 8192
"""How many records wait at most, 128 bytes each; the oldest gives way and is counted."""

BATCH_RECORDS_MAX = 256
"""How many records one request holds at most: 120 KiB."""

LETTERS_CAPACITY = 32
"""How many requests beside steps wait at most."""

POLL_SECONDS = 0.1
"""How often the thread looks into the ring."""

SEND_EVERY = 1.0
"""A batch that is not full is sent after this time, in seconds."""

ANSWER_WITHIN = 5.0
"""How long one request may take, in seconds."""

BACKOFF_SECONDS = (1.0, 30.0)
"""The first and the longest pause after a failure; in between it doubles."""

ENCODE_AT_ONCE = 16
"""After so many records the thread lets training go first."""

PHASES = ("train", "eval", "checkpoint")
FIELDS = (
    "allocated_bytes",
    "peak_allocated_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "inactive_split_bytes",
    "alloc_retries",
    "ooms",
    "total_bytes",
    "free_bytes",
)


class Sender:
    """Pushes what the ring holds. Everything but `run` belongs to the training thread."""

    def __init__(self, settings: Settings, identity: Identity, asked: Callable[[Any], None]) -> None:
        self.ring: Ring = deque(maxlen=RING_CAPACITY)
        self._letters: Deque[Tuple[str, bytes]] = deque(maxlen=LETTERS_CAPACITY)
        self._identity = identity
        self._asked = asked
        self._connection = Connection(settings)
        self._sources: List[str] = []
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._flushed = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="stepmem", daemon=True)
        # What follows belongs to the thread.
        self._pending: List[bytes] = []
        self._batch_max = BATCH_RECORDS_MAX
        self._n_taken = 0
        self._n_lost = 0
        self._n_dropped = 0
        self._n_failures = 0
        self._sent_at = 0.0
        self._not_before = 0.0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def add_source(self, device: str) -> int:
        """What every record about `device` begins with; its number stands in the records."""
        who = self._identity
        fields: Dict[str, object] = {
            "run": who.run,
            "attempt": who.attempt,
            "rank": who.rank,
            "local_rank": who.local_rank,
            "world_size": who.world_size,
            "node_rank": who.node_rank,
            "device": device,
            "pid": os.getpid(),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        self._sources.append(json.dumps(known)[:-1])
        return len(self._sources) - 1

    def add_letter(self, path: str, body: Dict[str, object]) -> None:
        """Has something pushed beside steps."""
        about = {"run": self._identity.run, "rank": self._identity.rank}
        known = {name: value for name, value in {**about, **body}.items() if value is not None}
        self._letters.append((path, json.dumps(known).encode()))

    def add_end(self, outcome: str) -> None:
        """Has the end of this rank pushed, after its last records."""
        name = "".join(f"%{byte:02X}" for byte in self._identity.run.encode())
        body = json.dumps({"rank": self._identity.rank, "outcome": outcome})
        self._letters.append((f"/v1/runs/{name}/end", body.encode()))

    def flush(self, seconds: float) -> bool:
        """Waits until nothing is left to push, at most so long; whether nothing was."""
        self._flushed.clear()
        self._deadline = time.monotonic() + seconds
        self._wake.set()
        return self._flushed.wait(seconds)

    def stop(self, seconds: float) -> None:
        """Has the rest pushed and the thread end, and waits for that at most so long."""
        self._deadline = time.monotonic() + seconds
        self._stop.set()
        self._wake.set()
        self._thread.join(seconds)

    def abandon(self) -> None:
        """In a forked child: closes the copy of the connection, which is the parent's."""
        self._connection.close()

    def _run(self) -> None:
        try:
            # Signals are for the program's own threads.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            self._loop()
        except Exception as error:
            warn_once("sender", f"nothing is pushed from now on: {error!r}")

    def _loop(self) -> None:
        while True:
            is_asked = self._wake.wait(POLL_SECONDS)
            is_last = self._stop.is_set()
            now = time.monotonic()
            if is_asked or is_last:
                self._wake.clear()
                self._round(self._deadline, True)
            elif now >= self._not_before:
                is_full = len(self.ring) >= BATCH_RECORDS_MAX
                if is_full or (self._is_left() and now - self._sent_at >= SEND_EVERY):
                    self._round(now + ANSWER_WITHIN, False)
            if not self._is_left():
                self._flushed.set()
            if is_last:
                self._connection.close()
                return

    def _is_left(self) -> bool:
        return bool(self.ring or self._pending or self._letters)

    def _round(self, deadline: float, is_urgent: bool) -> None:
        """Pushes batches until the ring holds little, or the exporter does not take one."""
        while True:
            if not self._pending:
                self._take()
            if self._pending:
                if not self._push(deadline):
                    return
            elif self._letters:
                path, body = self._letters[0]
                if not self._deliver(path, body, "application/json", deadline):
                    return
                self._letters.popleft()
            if not (self._letters or self._pending or len(self.ring) >= (1 if is_urgent else BATCH_RECORDS_MAX)):
                return
            if time.monotonic() >= deadline and is_urgent:
                return
            deadline = deadline if is_urgent else time.monotonic() + ANSWER_WITHIN

    def _take(self) -> None:
        """Takes a batch out of the ring, and learns from the numbers of its records how many gave way."""
        pending = self._pending
        while len(pending) < self._batch_max:
            try:
                pending.append(self.ring.popleft())
            except IndexError:
                break
        if pending:
            self._n_taken += len(pending)
            self._n_dropped = RECORD.unpack(pending[-1])[2] + 1 - self._n_taken

    def _push(self, deadline: float) -> bool:
        """Pushes the pending batch; whether it is done with."""
        n_records = 0
        while n_records != min(len(self._pending), self._batch_max):  # again when it was cut as too large
            n_records = min(len(self._pending), self._batch_max)
            body = self._encode(self._pending[:n_records])
            if self._deliver("/v1/steps", body, "application/x-ndjson", deadline):
                del self._pending[:n_records]
                return True
        if len(self.ring) == RING_CAPACITY:
            # These are the oldest.
            self._n_lost += len(self._pending)
            self._pending = []
        return False

    def _deliver(self, path: str, body: bytes, kind: str, deadline: float) -> bool:
        """Sends one request; whether it is done with, taken or refused for good."""
        try:
            answer = self._connection.post(path, body, kind, deadline)
        except (OSError, ValueError) as error:
            warn_once(
                "absent",
                f"no exporter takes pushes at {self._connection.target} ({error}); training goes on, and so do attempts",
            )
            self._back_off(0.0)
            return False
        if answer.status == 200:
            self._n_failures = 0
            self._sent_at = time.monotonic()
            if path == "/v1/steps" and b'"actions":[]' not in answer.body:
                self._act(answer.body)
            return True
        if answer.status in (408, 429, 500, 502, 503, 504):
            self._back_off(answer.retry_after)
            return False
        if answer.status == 413 and path == "/v1/steps" and self._batch_max > 1:
            self._batch_max = max(1, min(len(self._pending), self._batch_max) // 2)
            return False
        warn_once(
            f"status {answer.status}",
            f"the exporter at {self._connection.target} refuses with status {answer.status}: "
            + answer.body[:400].decode("utf-8", "replace"),
        )
        if path == "/v1/steps":
            self._n_lost += min(len(self._pending), self._batch_max)
        if answer.status in (401, 403, 404):
            self._back_off(BACKOFF_SECONDS[1])
        return True

    def _back_off(self, at_least: float) -> None:
        first, longest = BACKOFF_SECONDS
        pause = min(longest, first * 2.0 ** min(self._n_failures, 16))
        self._n_failures += 1
        # Ranks that failed together do not come back together.
        jitter = 0.75 + 0.5 * os.urandom(1)[0] / 255
        self._not_before = time.monotonic() + max(min(at_least, 60.0), pause * jitter)

    def _act(self, body: bytes) -> None:
        try:
            for action in json.loads(body).get("actions", []):
                self._asked(action)
        except Exception as error:
            warn_once("actions", f"an answer of the exporter makes no sense: {error!r}")

    def _encode(self, records: List[bytes]) -> bytes:
        """Records as JSON lines."""
        lines: List[str] = []
        dropped = max(0, self._n_dropped) + self._n_lost
        for record in records:
            time_, seconds, _, step, source, phase, *figures = RECORD.unpack(record)
            line = f'{self._sources[source]}, "step": {step}, "time": {time_:.6f}, "dropped_records": {dropped}'
            if seconds >= 0:
                line += f', "step_seconds": {seconds:.6f}'
            if phase:
                line += f', "phase": "{PHASES[phase]}"'
            for name, value in zip(FIELDS, figures):
                if value >= 0:
                    line += f', "{name}": {value}'
            lines.append(line + "}\n")
            if len(lines) % ENCODE_AT_ONCE == 0:
                time.sleep(0)
        return "".join(lines).encode()
