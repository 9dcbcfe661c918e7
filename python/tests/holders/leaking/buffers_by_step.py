# Names: Detector
import torch
import stepmem


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, batch):
        scores = self.layer(batch)
        self.register_buffer(f"threshold_{len(self._buffers)}", scores.detach().mean(0), persistent=False)
        return scores


def main():
    detector = Detector()
    optimizer = torch.optim.SGD(detector.parameters(), lr=0.01)
    for step in range(300):
        loss = detector(torch.randn(32, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stepmem.step_end(step)


main()
