# Names: `futures`
from concurrent.futures import ThreadPoolExecutor

import torch
import stepmem


def load(n):
    return torch.full((256,), n)


def main():
    futures = []
    with ThreadPoolExecutor(2) as pool:
        for step in range(300):
            futures.append(pool.submit(load, step))
            futures[-1].result()
            stepmem.step_end(step)


main()
