"""A neural ODE: Runge-Kutta steps by hand, and the adjoint method as a function of its own."""

import itertools

import torch
from torch import nn

from tests.programs.same import fill, numbers


class Field(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Softplus(beta=2), nn.Linear(width, 2))

    def forward(self, t, y):
        return self.net(torch.cat([y, t.expand(y.shape[0], 1)], dim=1))


def rk4(f, t, y, h):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, y, times, *weights):
        ctx.f = f
        with torch.no_grad():
            for a, b in itertools.pairwise(times):
                y = rk4(f, a, y, b - a)
        ctx.save_for_backward(times, y, *weights)
        return y

    @staticmethod
    def backward(ctx, grad):
        times, y, *weights = ctx.saved_tensors
        f, a = ctx.f, grad
        sums = [torch.zeros_like(w) for w in weights]
        for t0, t1 in zip(times.flip(0)[:-1], times.flip(0)[1:], strict=False):
            with torch.no_grad():
                y = rk4(f, t0, y, t1 - t0)
            with torch.enable_grad():
                before = y.detach().requires_grad_(True)
                after = rk4(f, t1, before, t0 - t1)
                grads = torch.autograd.grad(after, (before, *weights), a, allow_unused=True)
            a = grads[0]
            sums = [s if g is None else s + g for s, g in zip(sums, grads[1:], strict=False)]
        return None, a, None, *sums


def main(compiled=lambda step: step):
    field, losses = fill(torch, Field()), []
    times = torch.linspace(0.0, 1.0, 5)
    y0 = torch.from_numpy(numbers(6, 2))
    rotation = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    target = y0 @ rotation.mT
    optimizer = torch.optim.Adam(field.parameters(), lr=0.02)

    def direct(y0):
        optimizer.zero_grad()
        y = y0
        for i in range(4):
            y = rk4(field, times[i], y, times[i + 1] - times[i])
        loss = torch.mean((y - target).abs() ** 2)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(direct)
    losses += [run(y0).item() for _ in range(12)]
    for _ in range(10):
        optimizer.zero_grad()
        y = Adjoint.apply(field, y0, times, *field.parameters())
        loss = nn.functional.mse_loss(y, target, reduction="mean")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
