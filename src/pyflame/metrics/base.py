"""What every metric can do: take batches, answer for all of them, start afresh."""

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from pyflame_rt.graph.named_arguments import NamedArguments

Score: TypeAlias = float | npt.NDArray[np.float64] | npt.NDArray[np.int64]


class Metric(NamedArguments, ABC):
    """A measure over all batches seen since the last `reset`.

    A subclass keeps sums in attributes that `reset` creates, adds to them in `update` and turns them into an answer
    in `compute`. Calling a metric updates it and answers for that batch alone.

    Example:
        >>> from pyflame.metrics import Metric
        >>> class Count(Metric):
        ...     def reset(self):
        ...         self.seen = 0
        ...     def update(self, preds, target):
        ...         self.seen += len(target)
        ...     def compute(self):
        ...         return float(self.seen)
        >>> count = Count()
        >>> count.update([1, 2], [1, 2])
        >>> count([1], [0]), count.compute()
        (1.0, 3.0)
    """

    higher_is_better: ClassVar[bool | None] = None

    def __init__(self) -> None:
        self.reset()

    @property
    def name(self) -> str:
        """The key under which a collection or a training log shows this metric."""
        words = [""]
        for before, letter in zip(" " + type(self).__name__, type(self).__name__, strict=False):
            if letter.isupper() and before.islower():
                words.append("")
            words[-1] += letter.lower()
        return "_".join(words)

    @abstractmethod
    def reset(self) -> None:
        """Forget every batch."""

    @abstractmethod
    def update(self, preds: Any, target: Any) -> None:
        """Take in one batch of predictions and the truth about them."""

    @abstractmethod
    def compute(self) -> Score:
        """The measure over every batch since the last `reset`; NaN where it is not defined."""

    def clone(self) -> Self:
        """A metric with the same settings that has seen nothing."""
        twin = copy.copy(self)
        twin.reset()
        return twin

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the attributes that hold numbers, text, arrays, or nests of them."""
        return {
            name: value.state_dict() if isinstance(value, Metric) else copy.deepcopy(value)
            for name, value in vars(self).items()
            if isinstance(value, Metric) or _plain(value)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, value in state.items():
            own = getattr(self, name, None)
            if isinstance(own, Metric):
                own.load_state_dict(value)
            else:
                setattr(self, name, copy.deepcopy(value))

    def __call__(self, preds: Any, target: Any) -> Score:
        """Update, and answer for this batch alone."""
        self.update(preds, target)
        alone = self.clone()
        alone.update(preds, target)
        return alone.compute()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compute()})"


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(part) for part in value)
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and _plain(part) for key, part in value.items())
    return value is None or isinstance(value, int | float | str | np.ndarray | np.generic)
