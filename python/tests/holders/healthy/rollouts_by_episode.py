# Healthy: a list that each episode empties
import typing

import torch
import stepmem


class Rollout(typing.NamedTuple):
    state: torch.Tensor
    reward: float


policy = torch.nn.Linear(8, 2)
optimizer = torch.optim.Adam(policy.parameters())
episode = []
for step in range(300):
    state = torch.randn(8)
    episode.append(Rollout(policy(state).log_softmax(0), float(state.sum())))
    if len(episode) == 25:
        loss = -sum(rollout.state.max() * rollout.reward for rollout in episode)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        episode.clear()
    stepmem.step_end(step)
