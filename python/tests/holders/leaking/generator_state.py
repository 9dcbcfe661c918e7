# Names: `window`
import torch
import stepmem


def batches():
    window = []
    while True:
        window.append(torch.randn(32))
        yield window[-1]


def main():
    source = batches()
    for step in range(300):
        next(source)
        stepmem.step_end(step)


main()
