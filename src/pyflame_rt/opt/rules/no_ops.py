"""Nodes that leave every bit of a value as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.opt.rule import Match, NoMatch, rule


def _keeps_value(m: Match, x: str, c: str, number: float) -> bool:
    """Whether ``c`` is this very number everywhere (its sign counts too), and broadcasting changes nothing."""
    array = m.constant(c)
    if array is None or array.size == 0 or array.dtype.kind not in "fiu":
        return False
    wanted = np.array(number, array.dtype)
    if np.ascontiguousarray(array).tobytes() != wanted.tobytes() * array.size:
        return False
    shape = m.shape(x)
    if shape is None or array.ndim > len(shape):
        return False
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    return all(n in (1, size) for n, size in zip(padded, shape, strict=True))


@rule(lambda op, x, c: op.Mul(x, op.constant(c)), lambda op, x, c: op.Div(x, op.constant(c)), family="simplify")
def times_one(m: Match, x: str, c: str) -> str | NoMatch:
    """A product with one, or a quotient by it."""
    return x if _keeps_value(m, x, c, 1) else NoMatch("not one everywhere, or it broadcasts")


@rule(lambda op, x, c: op.Sub(x, op.constant(c)), family="simplify")
def minus_zero(m: Match, x: str, c: str) -> str | NoMatch:
    """Zero subtracted; adding it would turn -0.0 into 0.0."""
    return x if _keeps_value(m, x, c, 0) else NoMatch("not zero everywhere, or it broadcasts")


@rule(lambda op, x, c: op.Add(x, op.constant(c)), family="simplify")
def plus_zero(m: Match, x: str, c: str) -> str | NoMatch:
    """Zero added to integers; of floats only -0.0 changes nothing."""
    kind = m.dtype(x)
    zero = 0 if kind is not None and kind.is_integer else -0.0
    return x if kind is not None and _keeps_value(m, x, c, zero) else NoMatch("not a zero that changes nothing")


@rule(lambda op, x: op.Concat(x), family="simplify")
def concat_of_one(m: Match, x: str) -> str | NoMatch:
    """One part put together."""
    rank, axis = m.editor.rank(x), m.node("concat").get_attr("axis")
    fits = rank is not None and isinstance(axis, int) and -rank <= axis < rank
    return x if fits else NoMatch("the axis is not one of its own, or that is not known")


@rule(
    lambda op, x, p: op.Pad(x, p),
    lambda op, x, p, c: op.Pad(x, p, c),
    family="simplify",
)
def pad_nothing(m: Match, x: str, p: str) -> str | NoMatch:
    """Padding by nothing."""
    pads, rank = m.editor.ints(p), m.editor.rank(x)
    if rank is None or pads is None or len(pads) != 2 * rank:
        return NoMatch("not two numbers for each axis, or that is not known")
    return x if not any(pads) else NoMatch("something is padded")


def _whole(m: Match, x: str, starts: Any, ends: Any, axes: Any, steps: Any) -> bool:
    """Whether a slice takes all of every axis."""
    if starts is None or ends is None or steps is None or any(step != 1 for step in steps):
        return False
    rank, shape = m.editor.rank(x), m.shape(x)
    places = list(range(len(starts))) if axes is None else axes
    if rank is None or shape is None or any(start != 0 for start in starts):
        return False
    if not len(starts) == len(ends) == len(places) == len(steps) or any(not -rank <= axis < rank for axis in places):
        return False
    sizes = [shape[axis] for axis in places]
    return all(end >= 2**31 - 1 or (isinstance(n, int) and end >= n) for end, n in zip(ends, sizes, strict=True))


@rule(
    lambda op, x, s, e: op.Slice(x, s, e),
    lambda op, x, s, e, a: op.Slice(x, s, e, a),
    lambda op, x, s, e, a, t: op.Slice(x, s, e, a, t),
    family="simplify",
)
def slice_everything(m: Match, x: str) -> str | NoMatch:
    """A slice of a whole value."""
    node = m.node("slice")
    given = [m.editor.ints(name) if name else None for name in (*node.inputs[1:], *[""] * (5 - len(node.inputs)))]
    unknown = any(name and ints is None for name, ints in zip(node.inputs[1:], given, strict=False))
    if unknown or not _whole(m, x, given[0], given[1], given[2], given[3] or [1] * len(given[0] or ())):
        return NoMatch("part of the value is left out, or that is not known")
    return x


@rule(lambda op, x, a, b: op.Squeeze(op.Unsqueeze(x, a), b), family="simplify")
def squeeze_of_unsqueeze(m: Match, x: str, a: str, b: str) -> str | NoMatch:
    """Axes of size one that come and go."""
    added, dropped = m.editor.ints(a), m.editor.ints(b)
    rank = m.editor.rank(m.node("unsqueeze").outputs[0])
    if added is None or dropped is None or rank is None:
        return NoMatch("the axes are not known")
    same = sorted(i % rank for i in added) == sorted(i % rank for i in dropped)
    return x if same else NoMatch("other axes go than came")


@rule(lambda op, x: op.Relu(op.Relu(x, label="inner"), label="outer"), family="simplify")
def relu_twice(m: Match, x: str) -> str | NoMatch:
    """The second of two Relu in a row."""
    return m.emit(Relu, [x]) if m.dtype(x) in (DType.Float32, DType.Float64) else NoMatch("not a float")
