"""A mixture density network: normals by a learned factor, mixed; a teacher's vectors, and losses by likelihood."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal, kl_divergence

from tests.programs.same import fill, numbers


class Mixture(nn.Module):
    def __init__(self, into=3, width=8, parts=4, out=2):
        super().__init__()
        self.parts, self.out = parts, out
        self.body = nn.Sequential(nn.Linear(into, width), nn.ELU(), nn.Linear(width, parts * (1 + 2 * out)))
        self.full = nn.Linear(into, out + out * (out + 1) // 2)

    def forward(self, x):
        scores, means, scales = self.body(x).split([self.parts, self.parts * self.out, self.parts * self.out], dim=-1)
        shape = (-1, self.parts, self.out)
        normals = Independent(Normal(means.view(shape), F.softplus(scales).view(shape) + 1e-2), 1)
        return MixtureSameFamily(Categorical(logits=scores), normals), self.one(x)

    def one(self, x):
        mean, entries = self.full(x).tensor_split([self.out], dim=-1)
        factor = torch.zeros(x.size(0), self.out, self.out)
        rows, columns = torch.tril_indices(self.out, self.out)
        factor[:, rows, columns] = entries
        diagonal = F.softplus(factor.diagonal(dim1=-2, dim2=-1)) + 0.1
        return MultivariateNormal(mean, scale_tril=factor.tril(-1) + torch.diag_embed(diagonal))


def main(compiled=lambda step: step):
    model = fill(torch, Mixture())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.from_numpy(numbers(12, 3))
    y = torch.stack([x.prod(-1), x.sin().sum(-1)], dim=-1)
    covariance = torch.tensor([[1.0, 0.3], [0.3, 0.5]])

    def step(x, y):
        mixture, one = model(x)
        prior = MultivariateNormal(torch.zeros(2), covariance)
        loss = -mixture.log_prob(y).mean() - one.log_prob(y).mean() + 0.1 * kl_divergence(one, prior).mean()
        loss = loss + 0.01 * (mixture.variance.mean() - one.entropy().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
