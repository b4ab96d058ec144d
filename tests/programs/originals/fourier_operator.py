"""A Fourier neural operator: complex weights multiply the low frequencies of a field."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


class SpectralConv2d(nn.Module):
    def __init__(self, inner, outer, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / (inner * outer)
        self.low = nn.Parameter(scale * torch.rand(inner, outer, modes, modes, dtype=torch.cfloat))
        self.high = nn.Parameter(scale * torch.rand(inner, outer, modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(x.size(0), self.low.size(1), x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=(x.size(-2), x.size(-1)))


class Operator(nn.Module):
    def __init__(self, width=4, modes=2):
        super().__init__()
        self.lift = nn.Conv2d(1, width, 1)
        self.spectral = nn.ModuleList([SpectralConv2d(width, width, modes) for _ in range(2)])
        self.local = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(2)])
        self.project = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = torch.nn.functional.gelu(spectral(x) + local(x))
        return self.project(x)


def main(compiled=lambda step: step):
    model = fill(torch, Operator())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.is_complex():
                p.imag.copy_(torch.from_numpy(numbers(*p.shape, seed=len(name))) * 0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = (out - y).flatten(1).norm(dim=1).div(y.flatten(1).norm(dim=1)).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    x, y = torch.from_numpy(numbers(3, 1, 8, 8)), torch.from_numpy(numbers(3, 1, 8, 8, seed=1))
    return [run(x, y).item() for _ in range(20)]
