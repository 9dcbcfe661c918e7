TOTAL = 1 << 30
allocated = 0
peak = 0
cached = 1024
pinned = 0
private_pools = None
"""Reserved bytes by the id of a private pool, where this PyTorch counts them."""
n_ooms = 0
n_allocations = 0
n_frees = 0
counts_blocks = True
metadata = ""
n_reads = 0
n_resets = 0
observers = []
history = None
fraction_set = 1.0
trace = []
capturing = set()
"""Graphs that are captured."""
broken = []
"""Calls of CUDA while a graph was captured."""


def forbid(name):
    """Notes a call that is not safe while any thread captures."""
    if capturing:
        broken.append(name)


def _cuda_memoryStats(device):
    global n_reads
    n_reads += 1

    def stat(current, peak):
        every = {"current": current, "peak": peak, "allocated": 0, "freed": 0}
        return {"all": every, "small_pool": every, "large_pool": every}

    n_blocks = n_allocations - n_frees if counts_blocks else 0
    pools = {} if private_pools is None else {"reserved_bytes_by_private_pools": {pool: stat(held, held) for pool, held in private_pools.items()}}
    return {
        **pools,
        "allocation": {"all": {"current": n_blocks, "peak": n_blocks, "allocated": n_allocations, "freed": n_frees}},
        "segment": stat(1, 1),
        "active": stat(1, 1),
        "inactive_split": stat(1, 1),
        "allocated_bytes": stat(allocated, peak),
        "reserved_bytes": stat(allocated + cached, peak + cached),
        "active_bytes": stat(allocated, peak),
        "inactive_split_bytes": stat(512, 512),
        "requested_bytes": stat(allocated if counts_blocks else 0, peak),
        "num_alloc_retries": 2,
        "num_ooms": n_ooms,
        "oversize_allocations": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
    }


def _cuda_hostMemoryStats():
    forbid("hostMemoryStats")
    return {"allocated_bytes": {"current": pinned, "peak": pinned, "allocated": pinned, "freed": 0}}


def _cuda_resetPeakMemoryStats(device):
    global n_resets, peak
    n_resets += 1
    peak = allocated


def _cuda_setMemoryFraction(fraction, device):
    global fraction_set
    fraction_set = fraction


def _cuda_getMemoryFraction(device):
    forbid("getMemoryFraction")
    return int(fraction_set * TOTAL) / TOTAL


def _cuda_attach_out_of_memory_observer(observer):
    observers.append(observer)


def _cuda_isHistoryEnabled():
    return history is not None
