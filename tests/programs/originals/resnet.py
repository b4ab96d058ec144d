"""A residual network with strides, evaluation between epochs, accuracy by max."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu(out)


def main():
    model = nn.Sequential(Block(1, 4), Block(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    fill(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    x, y, losses = torch.from_numpy(numbers(6, 1, 8, 8)), torch.from_numpy(classes(3, 6)), []
    for _ in range(20):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(x)
            _, predicted = torch.max(outputs.data, 1)
            correct = (predicted == y).sum().item()
            losses.append(loss.item() + F.cross_entropy(outputs, y).item())
            assert 0 <= correct <= len(y)
    return losses
