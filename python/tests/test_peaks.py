"""The program reads the same peaks as without the client, and each step has its own: against an allocator modeled on PyTorch's."""

from __future__ import annotations

import copy
import functools
import random
import sys
import threading
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

from stepmem import _peaks

POOLS = ("all", "small_pool", "large_pool")
KINDS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
         "inactive_split_bytes", "requested_bytes")  # fmt: skip


class Allocator:
    """Statistics of one device, with the shape of PyTorch's."""

    def __init__(self) -> None:
        paths = [(kind, pool) for kind in KINDS for pool in POOLS] + [("oversize_allocations",), ("oversize_segments",)]
        self.stats = {path: {"current": 0, "peak": 0, "allocated": 0, "freed": 0} for path in paths}

    def change(self, path: Tuple[str, ...], n: int) -> None:
        """Allocates `n` of a kind, or frees -`n`."""
        stat = self.stats[path]
        n = max(n, -stat["current"])
        stat["current"] += n
        stat["peak"] = max(stat["peak"], stat["current"])
        stat["allocated" if n > 0 else "freed"] += abs(n)
        if path[-1] in POOLS[1:]:
            self.change((path[0], "all"), n)

    def read(self) -> Dict[str, Any]:
        found: Dict[str, Any] = {"num_ooms": 0, "num_alloc_retries": 0}
        for path, stat in self.stats.items():
            inner = found.setdefault(path[0], {}) if len(path) == 2 else found
            inner[path[-1]] = copy.copy(stat)
        return found

    def reset_peaks(self) -> None:
        for stat in self.stats.values():
            stat["peak"] = stat["current"]


class Device:
    """Two allocators that are used alike: the program's real one, whose steps end, and the model, without a client."""

    def __init__(self) -> None:
        self.real, self.model = Allocator(), Allocator()
        self.step_peaks = {"allocated_bytes": 0, "reserved_bytes": 0}
        self.unsettled: List[Tuple[Any, Dict[str, int], int]] = []
        """Steps that ended, with their peaks and allocated bytes by the model."""

    def settle(self, counters: Any) -> None:
        """Checks the figures of the steps that ended."""
        for ended, peaks, allocated in self.unsettled:
            stats = counters.settle(ended)
            assert {kind: stats[kind]["all"]["peak"] for kind in peaks} == peaks
            assert stats["allocated_bytes"]["all"]["current"] == allocated
        self.unsettled.clear()

    def change(self, path: Tuple[str, ...], n: int) -> None:
        for allocator in (self.real, self.model):
            allocator.change(path, n)
        for kind in self.step_peaks:
            self.step_peaks[kind] = max(self.step_peaks[kind], self.model.stats[(kind, "all")]["current"])


def fake_torch(devices: List[Device]) -> Any:
    """Returns a module whose functions read and reset the real allocators."""
    native = SimpleNamespace(
        _cuda_memoryStats=lambda idx: devices[idx].real.read(),
        _cuda_resetPeakMemoryStats=lambda idx: devices[idx].real.reset_peaks(),
        _accelerator_getDeviceStats=lambda device_index: devices[device_index].real.read(),
        _accelerator_resetPeakStats=lambda device_index: devices[device_index].real.reset_peaks(),
    )
    return SimpleNamespace(_C=native)


@pytest.fixture
def torch_of(monkeypatch):
    def share(devices: List[Device], counted: "tuple[int, ...]" = (0, 1)) -> Any:
        monkeypatch.setattr(_peaks, "_counters", None)
        torch = fake_torch(devices)
        counters = [_peaks.share_peak_counters(torch, idx) for idx in counted]
        assert counters[0] is not None and counters == [counters[0]] * len(counted)
        return torch._C, counters[0]

    return share


@functools.lru_cache(maxsize=None)
def step_of(counters: Any, idx: int) -> Any:
    return counters.step_end(idx)


def end_step(counters: Any, idx: int) -> Any:
    with _peaks.step_lock():
        return step_of(counters, idx)()


