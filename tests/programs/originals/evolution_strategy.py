"""An evolution strategy: parameters as one vector, mirrored noise, ranks of rewards; no gradients."""

import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.programs.same import fill, numbers


def main():
    net = fill(torch, nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)))
    x = torch.from_numpy(numbers(10, 3))
    y = x.prod(dim=1, keepdim=True)
    theta = parameters_to_vector(net.parameters()).detach()
    sigma, lr, n = 0.1, 0.05, 8
    m = torch.zeros_like(theta)
    v = torch.zeros_like(theta)
    out = []

    def fitness(t):
        vector_to_parameters(t, net.parameters())
        with torch.no_grad():
            return -((net(x) - y) ** 2).mean().item()

    for it in range(20):
        eps = torch.from_numpy(numbers(n, theta.numel(), seed=it))
        eps = torch.cat([eps, -eps])
        rewards = torch.tensor([fitness(theta + sigma * e) for e in eps])
        ranks = torch.empty_like(rewards)
        ranks[rewards.argsort()] = torch.arange(len(rewards), dtype=torch.float32)
        w = ranks / (len(rewards) - 1) - 0.5
        g = (w[:, None] * eps).mean(0) / sigma
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        theta += lr * m / (v.sqrt() + 1e-3)
        theta -= lr * 0.01 * theta
        out.append(fitness(theta))
    return out
