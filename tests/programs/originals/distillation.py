"""Distillation: a frozen teacher, soft targets at a temperature."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill, numbers


def main(compiled=lambda step: step):
    teacher = fill(torch, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), 0.5).eval()
    student = fill(torch, nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    for p in teacher.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    x, y, T = torch.from_numpy(numbers(10, 6)), torch.from_numpy(classes(4, 10)), 2.0

    def step(x, y):
        with torch.no_grad():
            soft = F.softmax(teacher(x) / T, dim=-1)
        logits = student(x)
        distill = F.kl_div(F.log_softmax(logits / T, dim=-1), soft, reduction="batchmean") * T * T
        loss = 0.5 * distill + 0.5 * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, y).item() for _ in range(20)]
