"""What training callbacks send to others: numbers, settings, and models as files."""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame.serialization import save
from pyflame_rt.graph.errors import MissingExtra

if TYPE_CHECKING:
    from pyflame.training.trainer import Trainer

__all__ = ["needed", "numbers", "save_model", "settings"]


def needed(package: str, what: str) -> Any:
    """A package, or one sentence about its absence."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} needs the package {package!r}: pip install {package}") from error


def numbers(logs: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among what was measured; tensors of one element count."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            found[prefix + name] = float(value)
        elif hasattr(value, "item") and getattr(value, "shape", None) is not None and not value.shape:
            found[prefix + name] = float(value.item())
    return found


def settings(trainer: Trainer) -> dict[str, Any]:
    """What a run is about: the trainer's settings, the optimizer's and the model's size."""
    config = asdict(trainer.config) if is_dataclass(trainer.config) else {}
    plain = {name: value for name, value in config.items() if isinstance(value, int | float | str | bool | None)}
    group = trainer.optimizer.param_groups[0]
    for name, value in group.items():
        if isinstance(value, int | float | str | bool):
            plain[f"optimizer_{name}"] = value
    return {
        **plain,
        "model": type(trainer.model).__name__,
        "optimizer": type(trainer.optimizer).__name__,
        "parameters": sum(int(p.numel) for p in trainer.model.parameters()),
    }


def save_model(trainer: Trainer, name: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """The model's weights in a file of a folder that goes when it is closed."""
    folder = tempfile.TemporaryDirectory(prefix="pyflame-")
    path = Path(folder.name) / f"{name}.safetensors"
    save(trainer.model.state_dict(), path)
    return folder, path
