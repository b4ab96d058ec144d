"""A convolutional autoencoder with upsampling and an L1 term."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(True), nn.Conv2d(4, 2, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(True),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(4, 1, 3, padding=1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), code


def main(compiled=lambda step: step):
    model = fill(torch, AutoEncoder())
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
    x = torch.sigmoid(torch.from_numpy(numbers(3, 1, 8, 8)))

    def step(x):
        optimizer.zero_grad()
        output, code = model(x)
        loss = nn.functional.mse_loss(output, x) + 1e-3 * code.abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x).item() for _ in range(20)]
