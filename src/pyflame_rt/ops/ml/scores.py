"""What classifiers of ai.onnx.ml share: labels, and ONNX's post transforms on NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony import library
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.guards import has_rank

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["feature_needs", "label_array", "logistic", "transform_scores", "two_class_scores"]

Array = np.ndarray[Any, Any]
_TINY = 1e-7


def feature_needs(X: Value, /, *_: Value | None, **__: Any) -> None:
    """Rows of features, or one row."""
    has_rank("X", X, 1, 2)


def label_array(strings: list[str] | None, ints: list[int] | None) -> Array:
    """Class labels, strings where there are any."""
    if strings:
        return np.asarray(strings, dtype=object)
    return np.asarray(ints or [], dtype=np.int64)


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def transform_scores(scores: Array, kind: str) -> Array:
    """Scores [rows, classes] after a post transform."""
    match kind:
        case "NONE":
            return scores
        case "LOGISTIC":
            return logistic(scores)
        case "SOFTMAX":
            grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
        case "SOFTMAX_ZERO":
            top = scores.max(axis=-1, keepdims=True)
            grown = np.where(np.abs(scores) < _TINY, scores * np.exp(-top), np.exp(scores - top))
        case "PROBIT":
            return np.sqrt(2.0) * library("numpy").erfinv(2 * scores - 1)
        case _:
            raise InputError(f"post_transform is {kind!r}; known: NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT")
    return grown / grown.sum(axis=-1, keepdims=True)


def two_class_scores(score: Array, *, complement: bool, post_transform: str) -> Array:
    """Scores of both classes from the one of the second: ``1 - s`` for a probability, else ``-s``."""
    if post_transform == "LOGISTIC":
        return logistic(np.stack([-score, score], axis=1))
    both = np.stack([1 - score if complement else -score, score], axis=1)
    return transform_scores(both, "PROBIT") if post_transform == "PROBIT" else both
