"""Settings of a training: steps, learning rate, when to stop, what to write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    import os

__all__ = ["TrainingConfig"]


@dataclass
class TrainingConfig:
    """Settings of a training of a graph.

    Attributes:
        learning_rate: the largest learning rate, reached after ``warmup_steps``.
        batch_size: rows of a step; a graph with a fixed batch size has its own.
        num_epochs: how often the data is gone through.
        warmup_steps: steps over which the learning rate grows from zero.
        weight_decay: share of each weight (of two or more axes) that a step takes away, times the learning rate.
        lr_schedule: ``"cosine"`` or ``"linear"`` falls to zero at the last step, ``"constant"`` stays.
        gradient_clip: largest norm of all gradients together; 0 for none.
        early_stopping_patience: epochs without a better loss (of the validation data, else of training) before training
            ends and the best weights are taken; 0 for never.
        checkpoint_frequency: steps between checkpoints; 0 for none.
        checkpoint_dir: where they are written; None for nowhere.
        optimizer: ``"adamw"`` or ``"sgd"`` (with momentum).
        momentum: of ``"sgd"``.
        train_batch_norm: normalise by the batch and track statistics, in place of those that the model has.
        shuffle: draw a new order for each epoch.
        seed: of the order.
        progress: show a bar.

    Example:
        >>> config = TrainingConfig(learning_rate=0.1, warmup_steps=2, lr_schedule="linear")
        >>> [round(config.rate_at(step, 6), 3) for step in range(6)]
        [0.05, 0.1, 0.1, 0.075, 0.05, 0.025]
    """

    learning_rate: float = 1e-4
    batch_size: int = 32
    num_epochs: int = 10
    warmup_steps: int = 0
    weight_decay: float = 0.01
    lr_schedule: str = "cosine"
    gradient_clip: float = 1.0
    early_stopping_patience: int = 0
    checkpoint_frequency: int = 0
    checkpoint_dir: str | os.PathLike[str] | None = None
    optimizer: str = "adamw"
    momentum: float = 0.9
    train_batch_norm: bool = False
    shuffle: bool = True
    seed: int = 0
    progress: bool = False

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        for name, least in (("batch_size", 1), ("num_epochs", 1), ("warmup_steps", 0), ("early_stopping_patience", 0)):
            _at_least(name, getattr(self, name), least, int)
        _at_least("checkpoint_frequency", self.checkpoint_frequency, 0, int)
        for name in ("learning_rate", "weight_decay", "gradient_clip", "momentum"):
            _at_least(name, getattr(self, name), 0, (int, float))
        for name, known in (("lr_schedule", ("cosine", "linear", "constant")), ("optimizer", ("adamw", "sgd"))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}; known: {', '.join(known)}")

    def rate_at(self, step: int, total: int) -> float:
        """The learning rate of a step (the first is 0) of so many."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(total - self.warmup_steps, 1)
        match self.lr_schedule:
            case "linear":
                return self.learning_rate * (1 - min(done, 1.0))
            case "cosine":
                return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
            case _:
                return self.learning_rate


def _at_least(name: str, value: Any, least: float, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or value < least:
        raise InputError(f"{name} must be a number of at least {least}, got {value!r}")
