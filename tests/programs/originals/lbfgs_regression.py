"""A fit by L-BFGS with a closure."""

import torch
from torch import nn

from tests.programs.same import fill


def main():
    model = fill(torch, nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=5)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(-1, 1)
    y = x.pow(3) - 0.5 * x

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(20)]
