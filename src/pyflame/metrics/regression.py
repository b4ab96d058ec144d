"""Distances between numbers and what they should have been."""

from typing import Any

import numpy as np

from pyflame.metrics.base import Metric
from pyflame.metrics.inputs import Floats, as_floats


class _MeanError(Metric):
    """The mean of an error over all elements."""

    higher_is_better = False

    def reset(self) -> None:
        """Forget every batch."""
        self._total, self._seen = 0.0, 0

    def update(self, preds: Any, target: Any) -> None:
        """Add the errors of a batch."""
        guess, truth = as_floats(preds, target)
        self._total += float(self._errors(guess, truth).sum())
        self._seen += truth.size

    def compute(self) -> float:
        """The mean error."""
        return self._total / self._seen if self._seen else float("nan")

    def _errors(self, guess: Floats, truth: Floats) -> Floats:
        raise NotImplementedError


class MeanSquaredError(_MeanError):
    """The mean of squared differences.

    Example:
        >>> from pyflame.metrics import MeanSquaredError
        >>> MeanSquaredError()([1.0, 2.0], [1.0, 4.0])
        2.0
    """

    def _errors(self, guess: Floats, truth: Floats) -> Floats:
        return np.square(guess - truth)


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of squared differences, in the unit of the target.

    Example:
        >>> from pyflame.metrics import RootMeanSquaredError
        >>> RootMeanSquaredError()([1.0, 2.0], [4.0, 5.0])
        3.0
    """

    def compute(self) -> float:
        """The root of the mean."""
        return float(np.sqrt(super().compute()))


class MeanAbsoluteError(_MeanError):
    """The mean of absolute differences.

    Example:
        >>> from pyflame.metrics import MeanAbsoluteError
        >>> MeanAbsoluteError()([1.0, 2.0], [1.0, 4.0])
        1.0
    """

    def _errors(self, guess: Floats, truth: Floats) -> Floats:
        return np.abs(guess - truth)


class MeanAbsolutePercentageError(_MeanError):
    """The mean of absolute differences relative to the target (1.0 is 100 %); `eps` bounds tiny targets.

    Example:
        >>> from pyflame.metrics import MeanAbsolutePercentageError
        >>> MeanAbsolutePercentageError()([1.0, 3.0], [1.0, 4.0])
        0.125
    """

    def __init__(self, *, eps: float = 1.17e-6) -> None:
        self.eps = eps
        super().__init__()

    def _errors(self, guess: Floats, truth: Floats) -> Floats:
        return np.abs(guess - truth) / np.maximum(np.abs(truth), self.eps)


class R2Score(Metric):
    """The share of the target's variance that the predictions explain; 1 is perfect, 0 as good as the mean.

    Example:
        >>> from pyflame.metrics import R2Score
        >>> r2 = R2Score()
        >>> r2.update([2.5, 0.0, 2.0, 8.0], [3.0, -0.5, 2.0, 7.0])
        >>> round(r2.compute(), 4)
        0.9486
    """

    higher_is_better = True

    def reset(self) -> None:
        """Forget every batch."""
        self._seen, self._mean, self._spread, self._residual = 0, 0.0, 0.0, 0.0

    def update(self, preds: Any, target: Any) -> None:
        """Merge the mean and spread of a batch with those so far."""
        guess, truth = as_floats(preds, target)
        if not truth.size:
            return
        mean, seen = float(truth.mean()), self._seen + truth.size
        shift = mean - self._mean
        self._spread += float(np.square(truth - mean).sum()) + shift**2 * self._seen * truth.size / seen
        self._mean += shift * truth.size / seen
        self._seen = seen
        self._residual += float(np.square(guess - truth).sum())

    def compute(self) -> float:
        """One less the residual over the spread."""
        return 1 - self._residual / self._spread if self._spread > 0 else float("nan")
