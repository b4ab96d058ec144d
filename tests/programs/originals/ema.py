"""An exponential moving average of weights, kept by hand through state dicts."""

import copy

import torch
from torch import nn

from tests.programs.same import fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)))
    ema = copy.deepcopy(model).eval()
    for p in ema.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y, losses = torch.from_numpy(numbers(8, 4)), torch.from_numpy(numbers(8, 1, seed=1)), []
    for _ in range(20):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            state = model.state_dict()
            for name, value in ema.state_dict().items():
                if value.dtype.is_floating_point:
                    value.mul_(0.9)
                    value += 0.1 * state[name].detach()
                else:
                    value.copy_(state[name])
        losses.append(nn.functional.mse_loss(ema(x), y).item() + loss.item())
    return losses
