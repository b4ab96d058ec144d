"""Muon-like orthogonal updates for matrices, Adam for the rest, both under one LR; gradients kept per micro batch."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


def newton_schulz(g, steps=5, eps=1e-7):
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = g / (g.norm() + eps)
    flip = g.size(0) > g.size(1)
    if flip:
        x = x.T
    for _ in range(steps):
        xx = x @ x.T
        x = a * x + (b * xx + c * xx @ xx) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True):
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad
                if g is None:
                    continue
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(g)
                buffer = state["buffer"]
                buffer.lerp_(g, 1 - group["momentum"])
                g = g.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                u = newton_schulz(g.flatten(1)).view_as(p)
                p.data.add_(u, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


def main():
    model = fill(torch, nn.Sequential(nn.Linear(6, 12), nn.ReLU6(), nn.Linear(12, 8), nn.Hardswish(), nn.Linear(8, 4)))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizers = [
        Muon(matrices, lr=0.02),
        torch.optim.RAdam(others, lr=3e-3, decoupled_weight_decay=True, weight_decay=0.1),
    ]
    schedulers = [torch.optim.lr_scheduler.MultiStepLR(o, [8, 15], 0.5) for o in optimizers]
    x, y, losses = torch.from_numpy(numbers(12, 6)), torch.from_numpy(classes(4, 12)), []
    for _ in range(20):
        for xs, ys in zip(torch.chunk(x, 3), torch.tensor_split(y, 3), strict=False):
            (F.multi_margin_loss(model(xs), ys, margin=0.5) / 3).backward()
        with torch.no_grad():
            loss = F.multi_margin_loss(model(x), y, margin=0.5)
        for o in optimizers:
            o.step()
            o.zero_grad()
        for s in schedulers:
            s.step()
        losses += [loss.item(), schedulers[0].get_last_lr()[0]]
    return losses
