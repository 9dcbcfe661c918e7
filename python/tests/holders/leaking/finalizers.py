# Names: finalize
import weakref

import torch
import stepmem


class Request:
    pass


pending = set()


def release(tensor):
    tensor.zero_()


def serve(step):
    request = Request()
    pending.add(request)
    weakref.finalize(request, release, torch.randn(200))
    if step % 2:
        pending.discard(request)
    # The other half of the requests are never answered; their objects are small, what their finalizers keep is not.


for step in range(300):
    serve(step)
    stepmem.step_end(step)
