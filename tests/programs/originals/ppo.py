"""PPO: advantages by a reverse scan, Categorical, ratio clipping, minibatches, an entropy bonus."""

import torch
from torch import nn
from torch.distributions import Categorical

from tests.programs.same import classes, fill, numbers


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, action):
        p = Categorical(logits=self.actor(x))
        return p.log_prob(action), p.entropy(), self.critic(x).squeeze(-1)


def main():
    agent = fill(torch, Agent())
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-3, eps=1e-5)
    steps, envs = 8, 2
    obs = torch.from_numpy(numbers(steps, envs, 4))
    actions = torch.from_numpy(classes(3, steps, envs))
    rewards, dones = (
        torch.from_numpy(numbers(steps, envs, seed=2)),
        torch.from_numpy(classes(2, steps, envs, seed=3)).float(),
    )
    losses = []
    for epoch in range(10):
        with torch.no_grad():
            old, _, values = agent(obs.flatten(0, 1), actions.flatten())
            values = values.view(steps, envs)
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(steps - 1)):
                delta = rewards[t] + 0.99 * values[t + 1] * (1.0 - dones[t + 1]) - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * (1.0 - dones[t + 1]) * last
            returns = advantages + values
        order = torch.from_numpy(classes(16, 16, seed=epoch))
        for start in range(0, 16, 8):
            rows = order[start : start + 8]
            new, entropy, value = agent(obs.reshape(-1, 4)[rows], actions.reshape(-1)[rows])
            ratio = (new - old[rows]).exp()
            a = advantages.reshape(-1)[rows]
            a = (a - a.mean()) / (a.std() + 1e-8)
            policy = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2)).mean()
            clipped = values.reshape(-1)[rows] + torch.clamp(value - values.reshape(-1)[rows], -0.2, 0.2)
            r = returns.reshape(-1)[rows]
            critic = 0.5 * torch.max((value - r) ** 2, (clipped - r) ** 2).mean()
            loss = policy - 0.01 * entropy.mean() + 0.5 * critic
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return losses
