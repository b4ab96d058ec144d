"""A graph network: messages gathered along edges, added and averaged at nodes."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


class Layer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own, self.message = nn.Linear(cin, cout), nn.Linear(2 * cin, cout)

    def forward(self, x, edges):
        source, target = edges
        messages = F.relu(self.message(torch.cat([x[source], x[target]], dim=-1)))
        total = torch.zeros(x.size(0), messages.size(1)).index_add_(0, target, messages)
        degree = torch.zeros(x.size(0)).scatter_add_(0, target, torch.ones(target.size(0))).clamp(min=1)
        return self.own(x) + total / degree.unsqueeze(-1)


def main(compiled=lambda step: step):
    layers = fill(torch, nn.ModuleList([Layer(4, 6), Layer(6, 3)]))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2, weight_decay=5e-4)
    x, edges = torch.from_numpy(numbers(7, 4)), torch.from_numpy(classes(7, 2, 15))
    y, train = torch.from_numpy(classes(3, 7)), torch.tensor([0, 2, 3, 6])

    def step(x, y):
        optimizer.zero_grad()
        h = x
        for layer in layers:
            h = F.elu(layer(h, edges))
        loss = F.cross_entropy(h[train], y[train])
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
