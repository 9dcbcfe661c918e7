"""An allocator that records as PyTorch's does: addresses, blocks and, while a history is on, events with Python stacks."""

import sys
import time

from . import _C, cuda
from .cuda import memory

BLOCK = 8 << 20
BASE = 1 << 40
blocks = {}
"""Size and stack of each live block, by address."""
n_addresses = 0
CALLS_SKIPPED = 2
"""Frames of this module above the program's."""


def stack():
    frames, frame = [], sys._getframe(CALLS_SKIPPED)
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "name": code.co_name, "line": frame.f_lineno})
        frame = frame.f_back
    return frames


def event(action, address, frames):
    if _C.history is not None:
        place = "device_free" if action == "oom" else "addr"
        entry = {"action": action, place: address, "size": BLOCK, "stream": 0, "time_us": time.time_ns() // 1000}
        if _C.metadata:
            entry["user_metadata"] = _C.metadata
        _C.trace.append({**entry, "frames": frames})
        del _C.trace[: -_C.history["max_entries"]]


def malloc():
    """Allocates a block. Returns its address. If the device is full, calls the observers and raises OutOfMemoryError."""
    global n_addresses
    if _C.allocated + BLOCK > _C.TOTAL:
        _C.n_ooms += 1
        event("oom", _C.TOTAL - _C.allocated, stack())
        for observer in _C.observers:
            observer(0, BLOCK, _C.allocated, _C.TOTAL - _C.allocated)
        mib = BLOCK >> 20
        raise cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU 0 has {_C.TOTAL >> 20} MiB")
    address = next((BASE + BLOCK * n for n in range(n_addresses) if BASE + BLOCK * n not in blocks), BASE + BLOCK * n_addresses)
    n_addresses = max(n_addresses, (address - BASE) // BLOCK + 1)
    frames = stack() if _C.history is not None else []
    blocks[address] = frames
    _C.allocated += BLOCK
    _C.peak = max(_C.peak, _C.allocated)
    _C.n_allocations += 1
    event("alloc", address, frames)
    return address


def free(address):
    """Frees a block."""
    del blocks[address]
    _C.allocated -= BLOCK
    _C.n_frees += 1
    event("free_requested", address, [])
    event("free_completed", address, [])


def snapshot(device=None):
    shown = []
    for n in range(n_addresses):
        address = BASE + BLOCK * n
        state = "active_allocated" if address in blocks else "inactive"
        shown.append(
            {"address": address, "size": BLOCK, "requested_size": BLOCK, "state": state, "frames": blocks.get(address, [])}
        )
    size, active = BLOCK * n_addresses, BLOCK * len(blocks)
    segment = {"device": 0, "address": BASE, "total_size": size, "allocated_size": active, "active_size": active, "stream": 0}
    segment.update({"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True, "blocks": shown})
    return {"segments": [segment], "device_traces": [list(_C.trace)]}


memory._snapshot = snapshot
_C.TOTAL = 48 << 30
