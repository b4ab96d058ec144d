"""A physics-informed network: derivatives of the output by the input, in the loss."""

import torch
from torch import nn

from tests.programs.same import fill


def main(compiled=lambda step: step):
    model = fill(torch, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(t):
        t = t.clone().requires_grad_(True)
        u = model(t)
        du = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        ddu = torch.autograd.grad(du, t, torch.ones_like(du), create_graph=True)[0]
        start = model(torch.zeros(1, 1))
        loss = (ddu + u).pow(2).mean() + (start - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run, t = compiled(step), torch.linspace(0, 2, 9).view(-1, 1)
    return [run(t).item() for _ in range(20)]
