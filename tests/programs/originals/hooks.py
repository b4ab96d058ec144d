"""Hooks: features from forward hooks, gradients changed by tensor and module hooks."""

import torch
from torch import nn

from tests.programs.same import classes, fill, numbers


def main():
    model = fill(torch, nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))
    features, norms = {}, []
    model[1].register_forward_hook(lambda module, args, output: features.update(relu=output))
    model[2].weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
    handle = model[0].register_full_backward_hook(lambda m, gin, gout: norms.append(gout[0].norm().item()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, losses = torch.from_numpy(numbers(8, 4)).requires_grad_(), torch.from_numpy(classes(2, 8)), []
    for i in range(20):
        if i == 15:
            handle.remove()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + 0.01 * features["relu"].pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(norms) == 15
    return [*losses, *norms]
