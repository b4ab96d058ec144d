"""LoRA on frozen weights, orthogonal penalties, matrix factorisation by SVD, whitening by Cholesky, power iteration."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class LoRA(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

    def merged(self):
        return self.base.weight + self.up.weight @ self.down.weight


def main():
    model = fill(torch, nn.Sequential(LoRA(nn.Linear(6, 6), 2), nn.ReLU(), LoRA(nn.Linear(6, 3), 2)))
    frozen = {k: v.clone() for k, v in model.named_parameters() if not v.requires_grad}
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == 2 * 12 + 12 + 6
    optimizer = torch.optim.AdamW(trained, lr=2e-2, weight_decay=0.1)
    x, y = torch.from_numpy(numbers(20, 6)), torch.from_numpy(numbers(20, 3, seed=2))
    cov = torch.cov(x.T) + 0.1 * torch.eye(6)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(cov), (x - x.mean(0)).T, upper=False).T
    losses = []
    for _ in range(20):
        out = model(white)
        gram = model[0].down.weight @ model[0].down.weight.T
        loss = F.l1_loss(out, y) + 0.1 * torch.linalg.matrix_norm(gram - torch.eye(2)) ** 2
        loss = loss + 0.01 * torch.linalg.svdvals(model[0].merged()).sum() + 0.01 * torch.logdet(gram + torch.eye(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.equal(v, dict(model.named_parameters())[k]) for k, v in frozen.items())
    W = model[0].merged().detach()
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    best = (U[:, :2] * S[:2]) @ Vh[:2]
    fit = torch.linalg.lstsq(white, y).solution
    return [*losses, torch.dist(W, best).item(), fit.norm().item(), torch.linalg.pinv(W).norm().item()]
