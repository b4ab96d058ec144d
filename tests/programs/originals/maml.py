"""MAML: an inner step that is differentiated through, by functional_call."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
    meta = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for i in range(20):
        meta.zero_grad()
        total = 0.0
        for task in range(2):
            x = torch.from_numpy(numbers(6, 1, seed=i + task))
            y = torch.sin(x + task)
            params = dict(model.named_parameters())
            inner = nn.functional.mse_loss(torch.func.functional_call(model, params, (x,)), y)
            grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
            fast = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
            total = total + nn.functional.mse_loss(torch.func.functional_call(model, fast, (x,)), y)
        total.backward()
        meta.step()
        losses.append(total.item())
    return losses
