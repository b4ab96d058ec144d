"""A discrete autoencoder: straight-through Gumbel softmax, noise that is given, annealed temperature, KL to uniform."""

import math

import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn

from tests.programs.same import fill


class DiscreteVAE(nn.Module):
    def __init__(self, groups=3, codes=4):
        super().__init__()
        self.groups, self.codes = groups, codes
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.ELU(), nn.Linear(20, groups * codes))
        self.decoder = nn.Sequential(
            nn.Linear(groups * codes, 20), nn.ELU(), nn.Linear(20, 16), nn.Unflatten(1, (1, 4, 4))
        )

    def forward(self, x, noise, tau):
        logits = self.encoder(x).view(-1, self.groups, self.codes)
        soft = F.softmax((logits + noise) / tau, dim=-1)
        hard = F.one_hot(soft.argmax(-1), self.codes).to(soft.dtype)
        z = hard + soft - soft.detach()
        kl = D.kl_divergence(D.Categorical(logits=logits), D.Categorical(probs=torch.ones_like(logits) / self.codes))
        return self.decoder(z.flatten(1)), kl.sum(-1)


def main(compiled=lambda step: step):
    import numpy as np

    rng = np.random.default_rng(0)
    model = fill(torch, DiscreteVAE())
    x = torch.tensor(rng.uniform(size=(8, 1, 4, 4)) > 0.5, dtype=torch.float32)
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)

    def step(x, noise, tau):
        optimizer.zero_grad()
        logits, kl = model(x, noise, tau)
        recon = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2, 3))
        loss = (recon + 0.1 * kl).mean()
        loss.backward()
        optimizer.step()
        return loss

    run, losses = compiled(step), []
    for i in range(20):
        noise = torch.from_numpy(rng.gumbel(size=(8, 3, 4)).astype("float32"))
        tau = torch.tensor(max(0.5, math.exp(-0.05 * i)))
        losses.append(run(x, noise, tau).item())
    torch.manual_seed(0)
    drawn = F.gumbel_softmax(torch.zeros(500, 4), tau=0.5, hard=True)
    assert drawn.sum().item() == 500
    assert drawn.unique().numel() == 2
    return losses
