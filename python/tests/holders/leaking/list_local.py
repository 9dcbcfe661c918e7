# Names: `losses`
import torch
import stepmem


def main():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(300):
        loss = model(torch.randn(4, 16)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        stepmem.step_end(step)
    print(sum(each.item() for each in losses))


if __name__ == "__main__":
    main()
