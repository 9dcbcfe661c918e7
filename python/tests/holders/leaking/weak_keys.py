# Names: `Registry.by_model`
import weakref

import torch
import stepmem


class Key:
    pass


class Registry:
    def __init__(self):
        self.by_model = weakref.WeakKeyDictionary()


registry = Registry()
keys = []
for step in range(300):
    key = Key()
    keys.append(key)
    registry.by_model[key] = torch.randn(50)
    stepmem.step_end(step)
