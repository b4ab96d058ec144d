"""The same models in PyFlame and in torch, for comparing losses and times of training."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

import pyflame as pf
from pyflame import models

if TYPE_CHECKING:
    from collections.abc import Callable

Sides = Literal["both", "ours", "theirs"]


class Twin(NamedTuple):
    """A model in both libraries (None on a side that was not asked for), and the data it is trained on."""

    ours: Any
    theirs: Any
    inputs: np.ndarray
    targets: np.ndarray


@cache
def peers() -> Any:
    """The module with torch's models; torch is not imported before it is asked for."""
    spec = importlib.util.spec_from_file_location("training_peers", Path(__file__).with_name("peers.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


def mlp(sizes: tuple[int, ...] = (784, 512, 512, 10), batch: int = 128, sides: Sides = "both") -> Twin:
    """Linear layers with rectifiers between them."""

    def layers(nn: Any) -> Any:
        parts: list[Any] = []
        for a, b in itertools.pairwise(sizes):
            parts += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*parts[:-1])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, sizes[0])).astype(np.float32)
    y = rng.integers(0, sizes[-1], batch)
    return _paired(lambda: layers(pf.nn), lambda: layers(peers().tnn), x, y, sides)


def resnet(batch: int = 64, classes: int = 10, size: int = 32, sides: Sides = "both") -> Twin:
    """ResNet-18 on small images."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 3, size, size)).astype(np.float32)
    y = rng.integers(0, classes, batch)
    ours = lambda: models.resnet18(num_classes=classes, small_images=True)  # noqa: E731
    return _paired(ours, lambda: peers().TorchResNet18(classes), x, y, sides)


def gpt(
    vocab: int = 4096,
    length: int = 128,
    size: int = 384,
    layers: int = 6,
    heads: int = 6,
    batch: int = 8,
    sides: Sides = "both",
) -> Twin:
    """A small GPT."""
    config = models.GPT2Config(vocab, length, size, layers, heads, dropout=0.0)
    ids = np.random.default_rng(0).integers(0, vocab, (batch, length + 1))
    theirs = lambda: peers().TorchGPT(vocab, length, size, layers, heads)  # noqa: E731
    return _paired(lambda: models.GPT2(config), theirs, ids[:, :-1], ids[:, 1:], sides, 0.02)


def lstm(
    vocab: int = 1000, size: int = 256, layers: int = 2, length: int = 64, batch: int = 32, sides: Sides = "both"
) -> Twin:
    """An LSTM language model."""
    ids = np.random.default_rng(0).integers(0, vocab, (batch, length + 1))
    ours = lambda: models.LSTMLanguageModel(vocab, size, size, layers)  # noqa: E731
    return _paired(ours, lambda: peers().TorchLSTM(vocab, size, layers), ids[:, :-1], ids[:, 1:], sides)


def _paired(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    x: np.ndarray,
    y: np.ndarray,
    sides: Sides,
    spread: float = 0.05,
) -> Twin:
    """The sides asked for, the same each time; with both, ours has torch's weights."""
    pf.manual_seed(0)
    one = None if sides == "theirs" else ours()
    other = None if sides == "ours" else peers().drawn(theirs, spread)
    if one is not None and other is not None:
        one.load_state_dict(other.state_dict(), strict=True)
    return Twin(one, other, np.ascontiguousarray(x), np.ascontiguousarray(y))


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
    return peers().their_step(model, optimizer)
