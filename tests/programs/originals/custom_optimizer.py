"""An optimizer of one's own: a subclass that writes step and keeps state."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


class Heavy(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, momentum=0.9):
        if lr < 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["buffer"] = torch.zeros_like(p)
                state["step"] += 1
                state["buffer"].mul_(group["momentum"]).add_(p.grad)
                p.add_(state["buffer"], alpha=-group["lr"] / state["step"] ** 0.5)
        return loss


def main():
    model = fill(torch, nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)))
    optimizer = Heavy(model.parameters(), lr=0.05)
    x, y, losses = torch.from_numpy(numbers(8, 3)), torch.from_numpy(numbers(8, 1, seed=1)), []

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for i in range(20):
        losses.append(optimizer.step(closure).item())
        if i == 10:
            saved = optimizer.state_dict()
            optimizer = Heavy(model.parameters(), lr=0.01)
            optimizer.load_state_dict(saved)
    assert optimizer.state[next(model.parameters())]["step"] == 20
    return losses
