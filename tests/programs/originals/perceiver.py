"""Cross-attention by einsum, rotary positions, RMS norm, grouped heads, masks where a query may see nothing."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import fill, numbers


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, angles):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


class Cross(nn.Module):
    def __init__(self, size, heads, shared):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size // heads
        self.q = nn.Linear(size, size, bias=False)
        self.kv = nn.Linear(size, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        inverse = 1.0 / 100 ** (torch.arange(0, self.size, 2).float() / self.size)
        self.register_buffer("inverse", inverse, persistent=False)

    def forward(self, x, memory, mask):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.size)
        k, v = self.kv(memory).view(b, -1, 2, self.shared, self.size).unbind(2)
        places = torch.outer(torch.arange(memory.shape[1], dtype=torch.float32), self.inverse)
        q, k = rotate(q, places[:n, None]), rotate(k, places[:, None])
        k, v = (t.repeat_interleave(self.heads // self.shared, dim=2) for t in (k, v))
        direct = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(self.size)
        share = torch.softmax(direct.masked_fill(~mask[:, None], -1e4), dim=-1)
        own = torch.einsum("bhnm,bmhd->bnhd", share, v)
        fused = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask[:, None])
        return self.out((own + fused.transpose(1, 2)).flatten(2))


def main(compiled=lambda step: step):
    model = fill(torch, nn.ModuleList([RMSNorm(8), Cross(8, 4, 2), RMSNorm(8), nn.Linear(8, 2)]))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    x, memory = torch.from_numpy(numbers(2, 3, 8)), torch.from_numpy(numbers(2, 5, 8, seed=2))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)[:, None].expand(2, 3, 5).clone()
    mask[0, 2] = False

    def step(x, memory):
        h = x + model[1](model[0](x), memory, mask)
        loss = F.gaussian_nll_loss(
            *(t.squeeze(-1) for t in (model[3](model[2](h))[..., :1], x[..., :1])), torch.ones(2, 3)
        )
        loss = loss + F.softplus(model[3](h)[..., 1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(x, memory).item() for _ in range(20)]
