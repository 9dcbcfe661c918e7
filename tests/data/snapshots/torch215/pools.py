"""Writes pools.pickle: private pools and pinned memory, as PyTorch 2.15 records them, with cudart.c in place of a GPU.

    gcc -w -shared -fPIC -o cudart.so cudart.c && ln -s cudart.so libcuda.so.1
    LD_PRELOAD=$PWD/cudart.so LD_LIBRARY_PATH=$PWD python pools.py
"""
import pickle

import torch

MIB = 1 << 20
# `torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)` and `_dump_snapshot`, without their initialization of a real device.
torch._C._cuda_record_memory_history("all", "all", "python", 100_000, False, False, False, [], True, True)


def weights(n_bytes):
    return torch.empty(n_bytes, dtype=torch.uint8, device="cuda")


def cached(pool):
    with torch.cuda.use_mem_pool(pool):
        return [weights(3 * MIB) for _ in range(2)]


def capture(graph, *pool):
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(*pool)
        scratch, output = weights(4 * MIB), weights(2 * MIB)
        del scratch
        graph.capture_end()
    return output


def batch(n_bytes):
    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)


def history():
    return batch(2 * MIB)


default = [weights(5 * MIB) for _ in range(3)]
pool = torch.cuda.MemPool()
keys = cached(pool)
handle = torch.cuda.graph_pool_handle()
graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
outputs = [capture(graphs[0]), capture(graphs[1], handle)]
kept = []
for step in range(4):
    loaded = batch(6 * MIB)
    kept.append(history())
    del loaded
print("MemPool", pool.id, "handle", handle, "graphs", [graph.pool() for graph in graphs])
with open("pools.pickle", "wb") as file:
    pickle.dump(torch._C._cuda_memorySnapshot(None), file, protocol=4)
