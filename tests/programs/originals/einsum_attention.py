"""Attention written with einsum, rotary positions and a causal mask."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def rotate(x):
    t, d = x.shape[1], x.shape[-1]
    angles = torch.outer(torch.arange(t).float(), 1.0 / (100 ** (torch.arange(0, d, 2).float() / d)))
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (layer(x).reshape(b, t, self.heads, -1) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("bthd,bshd->bhts", rotate(q), rotate(k)) / (c // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
        return self.o(torch.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, c))


def main(compiled=lambda step: step):
    model = fill(torch, Attention())
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
    x = torch.from_numpy(numbers(3, 5, 8))

    def step(x):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x)[:, :-1], x[:, 1:])
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x).item() for _ in range(20)]
