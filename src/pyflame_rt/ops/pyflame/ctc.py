"""Connectionist temporal classification: the likelihood of label sequences that no one has aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Shape, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.guards import has_rank
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.onnx.shape import Unsqueeze

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

_NEVER = -np.inf


@dataclass(frozen=True, slots=True)
class _Problem:
    """Scores and label sequences with blanks between the labels.

    Attributes:
        scores: log-probabilities [T, N, C] in double precision.
        path: classes [N, L], L = 2 * S + 1: a blank before, between and after the labels.
        skips: [N, L] whether the blank before a label may be left out.
        steps: the length of each sequence of scores [N].
        ends: the number of labels of each sequence [N].
    """

    scores: np.ndarray[Any, Any]
    path: np.ndarray[Any, Any]
    skips: np.ndarray[Any, Any]
    steps: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]

    def along_path(self) -> np.ndarray[Any, Any]:
        """The scores of the classes on the path [T, N, L]."""
        steps, (batch, length) = self.scores.shape[0], self.path.shape
        return np.take_along_axis(self.scores, np.broadcast_to(self.path, (steps, batch, length)), axis=2)


def _problem(
    scores: np.ndarray[Any, Any],
    targets: np.ndarray[Any, Any],
    steps: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    blank: int,
) -> _Problem:
    count, batch, classes = scores.shape
    steps, ends = steps.astype(np.int64), ends.astype(np.int64)
    if steps.shape != (batch,) or ends.shape != (batch,):
        raise InputError(f"{batch} sequences need as many lengths, got shapes {steps.shape} and {ends.shape}")
    if batch and (steps.min() < 0 or steps.max() > count):
        raise InputError(f"input lengths must be from 0 to {count}, got {steps.tolist()}")
    if not 0 <= blank < classes:
        raise InputError(f"blank must be within {classes} classes, got {blank}")
    rows = _rows(targets.astype(np.int64), ends, blank)
    if rows.size and (rows.min() < 0 or rows.max() >= classes):
        raise InputError(f"targets must be within {classes} classes, got {rows.min()} to {rows.max()}")
    path = np.full((batch, 2 * rows.shape[1] + 1), blank, np.int64)
    path[:, 1::2] = rows
    skips = np.zeros(path.shape, bool)
    skips[:, 2:] = (path[:, 2:] != blank) & (path[:, 2:] != path[:, :-2])
    return _Problem(scores.astype(np.float64), path, skips, steps, ends)


def _rows(targets: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], blank: int) -> np.ndarray[Any, Any]:
    """Labels [N, S], from rows or from all sequences one after the other; blanks where a sequence is over."""
    longest = int(ends.max(initial=0))
    if ends.size and ends.min() < 0:
        raise InputError(f"target lengths must not be negative, got {ends.tolist()}")
    inside = np.arange(longest) < ends[:, None]
    rows = np.full(inside.shape, blank, np.int64)
    if targets.ndim == 1:
        if targets.size != ends.sum():
            raise InputError(f"{targets.size} targets in a row, but their lengths add up to {ends.sum()}")
        rows[inside] = targets
        return rows
    if targets.shape[0] != ends.size or targets.shape[1] < longest:
        raise InputError(f"targets of shape {targets.shape} do not hold {ends.size} sequences of up to {longest}")
    return np.where(inside, targets[:, :longest], blank)


def _shifted(x: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    moved = np.full_like(x, _NEVER)
    if x.shape[1] > by:
        moved[:, by:] = x[:, :-by]
    return moved


def _alphas(problem: _Problem, along: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each step and place the log-likelihood of all ways to come there [T, N, L]."""
    alphas = np.full(along.shape, _NEVER)
    if not along.shape[0]:
        return alphas
    alphas[0, :, :2] = along[0, :, :2]
    for t in range(1, along.shape[0]):
        before = alphas[t - 1]
        jumped = np.where(problem.skips, _shifted(before, 2), _NEVER)
        alphas[t] = along[t] + np.logaddexp(np.logaddexp(before, _shifted(before, 1)), jumped)
    return alphas


