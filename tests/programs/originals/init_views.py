"""Initialisation through views and .data, as old code does it."""

import torch
from torch import nn

from tests.programs.same import numbers


def weights_init(m):
    name = m.__class__.__name__
    if name.find("Linear") != -1:
        m.weight.data.copy_(torch.from_numpy(numbers(*m.weight.shape)) * 0.2)
        m.bias.data.fill_(0)
        m.bias.data[1:3].fill_(0.5)
        m.weight.data.view(-1)[0] = 1.0
        m.weight.data[0].mul_(2)
        m.weight.data.t()[1] += 0.1
        m.weight.data.diagonal().fill_(0.25)


def main():
    model = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 4))
    model.apply(weights_init)
    x, losses = torch.from_numpy(numbers(5, 4)), []
    for _ in range(20):
        loss = (model(x) - x).abs().mean()
        model.zero_grad()
        loss.backward()
        for f in model.parameters():
            f.data.sub_(f.grad.data * 0.1)
        losses.append(loss.item())
    return losses
