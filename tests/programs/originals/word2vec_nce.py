"""Skip-gram with noise-contrastive samples, an embedding bag for contexts, and a table of parameters by name."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill


class SkipGram(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.tables = nn.ModuleDict({"center": nn.Embedding(words, size), "around": nn.Embedding(words, size)})
        self.bag = nn.EmbeddingBag(words, size, mode="mean")
        self.scales = nn.ParameterDict({"bag": nn.Parameter(torch.tensor(0.5))})

    def forward(self, center, around, noise, document, offsets):
        c = self.tables["center"](center) + self.scales["bag"] * self.bag(document, offsets)
        good = torch.einsum("bd,bd->b", c, self.tables["around"](around))
        bad = torch.bmm(self.tables["around"](noise), c.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(1)).mean()


def main(compiled=lambda step: step):
    model = fill(torch, SkipGram(20, 5))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    center, around = torch.from_numpy(classes(20, 8)), torch.from_numpy(classes(20, 8, seed=2))
    noise = torch.from_numpy(classes(20, 8, 4, seed=3))
    document, offsets = torch.from_numpy(classes(20, 20, seed=4)), torch.arange(0, 16, 2)

    def step(center, around, noise):
        optimizer.zero_grad()
        loss = model(center, around, noise, document, offsets)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(center, around, noise).item() for _ in range(20)]
