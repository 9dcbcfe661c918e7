# Healthy: results are read a few steps later
from concurrent.futures import ThreadPoolExecutor

import torch
import stepmem


def main():
    waiting = []
    with ThreadPoolExecutor(2) as pool:
        for step in range(300):
            waiting.append(pool.submit(torch.randn, 64))
            while len(waiting) > 5:
                waiting.pop(0).result()
            stepmem.step_end(step)


main()
