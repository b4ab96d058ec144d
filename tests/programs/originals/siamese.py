"""A Siamese network with a contrastive loss by pairwise distance."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


def contrastive(a, b, label, margin=2.0):
    distance = F.pairwise_distance(a, b, keepdim=True)
    return torch.mean((1 - label) * distance.pow(2) + label * torch.clamp(margin - distance, min=0.0).pow(2))


def main(compiled=lambda step: step):
    net = fill(torch, nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4)))
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    a, b = torch.from_numpy(numbers(4, 1, 6, 6)), torch.from_numpy(numbers(4, 1, 6, 6, seed=1))
    label = torch.from_numpy(classes(2, 4, 1)).float()

    def step(a, b, label):
        optimizer.zero_grad()
        loss = contrastive(net(a), net(b), label)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(a, b, label).item() for _ in range(20)]