def _likelihoods(problem: _Problem, alphas: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The log-likelihood of each whole sequence [N]."""
    batch = np.arange(problem.ends.size)
    if not alphas.shape[0]:
        return np.where(problem.ends == 0, 0.0, _NEVER)
    last = alphas[np.maximum(problem.steps - 1, 0), batch]
    closing = last[batch, 2 * problem.ends]
    label = np.where(problem.ends > 0, last[batch, np.maximum(2 * problem.ends - 1, 0)], _NEVER)
    return np.where(problem.steps > 0, np.logaddexp(closing, label), np.where(problem.ends == 0, 0.0, _NEVER))


def _betas(problem: _Problem, along: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each step and place the log-likelihood of all ways on from there, that step included [T, N, L]."""
    count, _, length = along.shape
    betas = np.full(along.shape, _NEVER)
    places = np.arange(length)
    ends = problem.ends[:, None]
    final = (places == 2 * ends) | ((places == 2 * ends - 1) & (ends > 0))
    after = np.full(along.shape[1:], _NEVER)
    # From a place one goes on to itself, the next, or past a blank to the label behind it.
    jumps = np.zeros_like(problem.skips)
    jumps[:, :-2] = problem.skips[:, 2:]
    for t in range(count - 1, -1, -1):
        turned = after[:, ::-1]
        one, two = _shifted(turned, 1)[:, ::-1], _shifted(turned, 2)[:, ::-1]
        onward = np.logaddexp(np.logaddexp(after, one), np.where(jumps, two, _NEVER))
        starts = (problem.steps == t + 1)[:, None]
        after = along[t] + np.where(starts, np.where(final, 0.0, _NEVER), onward)
        betas[t] = after
    return betas


def _loss_needs(log_probs: Value, *_: Value, **__: Any) -> None:
    has_rank("log_probs", log_probs, 3)


def _loss_type(log_probs: Value, *_: Value, **__: Any) -> TensorType:
    dims = log_probs.tensor_type.shape
    return TensorType(log_probs.dtype, Shape([None if dims is None else dims[1]]))


def _gradient_type(log_probs: Value, *_: Value, **__: Any) -> TensorType:
    return log_probs.tensor_type


def _loss_vjp(
    g: Value,
    _y: Value,
    log_probs: Value,
    targets: Value,
    input_lengths: Value,
    target_lengths: Value,
    *,
    blank: int,
    zero_infinity: int,
) -> tuple[Value | None, ...]:
    settings = {"blank": blank, "zero_infinity": zero_infinity}
    gradient = CTCLossGrad(log_probs, targets, input_lengths, target_lengths, **settings)
    return gradient * Unsqueeze(g, [0, 2]), None, None, None


@primitive(since=1, domain="pyflame", infer=_loss_type, requires=_loss_needs, vjp=_loss_vjp, host=True)
def CTCLoss(
    ops: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    /,
    *,
    blank: int = 0,
    zero_infinity: int = 0,
) -> Any:
    """Minus the log-likelihood of each sequence of labels [N] under log-probabilities [T, N, C].

    Targets are [N, S], or all sequences one after the other; where no alignment is possible the loss is infinite, or 0.
    """
    problem = _problem(log_probs, targets, input_lengths, target_lengths, blank)
    with np.errstate(invalid="ignore"):
        losses = -_likelihoods(problem, _alphas(problem, problem.along_path()))
    losses = np.where(np.isposinf(losses), 0.0, losses) if zero_infinity else losses
    return losses.astype(log_probs.dtype)


@primitive(since=1, domain="pyflame", infer=_gradient_type, requires=_loss_needs, host=True)
def CTCLossGrad(
    ops: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    /,
    *,
    blank: int = 0,
    zero_infinity: int = 0,
) -> Any:
    """The gradient of each sequence's CTCLoss towards its scores, these taken for a result of log_softmax."""
    problem = _problem(log_probs, targets, input_lengths, target_lengths, blank)
    along = problem.along_path()
    with np.errstate(invalid="ignore"):
        alphas = _alphas(problem, along)
        losses = -_likelihoods(problem, alphas)[:, None]
        shares = np.exp(alphas + _betas(problem, along) - along + losses)
    gradient = np.exp(problem.scores)
    batch = np.arange(problem.ends.size)
    for place in range(problem.path.shape[1]):
        gradient[:, batch, problem.path[:, place]] -= np.nan_to_num(shares[:, :, place], nan=0.0)
    gradient[:, np.isposinf(losses[:, 0])] = 0.0 if zero_infinity else np.nan
    gradient[np.arange(along.shape[0])[:, None] >= problem.steps] = 0.0
    return gradient.astype(log_probs.dtype)
