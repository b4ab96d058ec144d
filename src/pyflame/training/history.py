"""What happened while training, as numbers and as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pyflame_rt.curves import draw
from pyflame_rt.graph.named_arguments import names_arguments

__all__ = ["History"]


class History(dict[str, list[float]]):
    """One list for each thing measured, one number for each epoch; the losses of all steps are in `steps`.

    Example:
        >>> from pyflame.training import History
        >>> history = History()
        >>> history.add({"loss": 0.5, "val_loss": 0.6})
        >>> history["loss"], history.epochs
        ([0.5], 1)
    """

    @names_arguments
    def __init__(self, *args: Any, steps: list[float] | None = None) -> None:
        super().__init__(*args)
        self.steps: list[float] = steps or []

    @property
    def epochs(self) -> int:
        """How many epochs are in it."""
        return max((len(values) for values in self.values()), default=0)

    def add(self, logs: dict[str, float]) -> None:
        """Take in the numbers of one epoch; what was not measured in an epoch is NaN there."""
        before = self.epochs
        for name, value in logs.items():
            if isinstance(value, int | float):
                values = self.setdefault(name, [math.nan] * before)
                values.extend([math.nan] * (before - len(values)))
                values.append(float(value))

    def drop_last(self) -> None:
        """Forget the newest epoch."""
        last = self.epochs
        for name in [name for name, values in self.items() if len(values) == last]:
            self[name].pop()
            if not self[name]:
                del self[name]

    def best(self, name: str, mode: str = "min") -> tuple[int, float]:
        """The epoch (from 0) and value where a measure was best."""
        known = [(value, epoch) for epoch, value in enumerate(self[name]) if not math.isnan(value)]
        if not known:
            raise ValueError(f"{name!r} was never measured")
        value, epoch = min(known) if mode == "min" else max(known, key=lambda pair: (pair[0], -pair[1]))
        return epoch, value

    def save(self, path: str | Path) -> None:
        """Write the numbers as JSON."""
        Path(path).write_text(json.dumps({"epochs": dict(self), "steps": self.steps}, indent=1), "utf-8")

    def plot(self, path: str | Path | None = None, names: list[str] | None = None) -> str:
        """The curves as an SVG picture, written to a file where one is given.

        Args:
            path: The file.
            names: Which measures; by default all whose name ends in "loss", with the losses of all steps behind them.
        """
        chosen = names or [name for name in self if name.endswith("loss")]
        curves = {name: [(float(i + 1), v) for i, v in enumerate(self[name])] for name in chosen}
        if names is None and len(self.steps) > 1 and self.epochs:
            scale = self.epochs / len(self.steps)
            curves = {"step loss": [((i + 1) * scale, v) for i, v in enumerate(self.steps)], **curves}
        picture = draw(curves)
        if path is not None:
            Path(path).write_text(picture, "utf-8")
        return picture
