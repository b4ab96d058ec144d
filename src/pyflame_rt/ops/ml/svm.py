"""ai.onnx.ml: support vector machines."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.ml.scores import feature_needs, label_array, logistic, transform_scores, two_class_scores

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

DOMAIN = "ai.onnx.ml"
Array = np.ndarray[Any, Any]


def _kernel(x: Array, vectors: Array, kind: str, params: list[float] | None) -> Array:
    """Similarity of every row to every vector."""
    gamma, coef0, degree = (*(params or []), 0.0, 0.0, 0.0)[:3]
    match kind:
        case "LINEAR":
            return x @ vectors.T
        case "POLY":
            return (gamma * (x @ vectors.T) + coef0) ** degree
        case "SIGMOID":
            return np.tanh(gamma * (x @ vectors.T) + coef0)
        case "RBF":
            apart = (x**2).sum(1)[:, None] + (vectors**2).sum(1) - 2 * (x @ vectors.T)
            return np.exp(-gamma * np.maximum(apart, 0))
        case _:
            raise InputError(f"kernel_type is {kind!r}; known: LINEAR, POLY, RBF, SIGMOID")


def _features(X: Any, wanted: int) -> Array:
    """Rows of so many features."""
    rows = (X.reshape(1, -1) if X.ndim == 1 else X).astype(np.float64)
    if rows.shape[1] != wanted:
        raise ShapeMismatchError(f"X has {rows.shape[1]} features, the vectors have {wanted}")
    return rows


def _regressed_type(X: Value, /, **_: Any) -> TensorType:
    shape = X.tensor_type.shape
    rows = None if shape is None else 1 if len(shape) == 1 else shape[0]
    return TensorType(DType.Float32, Shape([rows, 1]))


@primitive(since=1, domain=DOMAIN, infer=_regressed_type, requires=feature_needs, host=True)
def SVMRegressor(
    ops: Any,
    X: Any,
    /,
    *,
    coefficients: list[float] | None = None,
    kernel_params: list[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: list[float] | None = None,
    support_vectors: list[float] | None = None,
) -> Any:
    """A weighted sum of similarities to the support vectors."""
    weights = np.asarray(coefficients or [], np.float64)
    if n_supports:
        vectors = np.asarray(support_vectors or [], np.float64).reshape(n_supports, -1)
        scores = _kernel(_features(X, vectors.shape[1]), vectors, kernel_type, kernel_params) @ weights
    else:
        scores = _features(X, len(weights)) @ weights
    scores = (scores + (rho or [0.0])[0])[:, None]
    if one_class:
        scores = np.where(scores > 0, 1.0, -1.0)
    return transform_scores(scores, post_transform).astype(np.float32)


def _classified_type(
    X: Value, /, *, classlabels_strings: list[str] | None = None, **_: Any
) -> tuple[TensorType, TensorType]:
    shape = X.tensor_type.shape
    rows = None if shape is None else 1 if len(shape) == 1 else shape[0]
    kind = DType.String if classlabels_strings else DType.Int64
    return TensorType(kind, Shape([rows])), TensorType(DType.Float32, Shape([rows, None]))


@primitive(since=1, domain=DOMAIN, infer=_classified_type, requires=feature_needs, host=True)
def SVMClassifier(
    ops: Any,
    X: Any,
    /,
    *,
    classlabels_ints: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    coefficients: list[float] | None = None,
    kernel_params: list[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: list[float] | None = None,
    prob_b: list[float] | None = None,
    rho: list[float] | None = None,
    support_vectors: list[float] | None = None,
    vectors_per_class: list[int] | None = None,
) -> Any:
    """One machine for each pair of classes; they vote, or give probabilities."""
    labels = label_array(classlabels_strings, classlabels_ints)
    weights = np.asarray(coefficients or [], np.float64)
    shift = np.asarray(rho or [0.0], np.float64)
    if not vectors_per_class or not sum(vectors_per_class):
        rows = weights.reshape(len(labels), -1)
        scores = _features(X, rows.shape[1]) @ rows.T + shift[0]
        return labels[scores.argmax(1)], transform_scores(scores, post_transform).astype(np.float32)
    vectors = np.asarray(support_vectors or [], np.float64).reshape(sum(vectors_per_class), -1)
    similar = _kernel(_features(X, vectors.shape[1]), vectors, kernel_type, kernel_params)
    pairs = _pair_scores(similar, weights.reshape(-1, len(vectors)), vectors_per_class, shift)
    count = len(vectors_per_class)
    # Votes decide even where there are probabilities: the two may disagree.
    winners = labels[_votes(pairs, count).argmax(1)]
    if prob_a:
        chances = _probabilities(pairs, count, np.asarray(prob_a), np.asarray(prob_b or [0.0] * len(prob_a)))
        scores = transform_scores(chances, post_transform)
    elif count == 2:
        scores = two_class_scores(pairs[:, 0], complement=post_transform != "NONE", post_transform=post_transform)
    else:
        scores = transform_scores(pairs, post_transform)
    return winners, scores.astype(np.float32)


def _pair_scores(similar: Array, weights: Array, sizes: list[int], shift: Array) -> Array:
    """Decision values for each pair of classes, [rows, pairs]."""
    ends = np.cumsum(sizes)
    spans = [slice(int(e - n), int(e)) for e, n in zip(ends, sizes, strict=True)]
    columns = []
    for k, (i, j) in enumerate(itertools.combinations(range(len(sizes)), 2)):
        first = similar[:, spans[i]] @ weights[j - 1, spans[i]]
        second = similar[:, spans[j]] @ weights[i, spans[j]]
        columns.append(first + second + shift[k])
    return np.stack(columns, axis=1)


def _votes(pairs: Array, count: int) -> Array:
    votes = np.zeros((len(pairs), count), np.int64)
    for k, (i, j) in enumerate(itertools.combinations(range(count), 2)):
        won = pairs[:, k] > 0
        votes[:, i] += won
        votes[:, j] += ~won
    return votes


def _probabilities(pairs: Array, count: int, a: Array, b: Array) -> Array:
    """Class probabilities that agree best with those of the pairs."""
    between = np.zeros((len(pairs), count, count))
    for k, (i, j) in enumerate(itertools.combinations(range(count), 2)):
        chance = np.clip(1 - logistic(pairs[:, k] * a[k] + b[k]), 1e-7, 1 - 1e-7)
        between[:, i, j], between[:, j, i] = chance, 1 - chance
    if count == 2:
        return between[:, [0, 1], [1, 0]]
    return np.stack([_coupled(r) for r in between])


def _coupled(r: Array) -> Array:
    """Wu, Lin and Weng's second method, by the iteration libsvm uses."""
    count = len(r)
    q = -r.T * r
    np.fill_diagonal(q, (r**2).sum(axis=0))
    p = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        qp = q @ p
        total = p @ qp
        if np.abs(qp - total).max() < 0.005 / count:
            break
        for t in range(count):
            step = (total - qp[t]) / q[t, t]
            p[t] += step
            total = (total + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p
