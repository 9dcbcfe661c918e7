"""The sender: a daemon thread that takes records from the ring and pushes them in batches.

The training thread never waits for it except in `flush` and `stop`. Each of its own waits has a limit.
"""

from __future__ import annotations

import enum
import os
import time
from _thread import RLock
from collections import deque
from typing import Callable, Deque, List, Tuple, Union

from ._connection import Answer, Connection, UntrustedTarget
from ._process import Process
from ._procfs import name_own_thread
from ._settings import Settings, Target
from ._threads import Event, Thread
from ._warn import inform_once, printable, warn_once
from ._wire import (
    JSON_LINES,
    STEPS_PATH,
    CheckpointRequest,
    Encoder,
    End,
    HeapScanRequest,
    Held,
    HoldersResult,
    MallocRequest,
    Request,
    SnapshotRequest,
    SnapshotResult,
    decode_checkpoint_requests,
    decode_heap_scan_requests,
    decode_malloc_requests,
    decode_snapshot_requests,
    sequence_number,
    unknown_key,
)

Ring = Deque[bytes]
"""Packed records, oldest first. A full ring evicts its oldest record when a new one is appended."""

Action = Union[SnapshotRequest, HeapScanRequest, MallocRequest, CheckpointRequest]
"""A request of the exporter, in its answer to a push."""

RING_CAPACITY = 8192
"""Records in the ring, at most; 259 bytes each. Evicted ones are counted and the count is pushed."""

BATCH_RECORDS_MAX = 256
"""Records in one request, at most: 120 KiB."""

CONTROL_CAPACITY = 32
"""Waiting control requests (ends and results), at most. The oldest is evicted."""

POLL_SECONDS = 0.1
"""Time between two checks of the ring while records may be due."""

SEND_EVERY = 1.0
"""Seconds after which a batch is sent even if it is not full…"""

SEND_OF_AGE = 1 / 3
"""…and earlier after this share of the time since the first step: requests of the exporter arrive before a short program ends."""

ANSWER_WITHIN = 5.0
"""Deadline of one request, in seconds from its start."""

BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause after a failure, in seconds; it doubles with each failure."""

RETRY_AFTER_MAX = 60.0
"""Longest `Retry-After` that is followed, in seconds."""

LINES_PER_YIELD = 128
"""Records after whose encoding, two milliseconds, the thread yields to the training thread."""

UNPACKED_SHARE = 0.8
"""The thread reads the ring again when this share of the steps that may wait for it does, at the rate of the last ones."""

RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
"""Statuses after which the same request is sent again."""

HELD_STATUS = 409
"""Status of a push by a rank that another live process pushes for."""

RENAMES_MAX = 8
"""Other names that a process takes for its run, at most."""

REJECTED_STATUSES = (401, 403, 404)
"""Statuses that every request of this process would get, so the next is sent after the longest pause."""


class Delivery(enum.Enum):
    """The result of sending one request."""

    ACCEPTED = 1
    REFUSED = 2
    """The exporter will not accept this request."""
    TOO_LARGE = 3
    """The exporter may accept fewer records."""
    RETRY = 4
    """The exporter did not answer, or is busy."""
    ENCODE_AGAIN = 5
    """The exporter will accept this request in another encoding."""


class Backoff:
    """Exponential backoff with jitter."""

    def __init__(self) -> None:
        self._n_failures = 0
        self.ends_at = 0.0
        """Time from which to send again, on the monotonic clock."""

    def is_over(self, now: float) -> bool:
        """Returns whether to send again at `now`, on the monotonic clock."""
        return now >= self.ends_at

    def reset(self) -> None:
        """Makes the next pause the shortest one."""
        self._n_failures = 0

    def fail(self, at_least: float = 0.0) -> None:
        """Starts the next pause, of at least `at_least` seconds."""
        first, longest = BACKOFF_SECONDS
        pause = min(longest, first * 2.0 ** min(self._n_failures, 16))
        self._n_failures += 1
        self.ends_at = time.monotonic() + max(min(at_least, RETRY_AFTER_MAX), pause * (0.75 + _jitter()))

    def wait(self, seconds: float) -> None:
        """Starts a pause of about `seconds`, between the first pause and RETRY_AFTER_MAX, that is not a failure."""
        pause = min(max(seconds, BACKOFF_SECONDS[0]), RETRY_AFTER_MAX)
        self.ends_at = time.monotonic() + pause * (1.0 + _jitter())


def _jitter() -> float:
    """Returns a random number between 0 and 0.5: ranks that failed together must not retry together."""
    return 0.5 * os.urandom(1)[0] / 255


class Batch:
    """Records taken from the ring but not pushed yet, and the number of records that are lost."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._records: List[bytes] = []
        self._size_max = BATCH_RECORDS_MAX
        self._n_taken = 0
        self._n_evicted = 0
        self._n_discarded = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def n_dropped(self) -> int:
        """Records of this process that were evicted from the ring, refused by the exporter, or discarded."""
        return max(0, self._n_evicted) + self._n_discarded

    def fill(self) -> None:
        """Takes records from the ring. A gap in their sequence numbers is the number of evicted ones."""
        while len(self._records) < self._size_max:
            try:
                self._records.append(self._ring.popleft())
                self._n_taken += 1
            except IndexError:
                break
        if self._records:
            self._n_evicted = sequence_number(self._records[-1]) + 1 - self._n_taken

    def part(self) -> List[bytes]:
        """Returns the records of the next request."""
        return self._records[: self._size_max]

    def halve(self) -> None:
        """Makes the next requests at most half as large as the last one."""
        self._size_max = max(1, len(self.part()) // 2)

    def remove_part(self) -> None:
        """Removes the records of the last request, after they were accepted."""
        del self._records[: self._size_max]

    def discard_part(self) -> None:
        """Removes the records of the last request, after they were refused, and counts them as dropped."""
        self._n_discarded += len(self.part())
        self.remove_part()

    def discard(self) -> None:
        """Removes all records and counts them as dropped."""
        self._n_discarded += len(self._records)
        self._records.clear()


class Sender:
    """Owns the ring and the thread that pushes its records. Public methods are for the training thread."""

    def __init__(self, settings: Settings, process: Process, on_action: Callable[[Action], None]) -> None:
        """`on_action` is called on the sender's thread with each request of the exporter."""
        self.ring: Ring = deque(maxlen=RING_CAPACITY)
        self._control: Deque[Union[SnapshotResult, HoldersResult, End]] = deque(maxlen=CONTROL_CAPACITY)
        self._process = process
        self._encoder = Encoder(process)
        self._on_action = on_action
        self._connection = Connection(settings)
        self._stop = Event()
        self._wake = Event()
        self._counting = RLock()
        """Guards the number of flushes, and their events."""
        self._flushes: List[Tuple[int, Event]] = []
        """Flushes that wait, by their number."""
        self._n_flushes = 0
        """Number of flushes that were requested."""
        self._n_flushed = 0
        """The number of the last request by which everything was pushed."""
        self._is_broken = False
        self._is_hurried = False
        """Set if `hurry` woke the thread."""
        self._deadline = 0.0
        self._thread = Thread(self._run)
        self._pack: Callable[[], int] = lambda: 0
        # Only the thread uses what follows.
        self._unpacked_max = 0
        self._batch = Batch(self.ring)
        self._backoff = Backoff()
        self._sent_at = 0.0
        self._started_at = 0.0
        self._packed_at = 0.0
        self._steps_per_second = 0.0
        """Rate of those that were packed last."""
        self._n_renames = 0
        self._left_out_on = 0
        """The connection, by its number, on which the exporter did not know a key."""

    @property
    def target(self) -> Target:
        """Returns the target to which the records are pushed."""
        return self._connection.target

    def start(self, pack: Callable[[], int], unpacked_max: int) -> None:
        """Starts the thread, which calls `pack` before it reads the ring, before `unpacked_max` steps wait for it.

        `pack` returns how many steps it packed.
        """
        self._pack = pack
        self._unpacked_max = unpacked_max
        self._started_at = time.monotonic()
        self._thread.start()

    def add_device(self, device: str) -> int:
        """Returns the index that stands for `device` in records."""
        return self._encoder.add_device(device)

    def set_memory_kind(self, device: str, kind: str) -> None:
        """Gives later records of a GPU the kind of its memory. Runs on this thread."""
        self._encoder.set_memory_kind(device, kind)

    def add_control(self, message: "SnapshotResult | HoldersResult | End") -> None:
        """Adds a message that is not a step. It is pushed after the records in the ring."""
        self._control.append(message)

    def flush(self, seconds: float) -> bool:
        """Waits up to `seconds` until everything is pushed. Returns whether it is."""
        done = Event()
        with self._counting:
            n = self._n_flushes + 1
            self._flushes.append((n, done))
            self._n_flushes = n
        self._deadline = time.monotonic() + seconds
        self._rouse()
        if not self._is_broken:
            done.wait(seconds, lambda: self._is_broken)
        with self._counting:
            self._flushes.remove((n, done))
        return self._n_flushed >= n

    def hurry(self) -> None:
        """Makes the thread read the ring now, because a batch is full."""
        self._is_hurried = True
        self._rouse()

    def _rouse(self) -> None:
        self._wake.set()
        self._thread.come_back()

    def stop(self, seconds: float) -> None:
        """Pushes the rest, ends the thread and waits for it up to `seconds`."""
        self._deadline = time.monotonic() + seconds
        self._stop.set()
        self._rouse()
        self._thread.join(seconds)

    def abandon(self) -> None:
        """Closes the copy of the parent's connection in a forked child."""
        self._connection.close()

    def _run(self) -> None:
        try:
            name_own_thread()
            self._pack()  # reads what the process holds at its first step
            self._loop()
        except Exception as error:
            warn_once("sender", f"pushing stopped: {error!r}")
            self._is_broken = True
            for _, done in list(self._flushes):
                done.nudge()

    def _loop(self) -> None:
        while True:
            is_woken = self._thread.pause(self._wake, self._pause())
            self._wake.clear()
            is_last = self._stop.is_set()
            n_flushes = self._n_flushes
            if self._is_hurried:
                self._is_hurried, is_woken = False, n_flushes > self._n_flushed
            n_packed = self._pack()
            now = time.monotonic()
            self._steps_per_second = n_packed / max(now - self._packed_at, POLL_SECONDS)
            self._packed_at = now
            if is_woken or is_last:
                self._push_all(self._deadline)
            elif self._backoff.is_over(now):
                is_full = len(self.ring) >= BATCH_RECORDS_MAX
                if is_full or (self._has_pending() and now - self._sent_at >= self._send_every(now)):
                    self._push_full_batches()
            if n_flushes > self._n_flushed and not self._has_pending():
                self._n_flushed = n_flushes
                for n, done in list(self._flushes):
                    if n <= n_flushes:
                        done.set()
            if is_last:
                self._connection.close()
                return

    def _pause(self) -> float:
        """Returns the seconds until records may be due, or as many steps wait as may.

        Whenever the ring is read, a training thread that runs Python hands over its lock, after which its caches are cold.
        """
        now = time.monotonic()
        # The time between two requests grows meanwhile.
        due_at = max(self._sent_at - SEND_OF_AGE * self._started_at, 0.0) / (1.0 - SEND_OF_AGE)
        due_at = min(max(due_at, self._sent_at + POLL_SECONDS), self._sent_at + SEND_EVERY)
        pause = max(due_at, self._backoff.ends_at) - now
        if self._steps_per_second > 0.0:
            pause = min(pause, UNPACKED_SHARE * self._unpacked_max / self._steps_per_second)
        return min(max(POLL_SECONDS, pause), SEND_EVERY)

    def _send_every(self, now: float) -> float:
        return min(max(POLL_SECONDS, SEND_OF_AGE * (now - self._started_at)), SEND_EVERY)

    def _has_pending(self) -> bool:
        return bool(self.ring or self._batch or self._control)

    def _push_all(self, deadline: float) -> None:
        """Pushes until nothing is left, a request has to be retried, or the deadline has passed."""
        while self._push_next(deadline) and self._has_pending() and time.monotonic() < deadline:
            pass

    def _push_full_batches(self) -> None:
        """Pushes until the ring holds less than a batch, or a request has to be retried."""
        while self._push_next(time.monotonic() + ANSWER_WITHIN):
            if not (self._batch or self._control or len(self.ring) >= BATCH_RECORDS_MAX):
                return

    def _push_next(self, deadline: float) -> bool:
        """Pushes one batch or, if there are no records, one control request. Returns False if it has to be retried."""
        if self._control and not (self._batch or self.ring):
            self._pack()  # steps that were taken before the message, while an earlier push was under way
        if not self._batch:
            self._batch.fill()
        if self._batch:
            return self._push_batch(deadline)
        if self._control:
            delivery = self._deliver(self._encoder.control(self._control[0]), deadline)
            if delivery is Delivery.RETRY:
                return False
            if delivery is not Delivery.ENCODE_AGAIN:
                self._control.popleft()
        return True

    def _push_batch(self, deadline: float) -> bool:
        batch = self._batch
        while True:
            n_records, body = len(batch.part()), self._encode_part()
            delivery = self._deliver(Request(STEPS_PATH, JSON_LINES, body), deadline, n_records)
            if delivery is Delivery.TOO_LARGE:
                batch.halve()
            elif delivery is not Delivery.ENCODE_AGAIN:
                break
        if delivery is Delivery.ACCEPTED:
            batch.remove_part()
        elif delivery is Delivery.REFUSED:
            batch.discard_part()
        elif len(self.ring) == RING_CAPACITY:
            batch.discard()  # rather than evict newer records
        return delivery is not Delivery.RETRY

    def _encode_part(self) -> bytes:
        lines: List[str] = []
        n_dropped = self._batch.n_dropped
        for record in self._batch.part():
            lines.append(self._encoder.step(record, n_dropped))
            if len(lines) % LINES_PER_YIELD == 0:
                time.sleep(0)
        return "".join(lines).encode()

    def _deliver(self, request: Request, deadline: float, n_records: int = 0) -> Delivery:
        """Sends one request with `n_records` steps, 0 for a control request. Warns of failures."""
        try:
            answer = self._connection.post(request, deadline)
        except UntrustedTarget as error:
            warn_once("untrusted", f"not pushing to {self._connection.target}: {error}")
            self._backoff.fail(BACKOFF_SECONDS[1])
            return Delivery.RETRY
        except (OSError, ValueError) as error:
            warn_once(
                "absent",
                f"cannot push to {self._connection.target} ({error}); training continues and stepmem keeps retrying",
            )
            self._backoff.fail()
            return Delivery.RETRY
        if answer.status == 200:
            self._backoff.reset()
            self._sent_at = time.monotonic()
            if self._connection.n_opened != self._left_out_on:  # it may be another exporter by now
                self._encoder.leave_nothing_out()
            if n_records:
                self._take_actions(answer.body)
            return Delivery.ACCEPTED
        if answer.status == 401 and self._connection.renew_token():
            return Delivery.RETRY
        if answer.status in RETRIED_STATUSES:
            self._backoff.fail(answer.retry_after)
            return Delivery.RETRY
        if answer.status == HELD_STATUS:
            return self._on_held(answer) if n_records else Delivery.REFUSED
        if answer.status == 413 and n_records > 1:
            return Delivery.TOO_LARGE
        if answer.status == 400 and self._encoder.leave_out(unknown_key(answer.body)):
            self._left_out_on = self._connection.n_opened
            inform_once("older", f"the exporter at {self._connection.target} is older than this client: it gets what it knows")
            return Delivery.ENCODE_AGAIN
        warn_once(
            f"status {answer.status}",
            f"the exporter at {self._connection.target} refused a push with status {answer.status}: "
            + printable(answer.body[:400].decode("utf-8", "replace").strip()),
        )
        if answer.status in REJECTED_STATUSES:
            self._backoff.fail(BACKOFF_SECONDS[1])
        return Delivery.REFUSED

    def _on_held(self, answer: Answer) -> Delivery:
        """Takes the name that the exporter offers, if it does; otherwise tries again later. A process that is sampled by time stops."""
        if self._process.is_sampled and not self._process.n_steps:
            self._process.has_lost_rank = True
            return Delivery.REFUSED
        run, held = self._process.identity().run, Held(answer.body)
        if held.offer is None or self._n_renames >= RENAMES_MAX:
            inform_once("held", f"run {run!r} has another live process of this rank; trying again: {printable(held.detail)}")
            self._backoff.wait(answer.retry_after)
            return Delivery.RETRY
        self._n_renames += 1
        self._process.rename_run(held.offer)
        warn_once(f"renamed {held.offer}", f"run {run!r} is pushed by another process too; this one is now {held.offer!r}")
        return Delivery.ENCODE_AGAIN

    def _take_actions(self, body: bytes) -> None:
        try:
            if self._process.on_deadline is not None:
                for ask in decode_checkpoint_requests(body):
                    self._on_action(ask)
            for snapshot in decode_snapshot_requests(body):
                self._on_action(snapshot)
            for malloc in decode_malloc_requests(body):
                self._on_action(malloc)
            for scan in decode_heap_scan_requests(body):
                self._on_action(scan)
        except Exception as error:
            warn_once("actions", f"the exporter sent a malformed answer: {error!r}")
