"""Segmentation: a U-Net with attention gates, transposed convolutions, dice plus weighted BCE, mean IoU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.programs.same import fill, numbers


def double(into, out):
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1, bias=False),
        nn.InstanceNorm2d(out, affine=True),
        nn.LeakyReLU(0.1, True),
        nn.Conv2d(out, out, 3, padding="same", padding_mode="reflect", bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(True),
    )


class Gate(nn.Module):
    def __init__(self, gate, skip, inner):
        super().__init__()
        self.g, self.x = nn.Conv2d(gate, inner, 1), nn.Conv2d(skip, inner, 1)
        self.psi = nn.Sequential(nn.Conv2d(inner, 1, 1), nn.Sigmoid())

    def forward(self, g, x):
        return x * self.psi(torch.relu_(self.g(g) + self.x(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.mid = double(2, 4), double(4, 8), double(8, 8)
        self.pool, self.drop = nn.MaxPool2d(2), nn.Dropout2d(0.0)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 8, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")
        self.gate2, self.gate1 = Gate(8, 8, 4), Gate(8, 4, 2)
        self.u2, self.u1 = double(16, 8), double(12, 4)
        self.out = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        c = self.drop(self.mid(self.pool(b)))
        up = self.up2(c)
        b = self.u2(torch.cat([up, self.gate2(up, b)], 1))
        up = self.up1(b)
        a = self.u1(torch.cat([up, self.gate1(up, a)], 1))
        return self.out(a), F.interpolate(b, size=a.shape[2:], mode="nearest").mean(1, keepdim=True)


def dice(logits, target, eps=1.0):
    p = logits.softmax(1)
    t = F.one_hot(target, 3).movedim(-1, 1).float()
    dims = (0, 2, 3)
    return 1 - ((2 * (p * t).sum(dims) + eps) / (p.sum(dims) + t.sum(dims) + eps)).mean()


def iou(pred, target):
    cm = torch.bincount(target.flatten() * 3 + pred.flatten(), minlength=9).reshape(3, 3).double()
    return (cm.diag() / (cm.sum(0) + cm.sum(1) - cm.diag()).clamp(min=1)).mean().item()


def main(compiled=lambda step: step):
    model = fill(torch, UNet(), 0.2).double()
    x = torch.from_numpy(numbers(2, 2, 16, 16)).double()
    y = (x[:, 0] > 0.5).long() + (x[:, 1] > 0.5).long()
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if n.endswith("bias")], "weight_decay": 0},
            {"params": [p for n, p in model.named_parameters() if not n.endswith("bias")]},
        ],
        lr=2e-3,
    )

    def step(x, y):
        logits, extra = model(x)
        loss = (
            F.cross_entropy(logits, y, weight=weight, ignore_index=-100)
            + dice(logits, y)
            + 0.01 * extra.square().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    losses = [run(x, y).item() for _ in range(20)]
    with torch.no_grad():
        losses.append(iou(model(x)[0].argmax(dim=1), y))
    return losses
