# Names: `seen`
import numpy as np
import torch
import stepmem


def main():
    seen = np.zeros((64, 64), dtype=np.float32)
    for step in range(300):
        seen = np.concatenate([seen, torch.randn(32, 64).numpy()])
        stepmem.step_end(step)
    return seen


main()
