# Names: `Publisher.outbox`
import queue

import torch
import stepmem


class Publisher:
    def __init__(self):
        self.outbox = queue.Queue()

    def publish(self, name, tensor):
        self.outbox.put({"name": name, "tensor": tensor})


def main():
    publisher = Publisher()
    for step in range(300):
        publisher.publish("gradient", torch.randn(64))
        stepmem.step_end(step)


main()
