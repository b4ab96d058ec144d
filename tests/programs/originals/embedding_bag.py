"""Bags of words by EmbeddingBag with offsets."""

import torch
from torch import nn

from tests.programs.same import classes, fill


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(12, 5, mode="mean")
        self.fc = nn.Linear(5, 3)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


def main(compiled=lambda step: step):
    model = fill(torch, TextClassifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    text, offsets = torch.from_numpy(classes(12, 14)), torch.tensor([0, 3, 7, 9])
    y = torch.from_numpy(classes(3, 4))

    def step(text, offsets, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text, offsets), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    run, losses = compiled(step), []
    for _ in range(20):
        losses.append(run(text, offsets, y).item())
        scheduler.step()
    return losses
