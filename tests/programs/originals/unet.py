"""A U-Net with strided and transposed convolutions, batch normalisation and a Dice loss."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down = double_conv(1, 4), nn.Sequential(nn.MaxPool2d(2), double_conv(4, 8))
        self.up, self.conv, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), double_conv(8, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        return self.out(self.conv(torch.cat([x1, self.up(self.down(x1))], dim=1)))


def dice_loss(logits, target, eps=1.0):
    probs = torch.sigmoid(logits)
    return 1 - (2 * (probs * target).sum() + eps) / (probs.sum() + target.sum() + eps)


def main(compiled=lambda step: step):
    model = fill(torch, UNet()).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x = torch.from_numpy(numbers(2, 1, 8, 8))
    y = (x > 0).float()

    def step(x, y):
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y) + dice_loss(logits, y)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
