"""Top-k activations, a decoder kept at unit norm by in-place projection, quantiles, a checkpoint on the way."""

import io

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class SparseAutoencoder(nn.Module):
    def __init__(self, size, hidden, k):
        super().__init__()
        self.k = k
        self.encoder = nn.Linear(size, hidden)
        self.decoder = nn.Linear(hidden, size, bias=False)
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("idle", torch.zeros(hidden, dtype=torch.long))

    def forward(self, x):
        scores = F.relu(self.encoder(x - self.bias))
        values, places = scores.topk(self.k, dim=-1)
        hidden = torch.zeros_like(scores).scatter_(-1, places, values)
        if self.training:
            self.idle += 1
            self.idle[hidden.gt(0).any(0)] = 0
        return self.decoder(hidden) + self.bias, hidden

    @torch.no_grad()
    def normalize(self):
        self.decoder.weight.div_(self.decoder.weight.norm(dim=0, keepdim=True).clamp_min(1e-8))

    def project(self):
        w, g = self.decoder.weight, self.decoder.weight.grad
        g.sub_((g * w).sum(0, keepdim=True) * w.detach())


def main():
    model = fill(torch, SparseAutoencoder(6, 12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.0, 0.999))
    x, losses = torch.from_numpy(numbers(16, 6)), []
    model.normalize()
    for i in range(20):
        out, hidden = model(x)
        loss = (out - x).pow(2).sum(-1).mean() / x.var(0).sum()
        optimizer.zero_grad()
        loss.backward()
        model.project()
        optimizer.step()
        model.normalize()
        if i == 9:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": i}, buffer)
            buffer.seek(0)
            state = torch.load(buffer, map_location=torch.device("cpu"), weights_only=True)
            model = SparseAutoencoder(6, 12, 3)
            model.load_state_dict(state["model"])
            optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
            optimizer.load_state_dict(state["optimizer"])
        losses.append(
            loss.item()
            + 0.01 * model.idle.gt(2).sum().item()
            + 0.1 * torch.quantile(hidden.detach().max(0).values, 0.75).item()
        )
    return losses
