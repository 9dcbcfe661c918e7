TOTAL = 1 << 30
allocated = 0
peak = 0
n_ooms = 0
n_reads = 0
observers = []
history = None
trace = []


def _cuda_memoryStats(device):
    global n_reads
    n_reads += 1

    def stat(current, peak):
        every = {"current": current, "peak": peak, "allocated": 0, "freed": 0}
        return {"all": every, "small_pool": every, "large_pool": every}

    return {
        "allocated_bytes": stat(allocated, peak),
        "reserved_bytes": stat(allocated + 1024, peak + 1024),
        "inactive_split_bytes": stat(512, 512),
        "num_alloc_retries": 2,
        "num_ooms": n_ooms,
    }


def _cuda_attach_out_of_memory_observer(observer):
    observers.append(observer)


def _cuda_isHistoryEnabled():
    return history is not None
