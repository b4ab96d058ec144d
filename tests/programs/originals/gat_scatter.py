"""Graph attention over edges: softmax by scatter, pooling by graph, index_add and scatter_reduce."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


def segment_softmax(scores, index, count):
    top = torch.full((count, scores.size(1)), float("-inf")).scatter_reduce(
        0, index[:, None].expand_as(scores), scores.detach(), reduce="amax", include_self=True
    )
    e = (scores - top[index]).exp()
    total = torch.zeros(count, scores.size(1)).index_add_(0, index, e)
    return e / total.index_select(0, index).clamp_min(1e-9)


class GATLayer(nn.Module):
    def __init__(self, into, out, heads):
        super().__init__()
        self.heads, self.out = heads, out
        self.lin = nn.Linear(into, heads * out, bias=False)
        self.src, self.dst = nn.Parameter(torch.empty(1, heads, out)), nn.Parameter(torch.empty(1, heads, out))
        nn.init.xavier_uniform_(self.src)
        nn.init.xavier_uniform_(self.dst)

    def forward(self, x, edges):
        h = self.lin(x).view(-1, self.heads, self.out)
        src, dst = edges
        scores = (h * self.src).sum(-1)[src] + (h * self.dst).sum(-1)[dst]
        weights = segment_softmax(F.leaky_relu(scores, 0.2), dst, x.size(0))
        messages = h[src] * weights.unsqueeze(-1)
        gathered = torch.zeros_like(h).scatter_add(0, dst.view(-1, 1, 1).expand_as(messages), messages)
        return gathered.flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = GATLayer(5, 4, 2), GATLayer(8, 3, 1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(9, 2)

    def forward(self, x, edges, graphs, count):
        x = F.elu(self.norm(self.one(x, edges)))
        x = self.two(x, edges)
        index = graphs[:, None].expand_as(x)
        mean = torch.zeros(count, x.size(1)).scatter_reduce(0, index, x, reduce="mean", include_self=False)
        most = torch.zeros(count, x.size(1)).scatter_reduce(0, index, x, reduce="amax", include_self=False)
        total = torch.zeros(count, x.size(1)).index_add(0, graphs, x)
        return self.head(torch.cat([mean, most, total], dim=-1))


def main(compiled=lambda step: step):
    model = fill(torch, Net())
    edges = torch.from_numpy(classes(12, 2, 40))
    edges = torch.cat([edges, torch.arange(12).repeat(2, 1)], dim=1)
    edges = torch.unique(edges, dim=1)
    degree = torch.bincount(edges[1], minlength=12)
    graphs = torch.arange(12).div(4, rounding_mode="floor")
    x = torch.from_numpy(numbers(12, 5)) + degree[:, None].float().log1p()
    y = torch.tensor([0, 1, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def step():
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges, graphs, 3), y)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    losses = [run().item() for _ in range(20)]
    model.eval()
    with torch.no_grad():
        losses.append(F.nll_loss(F.log_softmax(model(x, edges, graphs, 3), -1), y).item())
    return losses
