"""MoCo: a queue of keys in a buffer with a pointer, InfoNCE against it, momentum encoder, shuffles by permutation."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class MoCo(nn.Module):
    def __init__(self, dim=4, size=12, momentum=0.9, temperature=0.2):
        super().__init__()
        self.size, self.momentum, self.temperature = size, momentum, temperature
        self.q, self.k = (
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, dim)),
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, dim)),
        )
        fill(torch, self.q)
        for pq, pk in zip(self.q.parameters(), self.k.parameters(), strict=False):
            pk.data.copy_(pq.data)
            pk.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.from_numpy(numbers(dim, size)), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _enqueue(self, keys):
        ptr, n = int(self.pointer), keys.shape[0]
        assert self.size % n == 0
        self.queue[:, ptr : ptr + n] = keys.T
        self.pointer[0] = (ptr + n) % self.size

    def forward(self, a, b, order):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            for pq, pk in zip(self.q.parameters(), self.k.parameters(), strict=False):
                pk.data = pk.data * self.momentum + pq.data * (1.0 - self.momentum)
            k = F.normalize(self.k(b[order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._enqueue(k)
        return logits, labels


def accuracy(output, target, topk=(1, 3)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)).item() for k in topk]


def main():
    model, losses = MoCo(), []
    optimizer = torch.optim.SGD(model.q.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    x = torch.from_numpy(numbers(4, 6))
    for i in range(20):
        order = torch.tensor([(j * 3 + i) % 4 for j in range(4)])
        a, b = x + 0.1 * torch.from_numpy(numbers(4, 6, seed=i)), x * (1 + 0.01 * i)
        logits, labels = model(a, b, order)
        loss = criterion(logits, labels)
        losses += [loss.item(), *accuracy(logits, labels)]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*losses, float(model.pointer), model.queue.sum().item()]
