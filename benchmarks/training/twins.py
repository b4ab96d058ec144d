"""The same models in PyFlame and in torch, for comparing losses and times of training."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn as tnn

import pyflame as pf
from pyflame import models

if TYPE_CHECKING:
    from collections.abc import Callable


class Twin(NamedTuple):
    """A model in both libraries, and the data it is trained on."""

    ours: Any
    theirs: Any
    inputs: np.ndarray
    targets: np.ndarray


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


def mlp(sizes: tuple[int, ...] = (784, 512, 512, 10), batch: int = 128) -> Twin:
    """Linear layers with rectifiers between them."""

    def layers(nn: Any) -> list[Any]:
        parts: list[Any] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.Linear(a, b), nn.ReLU()]
        return parts[:-1]

    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, sizes[0])).astype(np.float32)
    y = rng.integers(0, sizes[-1], batch)
    return _paired(pf.nn.Sequential(*layers(pf.nn)), tnn.Sequential(*layers(tnn)), x, y)


def resnet(batch: int = 64, classes: int = 10, size: int = 32) -> Twin:
    """ResNet-18 on small images."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 3, size, size)).astype(np.float32)
    ours = models.resnet18(num_classes=classes, small_images=True)
    return _paired(ours, TorchResNet18(classes), x, rng.integers(0, classes, batch))


def gpt(vocab: int = 4096, length: int = 128, size: int = 384, layers: int = 6, heads: int = 6, batch: int = 8) -> Twin:
    """A small GPT."""
    config = models.GPT2Config(vocab, length, size, layers, heads, dropout=0.0)
    ids = np.random.default_rng(0).integers(0, vocab, (batch, length + 1))
    return _paired(models.GPT2(config), TorchGPT(vocab, length, size, layers, heads), ids[:, :-1], ids[:, 1:])


def lstm(vocab: int = 1000, size: int = 256, layers: int = 2, length: int = 64, batch: int = 32) -> Twin:
    """An LSTM language model."""
    ids = np.random.default_rng(0).integers(0, vocab, (batch, length + 1))
    ours = models.LSTMLanguageModel(vocab, size, size, layers)
    return _paired(ours, TorchLSTM(vocab, size, layers), ids[:, :-1], ids[:, 1:])


def _paired(ours: Any, theirs: Any, x: np.ndarray, y: np.ndarray) -> Twin:
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        with torch.no_grad():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, 0, 0.02 if isinstance(theirs, TorchGPT) else 0.05)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return Twin(ours, theirs, np.ascontiguousarray(x), np.ascontiguousarray(y))


TWINS: dict[str, Callable[..., Twin]] = {"mlp": mlp, "resnet18": resnet, "gpt": gpt, "lstm": lstm}


def our_step(model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """A compiled training step."""

    def step(x: Any, y: Any) -> Any:
        scores = model(x)
        loss = pf.nn.functional.cross_entropy(scores.reshape([-1, scores.shape[-1]]), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return pf.compile(step)


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
