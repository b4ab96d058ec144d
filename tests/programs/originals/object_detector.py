"""A one-stage detector: grid targets by index_put_, IoU and focal losses, non-maximum suppression by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


def iou(a, b):
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inside = (high - low).clamp(min=0).prod(-1)

    def area(t):
        return (t[..., 2] - t[..., 0]) * (t[..., 3] - t[..., 1])

    return inside / (area(a) + area(b) - inside).clamp_min(1e-6)


def suppress(boxes, scores, limit=0.5):
    order, kept = scores.argsort(descending=True), []
    while order.numel() > 0:
        best = order[0]
        kept.append(best.item())
        order = order[1:][iou(boxes[best], boxes[order[1:]]) <= limit]
    return kept


def main():
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1),
        nn.GroupNorm(2, 6),
        nn.Hardswish(inplace=True),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.SiLU(),
        nn.Conv2d(6, 5, 1),
    )
    model = fill(torch, model)
    log_vars = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [log_vars], "lr": 0.1}], lr=1e-2)
    image = torch.from_numpy(numbers(1, 1, 8, 8))
    wanted = torch.tensor([[0.1, 0.2, 0.5, 0.6], [0.5, 0.4, 0.9, 0.95]])
    cells = ((wanted[:, :2] + wanted[:, 2:]) / 2 * 4).long()
    target = torch.zeros(4, 4).index_put_((cells[:, 1], cells[:, 0]), torch.ones(2))
    losses = []
    for _ in range(20):
        out = model(image)[0]
        centre = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="xy"), -1).add(0.5).div(4)
        size = F.softplus(out[1:3]).permute(1, 2, 0) * 0.2
        shift = torch.tanh(out[3:5]).permute(1, 2, 0) * 0.1
        boxes = torch.cat([centre + shift - size, centre + shift + size], dim=-1)
        picked = boxes[cells[:, 1], cells[:, 0]]
        p = out[0].sigmoid()
        pt = torch.where(target > 0, p, 1 - p)
        focal = (-(1 - pt).pow(2) * pt.clamp(1e-6).log()).sum() / target.sum()
        overlap = (1 - iou(picked, wanted)).mean()
        parts = torch.stack([focal, overlap])
        loss = (parts * torch.exp(-log_vars) + 0.5 * log_vars).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept = suppress(boxes.detach().view(-1, 4), p.detach().flatten())
        losses.append(loss.item() + 0.01 * len(kept))
    return losses
