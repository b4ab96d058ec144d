"""Models that are measured often."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BenchmarkModelInfo",
    "get_benchmark_model",
    "get_benchmark_model_info",
    "list_benchmark_models",
    "register_benchmark_model",
]


@dataclass(frozen=True)
class BenchmarkModelInfo:
    """What a model for benchmarks takes.

    Attributes:
        name: What it is asked for by.
        description: One sentence.
        input_shape: Of one sample.
        category: What it is for.
    """

    name: str
    description: str
    input_shape: tuple[int, ...]
    category: str = "general"


_known: dict[str, tuple[BenchmarkModelInfo, Callable[..., Any]]] = {}


def register_benchmark_model(info: BenchmarkModelInfo, factory: Callable[..., Any]) -> None:
    """Make a model known; `factory` takes ``num_classes``."""
    if info.name in _known:
        raise ValueError(f"there is already a benchmark model {info.name!r}")
    _known[info.name] = (info, factory)


def list_benchmark_models(category: str | None = None) -> list[BenchmarkModelInfo]:
    """What there is, of one category where that is given.

    Example:
        >>> import pyflame as pf
        >>> [info.name for info in pf.benchmarks.list_benchmark_models("mlp")]
        ['mlp_large', 'mlp_small']
    """
    return [info for _, (info, _) in sorted(_known.items()) if category is None or info.category == category]


def get_benchmark_model_info(name: str) -> BenchmarkModelInfo:
    """What is known of a model."""
    if name not in _known:
        raise KeyError(f"there is no benchmark model {name!r}. Models: {', '.join(sorted(_known))}")
    return _known[name][0]


def get_benchmark_model(name: str, num_classes: int = 10) -> Any:
    """Make a model.

    Example:
        >>> import pyflame as pf
        >>> pf.benchmarks.get_benchmark_model("mlp_small", num_classes=3)(pf.ones([1, 784])).shape
        [1, 3]
    """
    return _known[get_benchmark_model_info(name).name][1](num_classes=num_classes)


def _mlp(*widths: int) -> Callable[..., Any]:
    def make(num_classes: int) -> Any:
        layers: list[Any] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

    return make


def _conv(num_classes: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, num_classes),
    )  # fmt: skip


class _Encoder(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, num_classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x).mean(dim=1))


def _from_models(name: str) -> Callable[..., Any]:
    def make(num_classes: int) -> Any:
        from pyflame import models

        return getattr(models, name)(num_classes=num_classes)

    return make


for _info, _factory in (
    (BenchmarkModelInfo("mlp_small", "784-256-128, ReLU", (784,), "mlp"), _mlp(784, 256, 128)),
    (BenchmarkModelInfo("mlp_large", "784-2048-2048-1024, ReLU", (784,), "mlp"), _mlp(784, 2048, 2048, 1024)),
    (BenchmarkModelInfo("conv_small", "two convolutions with pooling", (3, 32, 32), "vision"), _conv),
    (BenchmarkModelInfo("resnet18", "ResNet-18", (3, 224, 224), "vision"), _from_models("resnet18")),
    (BenchmarkModelInfo("resnet50", "ResNet-50", (3, 224, 224), "vision"), _from_models("resnet50")),
    (BenchmarkModelInfo("mobilenet_v2", "MobileNetV2", (3, 224, 224), "vision"), _from_models("mobilenet_v2")),
    (BenchmarkModelInfo("transformer_encoder", "two layers of 128, 4 heads", (64, 128), "text"), _Encoder),
):
    register_benchmark_model(_info, _factory)
