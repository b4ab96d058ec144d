"""A RealNVP flow: masks, coupling layers, log-determinants."""

import math

import torch
from torch import nn

from tests.programs.same import fill, numbers


class Coupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.scale = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        kept = x * self.mask
        s, t = self.scale(kept) * (1 - self.mask), self.shift(kept) * (1 - self.mask)
        return kept + (1 - self.mask) * (x - t) * torch.exp(-s), -s.sum(dim=1)


def main(compiled=lambda step: step):
    masks = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]).float().repeat(2, 1)
    flow = fill(torch, nn.ModuleList([Coupling(m) for m in masks]))
    optimizer = torch.optim.Adam([p for p in flow.parameters() if p.requires_grad], lr=2e-3)
    x = torch.from_numpy(numbers(10, 4))

    def step(x):
        z, log_det = x, x.new_zeros(x.shape[0])
        for layer in flow:
            z, more = layer(z)
            log_det += more
        loss = -(-0.5 * (z**2).sum(1) - 2 * math.log(2 * math.pi) + log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x).item() for _ in range(20)]
