"""The training thread's part: reads the memory after each step. Never waits.

A step's end only takes what cannot be had later. The sender's thread packs it into a record and appends that to the ring.
"""

from __future__ import annotations

import time
from _thread import RLock
from collections import deque
from time import monotonic
from time import time as unix_time
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

from ._captures import running
from ._cgroup import NO_READING, Container
from ._event_markers import EventMarkers, install
from ._malloc import Malloc
from ._pacing import Pacing
from ._peaks import step_lock
from ._process import Process
from ._process_memory import ProcessMemory
from ._readers import NO_CAPACITY, NO_PARTS, Capacity, CudaReader, HostReader, MemorySample, Parts, find_reader
from ._sender import BATCH_RECORDS_MAX, Sender
from ._settings import Settings
from ._signals import raise_if_of_handler
from ._torch import is_cuda_up, require_cuda
from ._warn import warn_once
from ._wire import END_PEAKS, HOST_PARTS, OF_CALLS, PHASES, RECORD, STEP_MAX, UNKNOWN, UNKNOWN_SECONDS

CAPACITY_EVERY = 10.0
"""Interval at which the device's total and free memory are read, in seconds."""

UNPACKED_MAX = 128
"""Steps that wait to be packed, at most: up to 20 KiB each. With more, each step's end packs the oldest one itself."""

STEPS_PER_RECORD_MAX = 1_000_000
"""Steps that a record stands for, at most, as the exporter accepts it."""

NOTED_CALLS = -1
"""Stands for the calls that were noted in a record of calls, which has no event markers."""

PACKED_PER_YIELD = 128
"""Steps after whose packing, a millisecond, the sender's thread yields to the training thread."""

Source = Tuple[Union[CudaReader, HostReader, MemorySample], int, Capacity]
"""The source of a step's figures: the reader, the index of its device, and the device's memory."""

Taken = Tuple[float, float, Optional[float], int, int, int, int, Source, Any, float]
"""A step that is not packed yet: Unix time; end and beginning on the monotonic clock, in seconds; step, index of the phase, the calls that were noted,
how many steps since the one that was read before, source, what the reader took, and when it had taken that."""


