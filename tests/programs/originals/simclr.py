"""SimCLR: normalised features, a similarity matrix, masked positives."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


def info_nce(features, temperature=0.5):
    n = features.shape[0] // 2
    labels = torch.cat([torch.arange(n) for _ in range(2)], dim=0)
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    features = F.normalize(features, dim=1)
    similarity = torch.matmul(features, features.T)
    mask = torch.eye(labels.shape[0], dtype=torch.bool)
    labels = labels[~mask].view(labels.shape[0], -1)
    similarity = similarity[~mask].view(similarity.shape[0], -1)
    positives = similarity[labels.bool()].view(labels.shape[0], -1)
    negatives = similarity[~labels.bool()].view(similarity.shape[0], -1)
    logits = torch.cat([positives, negatives], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


def main():
    model = fill(torch, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
    x, losses = numbers(4, 6), []
    for i in range(20):
        views = torch.cat([torch.from_numpy(x + 0.1 * numbers(4, 6, seed=2 * i + k)) for k in range(2)], dim=0)
        loss = info_nce(model(views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
