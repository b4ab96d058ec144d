"""VQ-VAE: nearest codes, a straight-through estimator, codes moved by a running mean."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class Quantizer(nn.Module):
    def __init__(self, codes, size, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.from_numpy(numbers(codes, size, seed=5)))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, z):
        distances = torch.cdist(z, self.codebook) ** 2
        chosen = distances.argmin(dim=1)
        hot = F.one_hot(chosen, self.codebook.size(0)).type(z.dtype)
        quantized = hot @ self.codebook
        if self.training:
            with torch.no_grad():
                self.counts.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.sums.mul_(self.decay).add_(hot.t() @ z, alpha=1 - self.decay)
                self.codebook.copy_(self.sums / self.counts.clamp(min=1e-3).unsqueeze(1))
        commit = F.mse_loss(z, quantized.detach())
        quantized = z + (quantized - z).detach()
        shares = hot.mean(0)
        perplexity = torch.exp(-torch.sum(shares * torch.log(shares + 1e-10)))
        return quantized, commit, perplexity


def main(compiled=lambda step: step):
    encoder = fill(torch, nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.SiLU(inplace=True), nn.Conv1d(8, 4, 1)))
    decoder = fill(torch, nn.Sequential(nn.ConvTranspose1d(4, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv1d(8, 1, 1)))
    quantizer = Quantizer(6, 4)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3, weight_decay=1e-2)
    x = torch.from_numpy(numbers(4, 1, 10))

    def step(x):
        z = encoder(x)
        flat = z.permute(0, 2, 1).reshape(-1, z.shape[1])
        q, commit, perplexity = quantizer(flat)
        q = q.view(z.shape[0], z.shape[2], -1).permute(0, 2, 1).contiguous()
        loss = F.mse_loss(decoder(q), x) + 0.25 * commit
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss + 0.01 * perplexity.detach()

    run = compiled(step)
    return [run(x).item() for _ in range(20)]
