"""A network that makes another's kernels, and an ensemble under vmap: gradients by sample, clipped, and Jacobians."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, grad_and_value, jacrev, stack_module_state, vmap

from tests.programs.same import classes, fill, numbers


class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.from_numpy(numbers(2, 4)))
        self.gen = nn.Linear(4, 3 * 2 * 3 * 3 + 3)

    def forward(self, x):
        outs = []
        for z in self.z.unbind(0):
            w = self.gen(z)
            k, b = w[:54].view(3, 2, 3, 3), w[54:]
            outs.append(F.conv2d(x, k, b, padding="same"))
        return torch.stack(outs).mean(dim=(0, 3, 4))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def main():
    hyper = fill(torch, Hyper())
    opt = torch.optim.RMSprop(hyper.parameters(), lr=1e-2, alpha=0.9, centered=True, momentum=0.5)
    models = [fill(torch, MLP(), 0.1 + 0.1 * k) for k in range(3)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])
    x, y = torch.from_numpy(numbers(6, 4)), torch.from_numpy(classes(3, 6))
    img = torch.from_numpy(numbers(6, 2, 5, 5))

    def loss_fn(p, b, x, y):
        return F.cross_entropy(functional_call(base, (p, b), (x,)), y)

    def one(p, b, x, y):
        return F.cross_entropy(functional_call(base, (p, b), (x.unsqueeze(0),)), y.unsqueeze(0))

    out = []
    for _ in range(20):
        grads, losses = vmap(grad_and_value(loss_fn), in_dims=(0, 0, None, None))(params, buffers, x, y)
        params = {k: (v - 0.1 * grads[k]).detach() for k, v in params.items()}
        single = {k: v[0] for k, v in params.items()}
        per = vmap(grad(one), in_dims=(None, None, 0, 0))(single, {}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in per.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        dp = sum((g.flatten(1) * scale[:, None]).sum(0).norm() for g in per.values())
        preds = vmap(lambda p, b: functional_call(base, (p, b), (x,)), in_dims=(0, 0), out_dims=1)(params, buffers)
        var = preds.softmax(-1).var(dim=1).sum()
        J = jacrev(lambda v, p=single: functional_call(base, p, (v,)))(x[0])
        opt.zero_grad()
        loss = F.cross_entropy(hyper(img), y)
        loss.backward()
        opt.step()
        out.append(losses.sum().item() + dp.item() + var.item() + loss.item() + J.norm().item())
    return out
