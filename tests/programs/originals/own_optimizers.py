"""Optimizers of one's own, state made in the first step: orthogonal momentum, signs, preconditioners, memories."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from tests.programs.same import classes, fill, numbers


class Own(Optimizer):
    """Calls `change` for each parameter with its gradient and its state."""

    def __init__(self, params, lr):
        super().__init__(list(params), {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, p.grad, self.state[p], group["lr"])


class Orthogonal(Own):
    def change(self, p, g, state, lr):
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(g)
        buffer = state["momentum"]
        buffer.lerp_(g, 0.1)
        x = g.lerp(buffer, 0.9)
        if x.ndim == 2:
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
            for _ in range(3):
                x = 1.5 * x - 0.5 * x @ x.mT @ x
        p.add_(x, alpha=-lr)


class Signs(Own):
    def change(self, p, g, state, lr):
        mean = state.setdefault("mean", torch.zeros_like(p))
        p.mul_(1 - lr * 0.1)
        p.add_((mean * 0.9 + g * 0.1).tanh_(), alpha=-lr)
        mean.mul_(0.99).add_(g, alpha=0.01)


class Preconditioned(Own):
    def change(self, p, g, state, lr):
        for axis, size in enumerate(g.shape):
            if len(state) <= axis:
                state[f"factor_{axis}"] = 0.1 * torch.eye(size, out=g.new(size, size))
            flat = g.transpose(0, axis).reshape(size, -1)
            kept = state[f"factor_{axis}"]
            kept.add_(flat @ flat.t())
            values, vectors = torch.linalg.eigh(kept)
            flat = vectors @ values.pow(-0.5 / g.ndim).diag() @ vectors.t() @ flat
            g = flat.view(g.transpose(0, axis).shape).transpose(0, axis)
        torch.sub(p, lr * g, out=p)


class Differences(Own):
    """Remembers the gradient before, in a new tensor at each step."""

    def change(self, p, g, state, lr):
        before = state.get("before", g)
        p.sub_(lr * (g + 0.5 * (g - before)))
        state["before"] = g.clone()


def main(compiled=lambda step: step):
    x, y = torch.from_numpy(numbers(10, 6)), torch.from_numpy(classes(3, 10))
    losses = [0.0] * 20

    def train(kind, lr):
        model = fill(torch, nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 3)))
        optimizer = kind(model.parameters(), lr)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = compiled(step)
        return [run(x, y).item() for _ in losses]

    for kind, lr in ((Orthogonal, 0.05), (Signs, 0.05), (Preconditioned, 0.1), (Differences, 0.1)):
        losses = [a + b for a, b in zip(losses, train(kind, lr), strict=True)]
    return losses
