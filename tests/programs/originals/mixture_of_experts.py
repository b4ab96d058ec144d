"""A mixture of experts: top-k gates, a softmax over them, weighted outputs."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class MoE(nn.Module):
    def __init__(self, width=6, experts=4, k=2):
        super().__init__()
        self.k, self.gate = k, nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])

    def forward(self, x):
        scores = self.gate(x)
        top, places = torch.topk(scores, self.k, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, places, F.softmax(top, dim=-1))
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        balance = weights.mean(0).var()
        return torch.einsum("be,bed->bd", weights, outputs), balance


def main(compiled=lambda step: step):
    model = fill(torch, MoE())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.from_numpy(numbers(8, 6)), torch.from_numpy(numbers(8, 6, seed=1))

    def step(x, y):
        optimizer.zero_grad()
        output, balance = model(x)
        loss = F.mse_loss(output, y) + 0.01 * balance
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
