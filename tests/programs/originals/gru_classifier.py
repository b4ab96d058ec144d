"""A GRU whose last step is classified, with OneCycleLR."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        h0 = torch.zeros(2, x.size(0), 5).to(x.device)
        out, _ = self.gru(x, h0)
        return self.fc(out[:, -1, :])


def main(compiled=lambda step: step):
    model = fill(torch, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=25)
    x, y = torch.from_numpy(numbers(6, 5, 3)), torch.from_numpy(classes(2, 6))

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run, losses = compiled(step), []
    for _ in range(20):
        losses.append(run(x, y).item())
        scheduler.step()
    return losses
