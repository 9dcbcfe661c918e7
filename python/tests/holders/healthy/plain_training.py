# Healthy: nothing is kept
import torch
import stepmem


def main():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(300):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        stepmem.step_end(step)


main()
