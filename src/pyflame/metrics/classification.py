"""Right and wrong by class: accuracy, precision, recall, F1 and the confusion matrix."""

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyflame.metrics.base import Metric, Score
from pyflame.metrics.inputs import Labels, as_array, as_classes, as_labels, check_range

Average: TypeAlias = Literal["micro", "macro", "weighted", "binary"] | None
AVERAGES = ("micro", "macro", "weighted", "binary", None)


class Accuracy(Metric):
    """The share of samples whose class was found, or was among the best `top_k`.

    Predictions are class numbers, scores of one class shaped like the target (compared with `threshold`), or scores of
    all classes along axis 1.

    Example:
        >>> import numpy as np
        >>> from pyflame.metrics import Accuracy
        >>> accuracy = Accuracy()
        >>> accuracy.update(np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), np.array([1, 0, 0]))
        >>> round(accuracy.compute(), 3)
        0.667
    """

    higher_is_better = True

    def __init__(self, *, threshold: float = 0.5, top_k: int = 1) -> None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1. Received: {top_k}")
        self.threshold, self.top_k = threshold, top_k
        super().__init__()

    def reset(self) -> None:
        """Forget every batch."""
        self._right, self._seen = 0, 0

    def update(self, preds: Any, target: Any) -> None:
        """Count the samples of a batch, and those that were right."""
        right = self._in_top(preds, target) if self.top_k > 1 else self._equal(preds, target)
        self._right += int(right.sum())
        self._seen += right.size

    def compute(self) -> float:
        """Right samples over all samples."""
        return self._right / self._seen if self._seen else float("nan")

    def _equal(self, preds: Any, target: Any) -> npt.NDArray[np.bool_]:
        classes = as_classes(preds, target, threshold=self.threshold)
        return classes.preds == classes.target

    def _in_top(self, preds: Any, target: Any) -> npt.NDArray[np.bool_]:
        scores, truth = as_array(preds), as_labels(as_array(target), "target")
        if scores.ndim != truth.ndim + 1:
            raise ValueError(f"top_k={self.top_k} needs scores [N, C, ...]. Received: {scores.shape} for {truth.shape}")
        k = min(self.top_k, scores.shape[1])
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        return (best == np.expand_dims(truth, 1)).any(axis=1)


class ConfusionMatrix(Metric):
    """How often true class `i` (row) was called `j` (column).

    Args:
        num_classes: The size of the matrix; found from the data when left out.
        threshold: Where a score of one class becomes a yes.
        normalize: "true" divides rows, "pred" columns, "all" the whole by its sum.

    Example:
        >>> from pyflame.metrics import ConfusionMatrix
        >>> matrix = ConfusionMatrix(num_classes=2)
        >>> matrix.update([0, 1, 1], [0, 1, 0])
        >>> matrix.compute().tolist()
        [[1, 1], [0, 1]]
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        threshold: float = 0.5,
        normalize: Literal["true", "pred", "all"] | None = None,
    ) -> None:
        if normalize not in ("true", "pred", "all", None):
            raise ValueError(f"normalize must be 'true', 'pred', 'all' or None. Received: {normalize!r}")
        self.num_classes, self.threshold, self.normalize = num_classes, threshold, normalize
        super().__init__()

    def reset(self) -> None:
        """Forget every batch."""
        size = self.num_classes or 0
        self._counts: Labels = np.zeros((size, size), np.int64)

    def update(self, preds: Any, target: Any) -> None:
        """Count each pair of true and predicted class."""
        found, truth, classes = as_classes(preds, target, threshold=self.threshold)
        if self.num_classes is None:
            self._grow(max(classes, int(truth.max(initial=0)) + 1))
        size = len(self._counts)
        check_range(found, size, "preds")
        check_range(truth, size, "target")
        self._counts += np.bincount(truth * size + found, minlength=size * size).reshape(size, size)

    def compute(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
        """The matrix of counts, or of shares where `normalize` asks for them."""
        counts = self._counts.copy()
        if self.normalize is None:
            return counts
        axis = {"true": 1, "pred": 0, "all": None}[self.normalize]
        total = counts.sum(axis=axis, keepdims=True)
        return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)

    def _grow(self, size: int) -> None:
        missing = size - len(self._counts)
        if missing > 0:
            self._counts = np.pad(self._counts, (0, missing))


class _FromMatrix(Metric):
    """A score for each class from the confusion matrix, and its average."""

    higher_is_better = True

    def __init__(self, num_classes: int | None = None, *, average: Average = "macro", threshold: float = 0.5) -> None:
        if average not in AVERAGES:
            raise ValueError(f"average must be one of {AVERAGES}. Received: {average!r}")
        self.average: Average = average
        self._matrix = ConfusionMatrix(num_classes, threshold=threshold)
        super().__init__()

    def reset(self) -> None:
        """Forget every batch."""
        self._matrix = self._matrix.clone()

    def update(self, preds: Any, target: Any) -> None:
        """Count each pair of true and predicted class."""
        self._matrix.update(preds, target)

    def compute(self) -> Score:
        """The averaged score, or one score for each class with `average=None`."""
        counts = self._matrix.compute()
        hits, called, true = np.diag(counts), counts.sum(axis=0), counts.sum(axis=1)
        if self.average == "micro":
            return float(self._score(*(part.sum(keepdims=True) for part in (hits, called, true)))[0])
        scores = self._score(hits, called, true)
        if self.average is None:
            return scores
        if self.average == "binary":
            return float(scores[1]) if len(scores) > 1 else 0.0
        weights = (called + true > 0) if self.average == "macro" else true
        return float(np.average(scores, weights=weights)) if weights.any() else float("nan")

    def _score(
        self, hits: npt.NDArray[Any], called: npt.NDArray[Any], true: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        raise NotImplementedError


def _share(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0)


class Precision(_FromMatrix):
    """Of the samples called a class, the share that truly is of it.

    Args:
        num_classes: How many classes there are; found from the data when left out.
        average: "macro" (mean over classes that occur), "micro", "weighted" (by true samples), "binary" (class 1) or
            None for one score for each class.
        threshold: Where a score of one class becomes a yes.

    Example:
        >>> from pyflame.metrics import Precision
        >>> precision = Precision(average="binary")
        >>> precision.update([1, 1, 0], [1, 0, 0])
        >>> precision.compute()
        0.5
    """

    def _score(self, hits: Any, called: Any, true: Any) -> npt.NDArray[np.float64]:  # noqa: ARG002
        return _share(hits, called)


class Recall(_FromMatrix):
    """Of the samples of a class, the share that was called so; arguments as for `Precision`.

    Example:
        >>> from pyflame.metrics import Recall
        >>> recall = Recall(average="binary")
        >>> recall.update([1, 0, 0], [1, 1, 0])
        >>> recall.compute()
        0.5
    """

    def _score(self, hits: Any, called: Any, true: Any) -> npt.NDArray[np.float64]:  # noqa: ARG002
        return _share(hits, true)


class F1Score(_FromMatrix):
    """The harmonic mean of precision and recall; arguments as for `Precision`.

    Example:
        >>> from pyflame.metrics import F1Score
        >>> f1 = F1Score(average="binary")
        >>> f1.update([1, 0, 1], [1, 1, 0])
        >>> f1.compute()
        0.5
    """

    def _score(self, hits: Any, called: Any, true: Any) -> npt.NDArray[np.float64]:
        return _share(2 * hits, called + true)
