# Healthy: a cache that evicts
import collections

import torch
import stepmem


class BlockCache:
    def __init__(self, limit):
        self.entries = collections.OrderedDict()
        self.limit = limit

    def get(self, key):
        if key not in self.entries:
            self.entries[key] = torch.rand(128)
        self.entries.move_to_end(key)
        while len(self.entries) > self.limit:
            self.entries.popitem(last=False)
        return self.entries[key]


cache = BlockCache(24)
for step in range(300):
    cache.get(step)
    cache.get(step // 2)
    stepmem.step_end(step)
