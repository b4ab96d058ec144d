"""Warm-up, then cosine, then a plateau schedule."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(3, 6), nn.ELU(), nn.Linear(6, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15, eta_min=1e-4)
    chain = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[5])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    x, y, losses = torch.from_numpy(numbers(8, 3)), torch.from_numpy(numbers(8, 1, seed=1)), []
    for epoch in range(20):
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(x), y, delta=0.5)
        loss.backward()
        optimizer.step()
        if epoch < 12:
            chain.step()
        else:
            plateau.step(loss.item())
        losses.append(loss.item() + optimizer.param_groups[0]["lr"])
    return losses
