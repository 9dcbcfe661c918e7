# Healthy: a bounded queue that is filled by a thread
import queue
import threading

import torch
import stepmem


def produce(into):
    for _ in range(300):
        into.put(torch.randn(16))
    into.put(None)


def main():
    ahead = queue.Queue(maxsize=16)
    threading.Thread(target=produce, args=(ahead,), daemon=True).start()
    step = 0
    while True:
        batch = ahead.get()
        if batch is None:
            break
        batch.sum()
        step += 1
        stepmem.step_end(step)


main()
