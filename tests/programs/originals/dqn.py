"""DQN: a target network, gathered action values, soft updates of state dicts."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


def main():
    policy_net = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    target_net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
    losses = []
    for i in range(20):
        state, action = torch.from_numpy(numbers(8, 4, seed=i)), torch.from_numpy(classes(2, 8, 1, seed=i))
        rewards, follow = torch.from_numpy(numbers(8, seed=i)), torch.from_numpy(numbers(8, 4, seed=i + 1))
        alive = torch.from_numpy(classes(2, 8, seed=i + 5)).bool()
        values = policy_net(state).gather(1, action)
        next_values = torch.zeros(8)
        with torch.no_grad():
            next_values[alive] = target_net(follow[alive]).max(1).values
        expected = (next_values * 0.99) + rewards
        loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        target, policy = target_net.state_dict(), policy_net.state_dict()
        for key in policy:
            target[key] = policy[key] * 0.05 + target[key] * 0.95
        target_net.load_state_dict(target)
        losses.append(loss.item())
    return losses
