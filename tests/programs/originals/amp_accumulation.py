"""Mixed precision with a gradient scaler, accumulated over micro-batches."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y, losses = torch.from_numpy(numbers(40, 4, 4)), torch.from_numpy(classes(3, 40, 4)), []
    for i in range(40):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=False):
            loss = nn.functional.cross_entropy(model(x[i]), y[i]) / 2
        scaler.scale(loss).backward()
        if (i + 1) % 2 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return losses
