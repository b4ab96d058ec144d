"""Functions with gradients of their own (saved tensors, several outputs, None), hooks on tensors and modules."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return grad * (s + ctx.beta * x * s * (1 - s)), None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_non_differentiable()
        ctx.size = x.shape[1] // 2
        return x[:, : ctx.size].clone(), x[:, ctx.size :].clone()

    @staticmethod
    def backward(ctx, first, second):
        return torch.cat([first, 2 * second], dim=1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.scale, None


def main():
    body = fill(torch, nn.Linear(4, 6))
    head, domain = fill(torch, nn.Linear(3, 1)), fill(torch, nn.Linear(3, 1), 0.3)
    parameters = [*body.parameters(), *head.parameters(), *domain.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    x, seen = torch.from_numpy(numbers(8, 4)), []
    body.register_forward_hook(lambda module, args, out: out * 0.9)
    handle = head.register_full_backward_hook(lambda module, gi, go: seen.append(gi[0].abs().sum().item()))
    losses = []
    for i in range(20):
        h = Swish.apply(body(x), 1.5)
        h.register_hook(lambda g: g.clamp(-0.2, 0.2))
        a, b = Split.apply(h)
        first = head(a).pow(2).mean()
        second = torch.tanh(domain(Reverse.apply(b, 0.5))).add(1).log1p().mean()
        loss = first + second
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i == 10:
            handle.remove()
        losses.append(loss.item() + 0.01 * seen[-1])
    z = torch.tensor([0.3, -0.7], requires_grad=True)
    (g,) = torch.autograd.grad(Swish.apply(z, 1.0).sum(), z, create_graph=True)
    g.pow(2).sum().backward()
    return losses + z.grad.tolist()
