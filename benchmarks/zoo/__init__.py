"""Models of well-known shapes with seeded random weights, written with the onnx package alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zoo import language, vision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zoo.builder import Builder

__all__ = ["MODELS", "QUICK", "make"]

MODELS: dict[str, Callable[[], Builder]] = {
    "mlp": vision.mlp,
    "resnet18": lambda: vision.resnet("resnet18", (2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: vision.resnet("resnet50", (3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": vision.mobilenet_v2,
    "mobilenet_v3_large": vision.mobilenet_v3,
    "efficientnet_b0": vision.efficientnet_b0,
    "convnext_atto": vision.convnext,
    "unet_small": vision.unet,
    "vit_tiny": language.vit,
    "minilm_128": lambda: language.encoder("minilm_128", width=384, layers=6, heads=12, words=30522, length=128),
    "bert_base_128": lambda: language.encoder("bert_base_128", width=768, layers=12, heads=12, words=8192, length=128),
    "gpt2_prefill_64": lambda: language.gpt2("gpt2_prefill_64", length=64, past=0),
    "gpt2_decode_64": lambda: language.gpt2("gpt2_decode_64", length=1, past=64),
    "llama_prefill_64": lambda: language.llama("llama_prefill_64", length=64, past=0),
    "llama_decode_64": lambda: language.llama("llama_decode_64", length=1, past=64),
    "lstm_bi2x256": language.lstm,
}
QUICK = ("mlp", "resnet18", "mobilenet_v2", "minilm_128", "llama_decode_64", "lstm_bi2x256")


def make(folder: Path, pattern: str = "", *, quick: bool = False) -> list[Path]:
    """Write the models whose name matches into a folder, those that are not there yet; returns their files."""
    names = [name for name in MODELS if re.search(pattern, name) and (not quick or name in QUICK)]
    paths = []
    for name in names:
        path = folder / f"{name}.onnx"
        if not path.exists() or not path.with_suffix(".npz").exists():
            MODELS[name]().save(folder)
        paths.append(path)
    return paths
