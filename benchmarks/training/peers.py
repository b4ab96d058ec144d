"""The models of the training benchmark in torch, with the names of ours, and a step that trains one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn as tnn

if TYPE_CHECKING:
    from collections.abc import Callable


class TorchBlock(tnn.Module):
    """Two 3x3 convolutions beside a straight path."""

    def __init__(self, cin: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = tnn.Conv2d(cin, planes, 3, stride, 1, bias=False)
        self.bn1 = tnn.BatchNorm2d(planes)
        self.conv2 = tnn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = tnn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or cin != planes:
            self.downsample = tnn.Sequential(tnn.Conv2d(cin, planes, 1, stride, bias=False), tnn.BatchNorm2d(planes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        straight = x if self.downsample is None else self.downsample(x)
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + straight)


class TorchResNet18(tnn.Module):
    """ResNet-18 for small images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(3, 64, 3, 1, 1, bias=False), tnn.BatchNorm2d(64)
        channels = 64
        for stage, planes in enumerate((64, 128, 256, 512)):
            blocks = [TorchBlock(channels, planes, 2 if stage else 1), TorchBlock(planes, planes, 1)]
            setattr(self, f"layer{stage + 1}", tnn.Sequential(*blocks))
            channels = planes
        self.fc = tnn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the classes."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean(dim=(2, 3)))


class TorchGPT(tnn.Module):
    """GPT-2's architecture with the names of ours."""

    class Block(tnn.Module):
        """Attention and a small network."""

        def __init__(self, size: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.ln_1, self.ln_2 = tnn.LayerNorm(size), tnn.LayerNorm(size)
            self.attn = tnn.ModuleDict({"c_attn": tnn.Linear(size, 3 * size), "c_proj": tnn.Linear(size, size)})
            self.mlp = tnn.ModuleDict({"c_fc": tnn.Linear(size, 4 * size), "c_proj": tnn.Linear(4 * size, size)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The block's output."""
            n, length, size = x.shape
            parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=-1)
            q, k, v = (p.reshape(n, length, self.heads, -1).transpose(1, 2) for p in parts)
            y = tnn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(n, length, size))
            wide = tnn.functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
            return x + self.mlp["c_proj"](wide)

    def __init__(self, vocab: int, positions: int, size: int, layers: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = tnn.Embedding(vocab, size), tnn.Embedding(positions, size)
        self.h = tnn.ModuleList([self.Block(size, heads) for _ in range(layers)])
        self.ln_f = tnn.LayerNorm(size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The scores of the next tokens."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class TorchLSTM(tnn.Module):
    """The LSTM language model with the names of ours."""

    def __init__(self, vocab: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = tnn.Embedding(vocab, size)
        self.lstm = tnn.LSTM(size, size, layers, batch_first=True)
        self.head = tnn.Linear(size, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The scores of the next tokens."""
        return self.head(self.lstm(self.embedding(ids))[0])


def their_step(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """The same step in torch."""

    def step(x: Any, y: Any) -> Any:
        scores = model(x)
        loss = tnn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def drawn(make: Callable[[], Any], spread: float) -> Any:
    """A model with its matrices and kernels drawn anew; all its parameters, biases too, are the same each time."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                tnn.init.normal_(parameter, 0, spread)
    return model
