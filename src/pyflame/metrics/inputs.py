"""Predictions and targets as arrays: tensors, arrays and lists, logits, probabilities and labels."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]


class Classes(NamedTuple):
    """One predicted and one true label for each sample, and how many classes the input shows."""

    preds: Labels
    target: Labels
    num_classes: int


def as_array(value: Any) -> npt.NDArray[Any]:
    """Any tensor, array or nested list as an array."""
    if isinstance(value, np.ndarray) or not callable(getattr(value, "numpy", None)):
        return np.asarray(value)
    detach = getattr(value, "detach", None)
    source: Any = detach() if callable(detach) else value
    return np.asarray(source.numpy())


def as_floats(preds: Any, target: Any) -> tuple[Floats, Floats]:
    """Both sides in float64, with equal shapes."""
    left, right = as_array(preds).astype(np.float64), as_array(target).astype(np.float64)
    if left.shape != right.shape:
        raise ValueError(f"preds and target must have the same shape. Received: {left.shape} and {right.shape}")
    return left, right


def as_labels(values: npt.NDArray[Any], role: str) -> Labels:
    """Whole, non-negative class numbers."""
    if values.dtype.kind == "f":
        if not np.array_equal(values, np.floor(values)):
            raise ValueError(f"{role} must hold class numbers. Received fractions in {values.dtype} of {values.shape}")
        values = values.astype(np.int64)
    elif values.dtype.kind not in "iub":
        raise TypeError(f"{role} must hold numbers. Received: {values.dtype}")
    if values.size and values.min() < 0:
        raise ValueError(f"{role} must hold class numbers from 0 on. Received: {values.min()}")
    return values.astype(np.int64)


def sigmoid_where_needed(scores: npt.NDArray[Any]) -> Floats:
    """Scores outside [0, 1] are logits and become probabilities."""
    scores = scores.astype(np.float64)
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        return 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    return scores


def as_classes(preds: Any, target: Any, *, threshold: float) -> Classes:
    """Labels from labels, from scores of one class (against `threshold`), or from scores along axis 1 (the best)."""
    scores, truth = as_array(preds), as_labels(as_array(target), "target")
    if scores.ndim == truth.ndim + 1:
        if scores.shape[:1] + scores.shape[2:] != truth.shape:
            raise ValueError(f"preds [N, C, ...] must match target [N, ...]. Received: {scores.shape}, {truth.shape}")
        return Classes(scores.argmax(axis=1).ravel(), truth.ravel(), scores.shape[1])
    if scores.shape != truth.shape:
        raise ValueError(
            f"preds must be shaped like target, or have a class axis 1 more. Received: {scores.shape}, {truth.shape}"
        )
    if scores.dtype.kind == "f":
        labels, classes = (sigmoid_where_needed(scores) > threshold).astype(np.int64), 2
    else:
        labels = as_labels(scores, "preds")
        classes = int(max(labels.max(initial=0), truth.max(initial=0))) + 1
    return Classes(labels.ravel(), truth.ravel(), max(classes, 2))


def check_range(labels: Labels, num_classes: int, role: str) -> None:
    """Refuse a class number that `num_classes` has no place for."""
    if labels.size and labels.max() >= num_classes:
        raise ValueError(f"{role} holds class {labels.max()}, but num_classes is {num_classes}")
