"""Activation checkpointing of blocks."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.programs.same import classes, fill, numbers


def main(compiled=lambda step: step):
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    head = nn.Linear(6, 2)
    model = fill(torch, nn.ModuleDict({"blocks": blocks, "head": head}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, nesterov=True)
    x, y = torch.from_numpy(numbers(5, 6)), torch.from_numpy(classes(2, 5))

    def step(x, y):
        optimizer.zero_grad()
        hidden = checkpoint(blocks[0], x, use_reentrant=False)
        hidden = checkpoint_sequential(blocks[1:], 2, hidden, use_reentrant=False)
        loss = nn.functional.cross_entropy(head(hidden), y)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
