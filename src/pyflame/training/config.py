"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from pyflame_rt.graph.named_arguments import expect_fields

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TrainerConfig"]

POSITIVE = ("max_epochs", "accumulate_grad_batches", "log_interval", "checkpoint_interval", "keep_checkpoints")
OPTIONAL = ("max_steps", "eval_interval", "early_stopping_patience", "grad_clip_norm", "grad_clip_value")


@dataclass
class TrainerConfig:
    """How a Trainer trains.

    Attributes:
        max_epochs: Passes over the training data.
        max_steps: Optimizer steps after which training ends, whatever the epoch.
        grad_clip_norm: Largest norm of all gradients together.
        grad_clip_value: Largest size of each gradient's elements.
        accumulate_grad_batches: Batches whose gradients are averaged, sample by sample, for one step.
        log_interval: Steps between updates of the shown loss.
        eval_interval: Steps between validations within an epoch; there is one at the end of each epoch besides.
        checkpoint_dir: Where checkpoints and the loss curve go; None writes neither.
        checkpoint_interval: Epochs between checkpoints.
        checkpoint_steps: Also a checkpoint after every so many steps.
        keep_checkpoints: How many of the newest checkpoints stay.
        early_stopping_patience: Epochs without progress after which training ends.
        early_stopping_metric: What progress is measured by.
        early_stopping_mode: Whether less ("min") or more ("max") is better.
        precision: "float32", or the type of a mixed-precision forward pass: "bfloat16" or "float16".
        compile: Trace the step once and replay it.
        progress: Show a progress bar.
        seed: Given to `pf.manual_seed` when `fit` starts; None leaves chance alone.

    Example:
        >>> from pyflame.training import TrainerConfig
        >>> TrainerConfig(max_epochs=3).log_interval
        10
    """

    max_epochs: int = 10
    max_steps: int | None = None
    grad_clip_norm: float | None = None
    grad_clip_value: float | None = None
    accumulate_grad_batches: int = 1
    log_interval: int = 10
    eval_interval: int | None = None
    checkpoint_dir: str | Path | None = None
    checkpoint_interval: int = 1
    checkpoint_steps: int | None = None
    keep_checkpoints: int = 3
    early_stopping_patience: int | None = None
    early_stopping_metric: str = "val_loss"
    early_stopping_mode: Literal["min", "max"] = "min"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = True
    progress: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        expect_fields(self)
        for name in POSITIVE:
            self._positive(name, getattr(self, name))
        for name in (*OPTIONAL, "checkpoint_steps"):
            if getattr(self, name) is not None:
                self._positive(name, getattr(self, name))
        if self.early_stopping_mode not in ("min", "max"):
            raise ValueError(f"early_stopping_mode must be min or max. Received: {self.early_stopping_mode!r}")
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"precision must be float32, bfloat16 or float16. Received: {self.precision!r}")

    def _positive(self, name: str, value: Any) -> None:
        if not value > 0:
            raise ValueError(f"{name} must be positive. Received: {value}")

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "checkpoint_dir": None if self.checkpoint_dir is None else str(self.checkpoint_dir)}
