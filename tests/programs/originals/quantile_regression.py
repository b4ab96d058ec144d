"""Quantile regression with the pinball loss, a Huberised one, and intervals scored by torch.quantile."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


class Pinball(nn.Module):
    def __init__(self, quantiles):
        super().__init__()
        self.register_buffer("q", torch.as_tensor(quantiles))

    def forward(self, pred, target):
        errors = target.unsqueeze(-1) - pred
        return torch.max(self.q * errors, (self.q - 1) * errors).mean(dim=0).sum()


def main(compiled=lambda step: step):
    model = fill(torch, nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 3)))
    criterion = Pinball([0.1, 0.5, 0.9])
    x = torch.from_numpy(numbers(32, 2))
    y = x[:, 0].sin() + 0.3 * torch.from_numpy(numbers(32)) * x[:, 1].abs()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.05)

    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        pred = model(x)
        loss = criterion(pred, y) + 0.1 * nn.functional.huber_loss(pred[:, 1], y, delta=0.5)
        crossing = torch.relu(pred[:, :-1] - pred[:, 1:]).sum(-1).mean()
        (loss + crossing).backward()
        optimizer.step()
        return loss

    run, losses = compiled(step), []
    for _ in range(25):
        loss = run(x, y)
        scheduler.step(loss.item())
        losses += [loss.item(), optimizer.param_groups[0]["lr"]]
    with torch.no_grad():
        low, mid, high = model(x).unbind(-1)
        inside = ((y >= low) & (y <= high)).float().mean()
        spread = torch.quantile(high - low, torch.tensor([0.25, 0.5, 0.75]), interpolation="linear")
        middle = torch.median(mid), torch.nanmedian(mid), mid.kthvalue(5).values, mid.sort(descending=True)[0][3]
    return [*losses, inside.item(), *spread.tolist(), *(m.item() for m in middle)]
