"""Weight normalisation as a parametrization."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tests.programs.same import fill, numbers


def main():
    model = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.ReLU(), weight_norm(nn.Linear(6, 2), dim=None))
    fill(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y, losses = torch.from_numpy(numbers(8, 4)), torch.from_numpy(numbers(8, 2, seed=1)), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert "0.parametrizations.weight.original0" in model.state_dict()
    return losses
