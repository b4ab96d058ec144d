"""Manual gradient descent on plain tensors."""

import torch

from tests.programs.same import numbers


def main():
    w1, w2 = torch.from_numpy(numbers(4, 8)) * 0.3, torch.from_numpy(numbers(8, 1)) * 0.3
    w1.requires_grad_()
    w2.requires_grad_()
    x, y, losses = torch.from_numpy(numbers(16, 4)), torch.from_numpy(numbers(16, 1, seed=1)), []
    for _ in range(20):
        loss = (x.mm(w1).clamp(min=0).mm(w2) - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            w1 -= 1e-3 * w1.grad
            w2 -= 1e-3 * w2.grad
            w1.grad.zero_()
            w2.grad.zero_()
        losses.append(loss.item())
    return losses
