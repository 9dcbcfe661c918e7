"""A stub of PyTorch for the tests, with an allocator that only counts."""

from . import _C, cuda, optim  # noqa: F401


class OutOfMemoryError(RuntimeError):
    pass


cuda.OutOfMemoryError = OutOfMemoryError


def malloc(n_bytes):
    """Allocates. If the device is full, calls the observers and raises OutOfMemoryError."""
    if _C.allocated + n_bytes > _C.TOTAL:
        _C.n_ooms += 1
        for observer in _C.observers:
            observer(0, n_bytes, _C.allocated, _C.TOTAL - _C.allocated)
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {n_bytes / (1 << 20):.2f} MiB. GPU 0 has 1.00 GiB")
    _C.allocated += n_bytes
    _C.n_allocations += 1
    _C.peak = max(_C.peak, _C.allocated)
    if _C.history is not None:
        entry = {"action": "alloc", "size": n_bytes}
        _C.trace.append({**entry, "user_metadata": _C.metadata} if _C.metadata else entry)
        del _C.trace[: -_C.history["max_entries"]]


def free(n_bytes):
    _C.n_frees += 1
    _C.allocated -= n_bytes
