"""DDPM: a schedule in buffers, time embeddings, gathers by step, EMA weights, sampling backwards."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


class Denoiser(nn.Module):
    def __init__(self, steps=10):
        super().__init__()
        betas = torch.linspace(1e-3, 0.1, steps)
        alphas = torch.cumprod(1.0 - betas, dim=0)
        for name, value in {"betas": betas, "roots": alphas.sqrt(), "rest": (1 - alphas).sqrt()}.items():
            self.register_buffer(name, value)
        self.time = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 12))
        self.into, self.out = nn.Conv1d(2, 6, 3, padding=1, padding_mode="circular"), nn.Conv1d(6, 2, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)

    def embed(self, t):
        rates = torch.exp(torch.arange(4) * (-math.log(100.0) / 4))
        angles = t.float()[:, None] * rates[None]
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def forward(self, x, t):
        scale, shift = self.time(self.embed(t)).unsqueeze(-1).chunk(2, dim=1)
        h = self.norm(self.into(x)) * (scale + 1) + shift
        return self.out(F.gelu(h, approximate="tanh"))

    def loss(self, x, t, noise):
        def pick(values):
            return values.gather(0, t).reshape(-1, 1, 1)

        return F.mse_loss(self(pick(self.roots) * x + pick(self.rest) * noise, t), noise)

    @torch.no_grad()
    def sample(self, x):
        for t in reversed(range(len(self.betas))):
            e = self(x, torch.full((x.shape[0],), t, dtype=torch.long))
            x = (x - self.betas[t] / self.rest[t] * e) / torch.sqrt(1.0 - self.betas[t])
        return x


def main():
    model = fill(torch, Denoiser())
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.99), amsgrad=True)
    x, losses = torch.from_numpy(numbers(4, 2, 8)), []
    for i in range(20):
        t, noise = torch.from_numpy(classes(10, 4, seed=i)), torch.from_numpy(numbers(4, 2, 8, seed=i))
        loss = model.loss(x, t, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), model.parameters(), strict=False):
                mine.lerp_(theirs, 0.1)
        losses.append(loss.item())
    return [*losses, ema.sample(x).std().item()]
