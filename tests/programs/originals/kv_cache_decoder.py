"""A decoder with rotary positions, grouped queries and RMS norms: trained, then generating with a cache of keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin, cache=None):
        _b, _t, _ = x.shape
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
        v = self.v(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat((cache["k"], k), dim=2), torch.cat((cache["v"], v), dim=2)
            cache["k"], cache["v"] = k, v
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.o(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, vocab=13, width=16, heads=4, kv_heads=2, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(
                nn.ModuleDict(
                    {
                        "norm": RMSNorm(width),
                        "attention": Attention(width, heads, kv_heads),
                        "norm2": RMSNorm(width),
                        "gate": nn.Linear(width, 24, bias=False),
                        "up": nn.Linear(width, 24, bias=False),
                        "down": nn.Linear(24, width, bias=False),
                    }
                )
            )
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        rates = 1.0 / (100.0 ** (torch.arange(0, 4, 2).float() / 4))
        angles = torch.outer(torch.arange(32).float(), rates)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, caches=None, start=0):
        x = self.embed(tokens) * math.sqrt(self.embed.embedding_dim)
        end = start + tokens.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]
        for i, layer in enumerate(self.layers):
            x = x + layer["attention"](layer["norm"](x), cos, sin, None if caches is None else caches[i])
            h = layer["norm2"](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.head(self.norm(x))

    @torch.inference_mode()
    def generate(self, tokens, count):
        self.eval()
        caches = [{} for _ in self.layers]
        logits, start = self(tokens, caches), tokens.shape[1]
        # With a cache there is no mask: feed the prompt token by token instead.
        caches, logits = [{} for _ in self.layers], None
        for i in range(start):
            logits = self(tokens[:, i : i + 1], caches, i)
        scores = []
        for i in range(count):
            values, _ = torch.topk(logits[:, -1], 3)
            kept = logits[:, -1].masked_fill(logits[:, -1] < values[:, [-1]], -float("inf"))
            token = torch.argmax(kept.softmax(-1), dim=-1, keepdim=True)
            scores.append(kept.softmax(-1).amax(-1).sum().item())
            tokens = torch.cat((tokens, token), dim=1)
            logits = self(token, caches, start + i)
        return [*scores, float(tokens.sum())]


def main(compiled=lambda step: step):
    model = fill(torch, Decoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    tokens = torch.from_numpy(classes(13, 3, 9))

    def step(tokens):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    run = compiled(step)
    losses = [run(tokens).item() for _ in range(20)]
    return losses + model.generate(tokens[:, :4], 5)
