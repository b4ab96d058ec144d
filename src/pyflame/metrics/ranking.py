"""How well scores rank the true class above the others."""

from typing import Any, Literal

import numpy as np

from pyflame.metrics.base import Metric, Score
from pyflame.metrics.inputs import Floats, Labels, as_array, as_labels, check_range


class _Ranking(Metric):
    """Keeps all scores: a ranking is known only at the end."""

    higher_is_better = True

    def __init__(self, *, average: Literal["macro", "weighted"] | None = "macro") -> None:
        if average not in ("macro", "weighted", None):
            raise ValueError(f"average must be 'macro', 'weighted' or None. Received: {average!r}")
        self.average = average
        super().__init__()

    def reset(self) -> None:
        """Forget every batch."""
        self._scores: list[Floats] = []
        self._truth: list[Labels] = []

    def update(self, preds: Any, target: Any) -> None:
        """Keep the scores of a batch: of one class, or of all classes along axis 1."""
        scores, truth = as_array(preds).astype(np.float64), as_labels(as_array(target), "target")
        if scores.ndim == truth.ndim:
            scores = np.expand_dims(scores, 1)
        if scores.shape[:1] + scores.shape[2:] != truth.shape:
            raise ValueError(f"preds must be [N, ...] or [N, C, ...]. Received: {scores.shape} for {truth.shape}")
        classes = scores.shape[1]
        check_range(truth, max(classes, 2), "target")
        if self._scores and self._scores[0].shape[1] != classes:
            raise ValueError(f"Earlier batches had {self._scores[0].shape[1]} classes. Received: {classes}")
        self._scores.append(np.moveaxis(scores, 1, -1).reshape(-1, classes))
        self._truth.append(truth.ravel())

    def compute(self) -> Score:
        """The measure of one class, or the average of each class against the rest; NaN if a class never occurs."""
        if not self._scores:
            return float("nan")
        scores, truth = np.concatenate(self._scores), np.concatenate(self._truth)
        if scores.shape[1] == 1:
            return self._measure(scores[:, 0], truth == 1)
        each = np.array([self._measure(scores[:, c], truth == c) for c in range(scores.shape[1])])
        if self.average is None:
            return each
        known = ~np.isnan(each)
        if not known.any():
            return float("nan")
        weights = np.ones(len(each)) if self.average == "macro" else np.bincount(truth, minlength=len(each))
        return float(np.average(each[known], weights=weights[known]))

    def _measure(self, scores: Floats, positive: np.ndarray) -> float:
        raise NotImplementedError


def _steps(scores: Floats, positive: np.ndarray) -> tuple[Floats, Floats]:
    """True and false positives as the threshold falls past each distinct score."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), scores.size - 1)
    hits = np.cumsum(positive[order])[ends]
    return hits.astype(np.float64), (ends + 1 - hits).astype(np.float64)


class AUROC(_Ranking):
    """The area under the receiver operating characteristic: the chance that a positive outranks a negative.

    Example:
        >>> from pyflame.metrics import AUROC
        >>> auroc = AUROC()
        >>> auroc.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> auroc.compute()
        0.75
    """

    def _measure(self, scores: Floats, positive: np.ndarray) -> float:
        hits, alarms = _steps(scores, positive)
        if hits[-1] == 0 or alarms[-1] == 0:
            return float("nan")
        return float(np.trapezoid(np.append(0, hits), np.append(0, alarms)) / (hits[-1] * alarms[-1]))


class AveragePrecision(_Ranking):
    """The area under the precision-recall steps.

    Example:
        >>> from pyflame.metrics import AveragePrecision
        >>> precision = AveragePrecision()
        >>> precision.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        >>> round(precision.compute(), 3)
        0.833
    """

    def _measure(self, scores: Floats, positive: np.ndarray) -> float:
        hits, alarms = _steps(scores, positive)
        if hits[-1] == 0:
            return float("nan")
        gains = np.diff(hits, prepend=0) / hits[-1]
        return float((gains * hits / (hits + alarms)).sum())
