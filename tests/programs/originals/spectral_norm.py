"""Spectral normalisation: a power iteration at each training step."""

import torch
from torch import nn
from torch.nn.utils import spectral_norm

from tests.programs.same import fill, numbers


def main():
    model = nn.Sequential(spectral_norm(nn.Linear(5, 7)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(7, 1)))
    fill(torch, model)
    for name, buffer in model.named_buffers():
        buffer.copy_(nn.functional.normalize(torch.from_numpy(abs(numbers(*buffer.shape, seed=len(name)))), dim=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, losses = torch.from_numpy(numbers(8, 5)), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.relu(1 - model(x)).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
