"""Fine-tuning: a frozen trunk, a new head, then the trunk set free."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


def main():
    model = nn.Module()
    model.trunk = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    model.head = nn.Linear(8, 3)
    fill(torch, model)
    for p in model.trunk.parameters():
        p.requires_grad = False
    before = model.trunk[0].weight.clone()
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    x, y, losses = torch.from_numpy(numbers(12, 5)), torch.from_numpy(classes(3, 12)), []
    for i in range(20):
        if i == 10:
            assert torch.equal(before, model.trunk[0].weight)
            for p in model.trunk.parameters():
                p.requires_grad = True
            optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": 1e-3})
        loss = nn.functional.cross_entropy(model.head(model.trunk(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert not torch.equal(before, model.trunk[0].weight)
    return losses
