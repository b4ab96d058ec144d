"""A temporal convolutional network: dilated causal convolutions under weight norm, residual blocks, in-place ReLU."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tests.programs.same import fill, numbers


class Chomp(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, : -self.size].contiguous()


class Block(nn.Module):
    def __init__(self, channels, out, dilation):
        super().__init__()
        pad = 2 * dilation
        self.net = nn.Sequential(
            weight_norm(nn.Conv1d(channels, out, 3, padding=pad, dilation=dilation)),
            Chomp(pad),
            nn.ReLU(inplace=True),
            weight_norm(nn.Conv1d(out, out, 3, padding=pad, dilation=dilation)),
            Chomp(pad),
            nn.ReLU6(inplace=True),
        )
        self.down = nn.Conv1d(channels, out, 1) if channels != out else None

    def forward(self, x):
        residual = x if self.down is None else self.down(x)
        return F.relu(self.net(x) + residual, inplace=True)


def main(compiled=lambda step: step):
    model = fill(torch, nn.Sequential(*[Block(1 if i == 0 else 6, 6, 2**i) for i in range(3)], nn.Conv1d(6, 1, 1)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.95, momentum=0.5)
    x = torch.from_numpy(numbers(3, 1, 16)).cumsum(-1) * 0.3

    def step(x):
        loss = F.smooth_l1_loss(model(x[:, :, :-1]), x[:, :, 1:], beta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x).item() for _ in range(20)]
