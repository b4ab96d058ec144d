"""Advantage actor-critic with a clipped ratio (PPO) and an entropy bonus."""

import torch
from torch import nn
from torch.distributions import Normal

from tests.programs.same import classes, fill, numbers


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor_mean = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x, action):
        mean = self.actor_mean(x)
        probs = Normal(mean, torch.exp(self.actor_logstd.expand_as(mean)))
        return probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


def main():
    agent = fill(torch, Agent())
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    obs, action = torch.from_numpy(numbers(16, 4)), torch.from_numpy(numbers(16, 2, seed=1))
    returns = torch.from_numpy(numbers(16, seed=2))
    with torch.no_grad():
        old_logprob, _, value = agent(obs, action)
        advantages = returns - value.flatten()
    losses = []
    for i in range(20):
        rows = torch.from_numpy(classes(16, 8, seed=i))
        logprob, entropy, value = agent(obs[rows], action[rows])
        ratio = (logprob - old_logprob[rows]).exp()
        adv = advantages[rows]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
        v_loss = 0.5 * ((value.view(-1) - returns[rows]) ** 2).mean()
        loss = pg - 0.01 * entropy.mean() + 0.5 * v_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses
