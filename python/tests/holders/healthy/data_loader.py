# Healthy: batches of a loader with workers ahead
import torch
import stepmem
from torch.utils.data import DataLoader


def main():
    loader = DataLoader(torch.randn(1200, 8), batch_size=4, shuffle=True)
    model = torch.nn.Linear(8, 1)
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        stepmem.step_end(step)


main()
