# Names: `done`
import queue
import threading

import torch
import stepmem


def worker(inbox, ready):
    done = []
    while True:
        item = inbox.get()
        if item is None:
            return
        done.append(item * 2)
        ready.set()


def main():
    inbox, ready = queue.Queue(), threading.Event()
    thread = threading.Thread(target=worker, args=(inbox, ready), daemon=True)
    thread.start()
    for step in range(300):
        ready.clear()
        inbox.put(torch.randn(64))
        ready.wait()
        stepmem.step_end(step)
    inbox.put(None)
    thread.join()


main()
