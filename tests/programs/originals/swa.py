"""Stochastic weight averaging with its schedule, and statistics counted anew."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from tests.programs.same import classes, fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swa_model, swa_scheduler = AveragedModel(model), SWALR(optimizer, swa_lr=0.05, anneal_epochs=5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    x, y, losses = torch.from_numpy(numbers(8, 4)), torch.from_numpy(classes(2, 8)), []
    for epoch in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if epoch >= 8:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
        losses.append(loss.item())
    update_bn([x[:4], x[4:]], swa_model)
    swa_model.eval()
    return [*losses, nn.functional.cross_entropy(swa_model(x), y).item()]