class Recorder:
    """Appends a record to the ring for each step and phase."""

    def __init__(self, process: Process, sender: Sender, settings: Settings, malloc: Malloc) -> None:
        self._process = process
        self._sender = sender
        self._ring = sender.ring
        self._settings = settings
        self._taken: Deque[Taken] = deque()
        self._packing = RLock()
        self._is_packing = False
        self._failures: List[Exception] = []
        """The error with which packing the last step failed; empty if it did not."""
        self._pacing = Pacing(process, settings.reads_every_step)
        self._markers = EventMarkers()
        self._n_records = 0
        self._children: Parts = NO_PARTS
        """The reading of child processes since the last record."""
        self._container = Container()
        self._container_now = NO_READING
        """The reading of the container that the next record has."""
        self._malloc = malloc
        self._process_memory = ProcessMemory(process)
        self._process_used = UNKNOWN
        """The newest reading of this process's memory on its GPU, until a record has it."""
        self._is_reading = True
        """Makes it read more than each step takes, as long as that has not failed."""
        self._capacity_due_at = self._sample_capacity_due_at = 0.0
        self._sample_capacity = NO_CAPACITY
        with step_lock():
            self._reader = find_reader(settings)
        self._is_cuda_up: Optional[Callable[[], bool]] = self._is_cuda_found
        """Returns whether the process uses CUDA; None once the reader reads the GPU that holds its tensors, and stays the same."""
        self._source: Source = (self._reader, sender.add_device(self._reader.device), NO_CAPACITY)
        self.record = self._recording()
        """Records the end of step `n` (None: the one after the last), or of a phase at step `n`. May raise anything."""

    def _recording(self) -> Callable[[Optional[int], int], None]:
        """Returns `record`.

        While training sleeps, the processor's caches forget this code and its data, and each object that is touched again
        costs a part of a microsecond. So this is one function, and its variables hold what a step's end needs.
        """
        process, taken, append, failures = self._process, self._taken, self._taken.append, self._failures
        lock, ring, hurry = step_lock(), self._ring, self._sender.hurry
        source, take, is_cuda_up, due_at = self._source, self._reader.take, self._is_cuda_up, 0.0

        def record(n: Optional[int], phase_idx: int) -> None:
            nonlocal source, take, is_cuda_up, due_at
            with lock:  # not `acquire` and `try`: a signal handler may raise between them
                if n is None:
                    n = process.step + 1
                elif not isinstance(n, int):
                    n = int(n)  # also integers of NumPy and PyTorch
                if not 0 <= n <= STEP_MAX:
                    raise ValueError(f"step {n} is outside 0..={STEP_MAX}")
                process.step = n
                now = monotonic()
                began, process.step_began_at = process.step_began_at, now
                if now >= due_at or (is_cuda_up is not None and is_cuda_up()):
                    self._refresh(now)
                    source, take, is_cuda_up, due_at = self._source, self._reader.take, self._is_cuda_up, self._capacity_due_at
                noted = process.noted_calls
                append((unix_time(), now, began, n, phase_idx, noted, process.n_steps + 1 - process.n_recorded, source, take(), monotonic()))
                if not phase_idx:
                    process.n_recorded = process.n_steps = process.n_steps + 1
                if noted:
                    process.noted_calls = 0  # after a phase, too: it has a record of its own
            if len(taken) > UNPACKED_MAX:
                self._pack_oldest()
                if len(ring) == BATCH_RECORDS_MAX:  # steps come so much faster than lately
                    hurry()
            if failures:
                self._raise_failure()

        return record

    def sample(self, phase_idx: int) -> None:
        """Records the memory as it is now, at the last step, for a record by time. Runs on a thread of its own."""
        with step_lock():
            sample = self.level()
            if sample is not None:
                self._append(sample, phase_idx, 0, 1)

    def calls(self, n: int, sample: MemorySample) -> None:
        """Records the memory after the `n`th call, for all calls since the last record."""
        process = self._process
        with step_lock():
            n_new = n - process.n_recorded
            if n_new > 0:
                process.step = process.n_steps = process.n_recorded = n
                self._append(sample, 0, NOTED_CALLS, min(n_new, STEPS_PER_RECORD_MAX))

    def level(self) -> Optional[MemorySample]:
        """Returns the memory as it is now, on any thread; None while a graph is captured."""
        with step_lock():
            if running:
                return None
            now = monotonic()
            if self._is_cuda_up is not None and self._is_cuda_up():
                self._settle()
            sample = self._reader.sample()
            if sample.capacity is None:
                if now >= self._sample_capacity_due_at:
                    self._sample_capacity_due_at = now + CAPACITY_EVERY
                    self._sample_capacity = self._reader.capacity()
                sample.capacity = self._sample_capacity
            return sample

    def held(self, is_on_host: bool) -> Optional[int]:
        """Returns the bytes that this process has now, on the host or on its device; None if that cannot be read."""
        if running:
            return None
        try:
            with step_lock():
                sample = self._reader.sample()
        except Exception as error:
            raise_if_of_handler(error)
            return None
        held, parts = sample.allocated, sample.figures(None, 0.0)[1]
        if is_on_host and not isinstance(self._reader, HostReader):
            held = parts[HOST_PARTS.index("host_allocated_bytes")]
        return None if held == UNKNOWN else held

    def _append(self, sample: MemorySample, phase_idx: int, noted: int, n_steps: int) -> None:
        now = monotonic()
        source = (sample, self._source[1], sample.capacity or NO_CAPACITY)
        self._taken.append((unix_time(), now, None, self._process.step, phase_idx, noted, n_steps, source, None, now))
        if len(self._taken) > UNPACKED_MAX:  # the sender's thread does not keep up, or is gone
            self._pack_oldest()

    def ask_process_memory(self) -> None:
        """Asks for a reading of this process's memory on its GPU as it is now, which nothing waits for."""
        self._process_memory.ask()

    def _raise_failure(self) -> None:
        for failure in self._failures:  # the sender's thread may clear them meanwhile
            raise failure

    def pack(self) -> int:
        """Packs the steps that were taken so far, and returns how many. Runs on the sender's thread."""
        n_taken = len(self._taken)  # first: what is read then is newer than they are
        children = self._read_parts()
        named = [n for n, taken in enumerate(self._taken.copy(), 1) if n <= n_taken and taken[4] >= len(PHASES)]
        n_phase = named[-1] if named else n_taken
        for n in range(1, n_taken + 1):
            if n == n_phase:  # the newest reading was asked for at the end of the last phase that the program names
                self._process_used = self._process_memory.newest(self._reader.device)
            if n == n_taken:
                self._container_now = self._container.read(monotonic())
                kind = self._reader.memory_kind or self._process_memory.memory_kind(self._reader.device)
                if kind is not None:
                    self._sender.set_memory_kind(self._reader.device, kind)
                if children is not NO_PARTS:
                    self._children = children
            self._pack_oldest()
            if n % PACKED_PER_YIELD == 0:
                time.sleep(0)
        self._pacing.settle(monotonic())
        return n_taken

    def _read_parts(self) -> Parts:
        """Reads shared memory and child processes, unless that has failed before."""
        if self._is_reading:
            try:
                return self._reader.read_parts()
            except Exception as error:
                raise_if_of_handler(error)
                self._is_reading = False
                warn_once("parts", f"shared memory and child processes are not read: {error!r}")
        return NO_PARTS

    def peaks_since_read(self) -> Dict[str, object]:
        """Returns the known ones of END_PEAKS since the last reading."""
        with step_lock():
            reader = self._reader
            figures, _ = reader.figures(reader.take(), monotonic())
        return {name: peak for name, peak in zip(END_PEAKS, (figures[1], figures[3])) if peak != UNKNOWN}

    def n_ooms(self) -> Optional[int]:
        """Returns how many out-of-memory errors the allocator counted; None if there were none, or that is unknown."""
        n_ooms = self._reader.n_ooms()
        return n_ooms if n_ooms > 0 else None

    def close(self) -> None:
        """Closes the reader's files and ends the thread that reads this process's memory. Ignores errors, as the program may have closed them."""
        self._process_memory.close()
        try:
            self._reader.close()
        except OSError as error:
            raise_if_of_handler(error)

    def _pack_oldest(self) -> None:
        with self._packing:
            if self._is_packing or not self._taken:
                return  # a signal handler takes a step while one is packed, which goes first
            self._is_packing = True
            try:
                self._ring.append(self._packed(self._taken.popleft()))
                self._n_records += 1
                self._failures.clear()
            except Exception as error:
                raise_if_of_handler(error)
                self._failures[:] = [error]
            finally:
                self._is_packing = False

    def _packed(self, taken: Taken) -> bytes:
        ended_at, ended, began, n, phase_idx, noted, n_steps, (reader, device_idx, capacity), read, read_at = taken
        figures, parts = reader.figures(read, read_at)
        children, self._children = self._children, NO_PARTS
        container, self._container_now = self._container_now, NO_READING
        process_used, self._process_used = self._process_used, UNKNOWN
        if not phase_idx and began is not None:
            self._pacing.add(ended - began, read_at - ended, (figures[0], figures[2], capacity.remaining(figures[2])))
        return RECORD.pack(
            ended_at,
            UNKNOWN_SECONDS if began is None else ended - began,
            self._n_records,
            n,
            1 if phase_idx else n_steps,
            device_idx,
            phase_idx,
            0 if phase_idx else OF_CALLS if noted == NOTED_CALLS else self._markers.of_record(noted, ended, n_steps),
            *figures,
            *capacity,
            *reader.high_water,
            *(part if child == UNKNOWN else child for part, child in zip(parts, children)),
            *self._malloc.take(),
            *container,
            process_used,
        )

    def _is_cuda_found(self) -> bool:
        """Returns whether the process uses CUDA, and remembers PyTorch's own answer to that once PyTorch is imported."""
        is_up = is_cuda_up()
        if is_up is None:
            return False
        self._is_cuda_up = is_up
        return is_up()

    def _refresh(self, now: float) -> None:
        """Finds the GPU that the program uses; if that is due, reads its capacity, and wraps functions of new modules."""
        if running:
            return  # at the end of the next step
        if self._is_cuda_up is not None and self._is_cuda_up():
            self._settle()
        if now >= self._capacity_due_at:
            self._capacity_due_at = now + CAPACITY_EVERY
            self._source = (*self._source[:2], self._reader.capacity())
            install(self._process)  # what was imported meanwhile

    def _settle(self) -> None:
        """Finds the GPU that the program uses, once it uses CUDA. It may start to use one at any step."""
        before = reader = self._reader
        if isinstance(reader, HostReader):
            reader = CudaReader.of_current(require_cuda(), self._settings.counts_peaks, reader)
        settled = reader.settled()
        if settled is not None:
            self._is_cuda_up = None
        self._reader = settled or reader
        if self._reader is not before:
            # Steps that are not packed yet keep their source.
            self._source = (self._reader, self._sender.add_device(self._reader.device), NO_CAPACITY)
            self._capacity_due_at = self._sample_capacity_due_at = 0.0
