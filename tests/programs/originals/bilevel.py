"""Nested optimisation: hyperparameters learned through unrolled steps, by functional_call."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from tests.programs.same import fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 1)))
    log_decay = nn.Parameter(torch.full((2,), -3.0))
    log_rate = nn.Parameter(torch.tensor(-2.0))
    outer = torch.optim.Adam([log_decay, log_rate], lr=0.05)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.from_numpy(numbers(12, 3)), torch.from_numpy(numbers(12, 1, seed=2))
    losses = []
    for _ in range(20):
        weights = {k: v.detach().requires_grad_() for k, v in model.named_parameters()}
        for _ in range(3):
            fit = F.mse_loss(functional_call(model, weights, (x[:8],)), y[:8])
            decay = sum(log_decay[i // 2].exp() * w.square().sum() for i, w in enumerate(weights.values()))
            grads = torch.autograd.grad(fit + decay, list(weights.values()), create_graph=True)
            weights = {k: w - log_rate.exp() * g for (k, w), g in zip(weights.items(), grads, strict=False)}
        held = F.mse_loss(functional_call(model, weights, (x[8:],)), y[8:])
        outer.zero_grad()
        held.backward()
        outer.step()
        inner.zero_grad()
        F.huber_loss(model(x[:8]), y[:8]).backward()
        inner.step()
        losses.append(held.item())
    slope = vmap(grad(lambda row: model(row).sum()))(x)
    return losses + slope.norm(dim=1).tolist()
