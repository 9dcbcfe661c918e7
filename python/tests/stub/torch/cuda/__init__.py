from types import SimpleNamespace

from .. import _C
from .._C import forbid
from . import graphs, memory  # noqa: F401
from .graphs import CUDAGraph, graph, is_current_stream_capturing, make_graphed_callables  # noqa: F401
from .memory import set_per_process_memory_fraction  # noqa: F401

is_up = True


def is_initialized():
    return is_up


def current_device():
    forbid("current_device")
    return 0


def device_count():
    forbid("device_count")
    return 1


def memory_allocated(device=None):
    return _C.allocated


def memory_stats_as_nested_dict(device=None):
    return _C._cuda_memoryStats(device)


def mem_get_info(device=None):
    forbid("mem_get_info")
    return _C.TOTAL - _C.allocated, _C.TOTAL


def get_device_properties(device):
    forbid("get_device_properties")
    return SimpleNamespace(uuid="01234567-89ab-cdef-0123-456789abcdef", total_memory=_C.TOTAL)


def reset_peak_memory_stats(device=None):
    _C._cuda_resetPeakMemoryStats(0)


def empty_cache():
    forbid("empty_cache")
    _C.cached = 0


def synchronize(device=None):
    raise AssertionError("the client waits for the GPU")


def init():
    raise AssertionError("the client initializes CUDA")


_lazy_init = init
