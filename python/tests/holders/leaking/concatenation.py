# Names: `buffer`
import torch
import stepmem


class Features:
    def __init__(self):
        self.buffer = torch.empty(0, 16)

    def extend(self, features):
        self.buffer = torch.cat([self.buffer, features])


def main():
    features = Features()
    for step in range(300):
        features.extend(torch.randn(4, 16))
        stepmem.step_end(step)


main()
