"""Triplets with hard mining, ArcFace heads, prototypes by cdist, and k nearest neighbours."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.programs.same import classes, fill, numbers


class ArcFace(nn.Module):
    def __init__(self, size, count, s=8.0, m=0.3):
        super().__init__()
        self.s, self.m = s, m
        self.weight = nn.Parameter(torch.FloatTensor(count, size))
        nn.init.xavier_uniform_(self.weight)
        self.threshold, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, x, label):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(1e-6, 1))
        phi = cosine * math.cos(self.m) - sine * math.sin(self.m)
        phi = torch.where(cosine > self.threshold, phi, cosine - self.mm)
        one_hot = torch.zeros(cosine.size())
        one_hot.scatter_(1, label.view(-1, 1).long(), 1)
        return ((one_hot * phi) + ((1.0 - one_hot) * cosine)) * self.s


def hard_triplets(e, y, margin=0.3):
    d = torch.cdist(e, e)
    same = y[:, None] == y[None, :]
    eye = torch.eye(len(y), dtype=torch.bool)
    positive = d.masked_fill(~same | eye, -1.0).max(dim=1)[0]
    negative = d.masked_fill(same, float("inf")).min(dim=1).values
    usable = (positive >= 0) & torch.isfinite(negative)
    return F.relu(positive - negative + margin)[usable].mean()


def main():
    net = nn.Sequential(nn.Linear(5, 16), nn.Hardsigmoid(), nn.Linear(16, 6), nn.Dropout(p=0.5).eval())
    head = ArcFace(6, 4)
    fill(torch, nn.ModuleList([net, head]))
    optimizer = torch.optim.Adadelta([*net.parameters(), *head.parameters()], lr=1.0, rho=0.9)
    x, y = torch.from_numpy(numbers(16, 5)), torch.from_numpy(classes(4, 16))
    losses = []
    for _ in range(20):
        e = net(x)
        loss = F.cross_entropy(head(e, y), y) + hard_triplets(F.normalize(e, p=2, dim=1), y)
        anchor, positive, negative = e[0:4], e[4:8], e[8:12]
        loss = loss + 0.1 * nn.TripletMarginLoss(margin=1.0, p=2, swap=True)(anchor, positive, negative)
        loss = loss + 0.1 * nn.CosineEmbeddingLoss(margin=0.2)(anchor, positive, torch.tensor([1, -1, 1, -1]))
        loss = loss + 0.1 * F.margin_ranking_loss(anchor[:, 0], positive[:, 0], torch.ones(4), margin=0.1)
        loss = loss + 0.1 * F.hinge_embedding_loss((anchor - negative).abs().sum(1), torch.tensor([1, -1, -1, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        e = net(x)
        prototypes = torch.stack([e[y == c].mean(0) for c in y.unique()])
        near = torch.cdist(e, prototypes, p=1).argmin(1)
        knn = torch.cdist(e, e).fill_diagonal_(float("inf")).topk(3, largest=False).indices
        votes = torch.mode(y[knn], dim=1).values
    return [*losses, (near == y).float().mean().item(), votes.eq(y).sum().item() / 16]
