"""A small vocoder trained with a loss over spectrograms of several resolutions."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def magnitude(x, n_fft, hop):
    window = torch.hann_window(n_fft)
    spectrum = torch.stft(x, n_fft, hop, n_fft, window, center=True, return_complex=True)
    return torch.sqrt(spectrum.real.pow(2) + spectrum.imag.pow(2) + 1e-2)


def spectral_loss(found, wanted):
    total = 0.0
    for n_fft, hop in ((16, 4), (32, 8), (12, 5)):
        a, b = magnitude(found, n_fft, hop), magnitude(wanted, n_fft, hop)
        convergence = torch.linalg.norm(b - a) / torch.linalg.norm(b)
        total = total + convergence + nn.functional.mse_loss(a.log1p(), b.log1p())
    return total


def main(compiled=lambda step: step):
    model = fill(torch, nn.Sequential(nn.Conv1d(1, 6, 5, padding=2), nn.Tanh(), nn.Conv1d(6, 1, 5, padding=2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    window = torch.hamming_window(16)

    def step(x, y):
        optimizer.zero_grad()
        out = model(x).squeeze(1)
        # Through its own spectrum and back: a phase that the model chose.
        spectrum = torch.stft(out, 16, window=window, return_complex=True)
        phase = torch.polar(torch.ones_like(spectrum.abs()), spectrum.angle())
        out = torch.istft(spectrum.abs() * phase, 16, window=window, length=y.shape[-1])
        loss = spectral_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    x, y = torch.from_numpy(numbers(2, 1, 96)), torch.from_numpy(numbers(2, 96, seed=1))
    return [run(x, y).item() for _ in range(20)]
