# Names: graph behind `total`
import torch
import stepmem


def main():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    total = 0.0
    for step in range(300):
        loss = model(torch.randn(32, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + model(torch.randn(4, 16)).sum()
        stepmem.step_end(step)
    print(total.item())


main()
