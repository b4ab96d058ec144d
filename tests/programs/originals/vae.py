"""A variational autoencoder with reparametrised draws and both terms of its loss."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.fc3, self.fc4 = nn.Linear(3, 8), nn.Linear(8, 12)

    def forward(self, x, eps):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


def main(compiled=lambda step: step):
    model = fill(torch, VAE())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.from_numpy((numbers(8, 12) > 0).astype("float32"))

    def step(x, eps):
        optimizer.zero_grad()
        loss = loss_function(*_with(model(x, eps), x))
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, torch.from_numpy(numbers(8, 3, seed=i))).item() for i in range(20)]


def _with(made, x):
    recon, mu, logvar = made
    return recon, x, mu, logvar
