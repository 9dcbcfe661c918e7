# Names: `results`
from concurrent.futures import ThreadPoolExecutor

import torch
import stepmem


def work(batch):
    return batch.numpy().copy()


def main():
    results = []
    with ThreadPoolExecutor(1) as pool:
        for step in range(300):
            results.append(pool.submit(work, torch.randn(64, 64)))
            results[-1].result()
            stepmem.step_end(step)


main()
