"""Gradient penalty: a gradient of a gradient through autograd.grad."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def penalty(critic, real, fake, alpha):
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = torch.autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


def main(compiled=lambda step: step):
    critic = fill(torch, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    real, fake = torch.from_numpy(numbers(6, 4)), torch.from_numpy(numbers(6, 4, seed=1))

    def step(alpha):
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake, alpha)
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(torch.from_numpy(abs(numbers(6, 1, seed=i)) % 1)).item() for i in range(20)]