def do(choice: random.Random, devices: List[Device], native: Any, counters: Any) -> None:
    """Makes one random call of the program, or ends a step, and checks what it returns."""
    idx = choice.randrange(len(devices))
    device = devices[idx]
    acts = {"allocate": 9, "free": 9, "step": 6, "settle": 3, "read": 3, "read by accelerator": 2, "reset": 1, "reset by accelerator": 1}
    act = choice.choices(list(acts), list(acts.values()))[0]
    if act in ("allocate", "free"):
        path = choice.choice([path for path in device.model.stats if path[-1] != "all"])
        device.change(path, choice.randrange(1, 1000) * (1 if act == "allocate" else -1))
    elif act == "step" and idx < 2:
        current = device.model.stats[("allocated_bytes", "all")]["current"]
        device.unsettled.append((end_step(counters, idx), device.step_peaks, current))
        device.step_peaks = {kind: device.model.stats[(kind, "all")]["current"] for kind in device.step_peaks}
    elif act == "settle":
        device.settle(counters)
    elif act == "read":
        assert repr(native._cuda_memoryStats(idx)) == repr(device.model.read()), "also the order of the keys"
    elif act == "read by accelerator":
        assert native._accelerator_getDeviceStats(device_index=idx) == device.model.read()
    elif act == "reset":
        device.model.reset_peaks()
        assert native._cuda_resetPeakMemoryStats(idx) is None
    elif act == "reset by accelerator":
        device.model.reset_peaks()
        native._accelerator_resetPeakStats(idx)


@pytest.mark.parametrize("seed", range(200))
def test_program_reads_what_it_would_read_without_the_client(torch_of, seed):
    choice = random.Random(seed)
    devices = [Device(), Device(), Device()]
    for _ in range(seed % 7):  # before the first step
        devices[0].change(("allocated_bytes", "large_pool"), choice.randrange(1000))
    native, counters = torch_of(devices)
    for _ in range(300):
        do(choice, devices, native, counters)
    for idx, device in enumerate(devices):
        assert native._cuda_memoryStats(idx) == device.model.read()
        device.settle(counters)


def test_threads_read_and_reset_while_steps_end(torch_of):
    device = Device()
    native, counters = torch_of([device], (0,))
    lock, errors, stop = threading.Lock(), [], threading.Event()
    ended: List[Any] = []

    def read(seed: int) -> None:
        choice = random.Random(seed)
        while not stop.is_set():
            with lock:  # so that the model and the real allocator are read at the same moment
                if choice.random() < 0.1:
                    device.model.reset_peaks()
                    native._cuda_resetPeakMemoryStats(0)
                elif native._cuda_memoryStats(0) != device.model.read():
                    errors.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        choice = random.Random(0)
        for _ in range(3000):
            with lock:
                device.change((choice.choice(KINDS), choice.choice(POOLS[1:])), choice.randrange(-1000, 1000))
            ended.append(end_step(counters, 0))
            if choice.random() < 0.2:
                counters.settle(ended[choice.randrange(len(ended))])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert errors == []


def test_signal_handler_may_read_and_reset_inside_a_step_end(torch_of):
    device = Device()
    native, counters = torch_of([device], (0,))
    device.change(("allocated_bytes", "large_pool"), 100)
    device.change(("allocated_bytes", "large_pool"), -100)
    inner_reset = device.real.reset_peaks

    def reset_inside() -> None:  # as a handler would that runs between reading and resetting
        device.real.reset_peaks = inner_reset
        device.model.reset_peaks()
        native._cuda_resetPeakMemoryStats(0)
        inner_reset()

    device.real.reset_peaks = reset_inside
    assert counters.settle(end_step(counters, 0))["allocated_bytes"]["all"]["peak"] == 100
    assert native._cuda_memoryStats(0) == device.model.read()


def test_wrappers_have_the_names_of_what_they_wrap(torch_of):
    native, _ = torch_of([Device()], (0,))
    assert native._cuda_memoryStats.__name__ == "<lambda>"
    assert native._cuda_memoryStats.__module__ == __name__


def test_errors_of_the_allocator_reach_the_program(torch_of):
    native, _ = torch_of([Device()], (0,))
    with pytest.raises(IndexError):
        native._cuda_memoryStats(7)
    with pytest.raises(IndexError):
        native._cuda_resetPeakMemoryStats(7)
    with pytest.raises(TypeError):
        native._cuda_memoryStats()
