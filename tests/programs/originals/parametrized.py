"""Parametrizations: symmetric and orthogonal weights, weight norm of the new kind, right inverses, removal."""

import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn

from tests.programs.same import fill, numbers


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, a):
        return a.triu()


class MatrixExponential(nn.Module):
    def forward(self, x):
        return torch.matrix_exp(x)


class Skew(nn.Module):
    def forward(self, x):
        a = x.triu(1)
        return a - a.transpose(-1, -2)


def main(compiled=lambda step: step):
    model = fill(torch, nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    parametrize.register_parametrization(model[2], "weight", Skew())
    parametrize.register_parametrization(model[2], "weight", MatrixExponential())
    nn.utils.parametrizations.weight_norm(model[3], dim=0)
    names = sorted(n for n, _ in model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.from_numpy(numbers(8, 4)), torch.from_numpy(numbers(8, 2))

    def step(x, y):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    losses = [run(x, y).item() for _ in range(20)]
    w = model[2].weight
    assert torch.allclose(w @ w.T, torch.eye(4), atol=1e-5)
    assert torch.equal(model[0].weight, model[0].weight.T)
    with parametrize.cached():
        losses.append(model(x).sum().item())
    assert parametrize.is_parametrized(model[0])
    assert not parametrize.is_parametrized(model[1])
    parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=True)
    parametrize.remove_parametrizations(model[3], "weight")
    losses.append(model(x).sum().item())
    return [*losses, float(sum(map(len, names))), float(len(list(model.parameters())))]
