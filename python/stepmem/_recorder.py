"""The training thread's part: reads the memory after each step and appends a record to the ring. Never waits."""

from __future__ import annotations

import threading
import time
from typing import Optional

from ._process import Process
from ._readers import NO_CAPACITY, CudaReader, HostReader, find_reader
from ._sender import Sender
from ._settings import Settings
from ._torch import cuda_torch, require_cuda
from ._wire import RECORD, STEP_MAX, UNKNOWN_SECONDS

CAPACITY_EVERY = 10.0
"""Interval at which the device's total and free memory are read, in seconds."""


class Recorder:
    """Appends a record to the ring at the end of each step and phase."""

    def __init__(self, process: Process, sender: Sender, settings: Settings) -> None:
        self._process = process
        self._sender = sender
        self._ring = sender.ring
        self._settings = settings
        self._lock = threading.RLock()
        """Keeps the records of several threads in order; a signal handler may take a step inside a step."""
        self._n_records = 0
        self._capacity = NO_CAPACITY
        self._capacity_due_at = 0.0
        self._reader = find_reader(settings)
        self._is_settled = False
        """Whether the reader reads the GPU that holds this process's tensors. It then stays the same."""
        self._device = self._reader.device
        self._device_idx = sender.add_device(self._device)

    def record(self, n: Optional[int], phase_idx: int) -> None:
        """Records the end of step `n` (None: the one after the last), or of a phase at step `n`. May raise anything."""
        with self._lock:
            self._record(n, phase_idx)

    def _record(self, n: Optional[int], phase_idx: int) -> None:
        process = self._process
        if n is None:
            n = process.step + 1
        elif not isinstance(n, int):
            n = int(n)  # also integers of NumPy and PyTorch
        if not 0 <= n <= STEP_MAX:
            raise ValueError(f"step {n} is outside 0..={STEP_MAX}")
        process.step = n
        now = time.monotonic()
        began, process.step_began_at = process.step_began_at, now
        if not self._is_settled and cuda_torch() is not None:
            self._settle()
        if now >= self._capacity_due_at:
            self._capacity_due_at = now + CAPACITY_EVERY
            self._capacity = self._reader.capacity()
        record = RECORD.pack(
            time.time(),
            UNKNOWN_SECONDS if began is None else now - began,
            self._n_records,
            n,
            self._device_idx,
            phase_idx,
            *self._reader.read(),
            *self._capacity,
            *self._reader.high_water,
        )
        self._n_records += 1
        if not phase_idx:
            process.n_steps += 1
        self._ring.append(record)

    def close(self) -> None:
        """Closes the reader's files. Ignores errors, as the program may have closed them."""
        try:
            self._reader.close()
        except OSError:
            pass

    def _settle(self) -> None:
        """Finds the GPU that the program uses, once it uses CUDA. It may start to use one at any step."""
        reader = self._reader
        if isinstance(reader, HostReader):
            cuda_reader = CudaReader(require_cuda(), self._settings.counts_peaks)
            self.close()
            reader = self._reader = cuda_reader
        self._is_settled = reader.settle()
        if reader.device != self._device:
            self._device = reader.device
            self._device_idx = self._sender.add_device(self._device)
            self._capacity_due_at = 0.0
