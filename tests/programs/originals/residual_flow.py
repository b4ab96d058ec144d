"""RealNVP with checkerboard masks, invertible 1x1 convolutions (slogdet), ActNorm filled by the first batch."""

import math

import torch
from torch import nn

from tests.programs.same import fill, numbers


class ActNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.log_scale, self.shift = (
            nn.Parameter(torch.zeros(1, channels, 1, 1)),
            nn.Parameter(torch.zeros(1, channels, 1, 1)),
        )
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready.item():
            with torch.no_grad():
                self.shift.data.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.log_scale.data.copy_(-x.std((0, 2, 3), keepdim=True).log())
                self.ready.fill_(True)
        y = (x + self.shift) * self.log_scale.exp()
        return y, self.log_scale.sum() * x.shape[2] * x.shape[3]


class Mix(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.from_numpy(numbers(channels, channels)))[0])

    def forward(self, x):
        y = nn.functional.conv2d(x, self.weight[:, :, None, None])
        return y, torch.linalg.slogdet(self.weight)[1] * x.size(2) * x.size(3)

    def inverse(self, y):
        return nn.functional.conv2d(y, torch.linalg.inv(self.weight).unsqueeze(-1).unsqueeze(-1))


class Coupling(nn.Module):
    def __init__(self, channels, flip):
        super().__init__()
        mask = torch.zeros(1, 1, 4, 4)
        mask[..., ::2, ::2] = 1
        mask[..., 1::2, 1::2] = 1
        self.register_buffer("mask", 1 - mask if flip else mask)
        self.net = fill(
            torch, nn.Sequential(nn.Conv2d(channels, 6, 3, 1, 1), nn.ReLU(), nn.Conv2d(6, 2 * channels, 3, 1, 1)), 0.1
        )

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, 1)
        s, t = torch.tanh(s) * (1 - self.mask), t * (1 - self.mask)
        return x * s.exp() + t, s.flatten(1).sum(-1)


def main():
    flow = nn.ModuleList([m for i in range(2) for m in (ActNorm(3), Mix(3), Coupling(3, bool(i % 2)))])
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 5))
    x, losses = torch.from_numpy(numbers(6, 3, 4, 4)) * 2 + 1, []
    prior = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
    for _ in range(20):
        z, total = x, 0.0
        for module in flow:
            z, det = module(z)
            total = total + det
        bits = -(prior.log_prob(z).sum((1, 2, 3)) + total) / (math.log(2) * z[0].numel())
        loss = bits.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), max_norm=5.0, error_if_nonfinite=True)
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), optimizer.param_groups[0]["lr"]]
    with torch.no_grad():
        back = flow[1].inverse(flow[1](x)[0])
        assert torch.allclose(back, x, atol=1e-4)
    return losses
