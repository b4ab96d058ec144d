"""Parameter groups with rates of their own, and a schedule over them."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}], lr=0.01, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=[lambda e: 0.9**e, lambda e: 0.8**e])
    x, y, losses = torch.from_numpy(numbers(8, 4)), torch.from_numpy(classes(2, 8)), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item() + sum(g["lr"] for g in optimizer.param_groups))
    return losses
