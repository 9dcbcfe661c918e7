# Names: stack
import contextlib

import torch
import stepmem


def main():
    with contextlib.ExitStack() as stack:
        for step in range(300):
            scratch = torch.empty(500)
            stack.callback(scratch.zero_)
            stepmem.step_end(step)


main()
