"""Reshapes: of several the last counts, those that change nothing go, shapes that nodes work out become constants."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim
from pyflame_rt.ops.onnx.shape import Reshape, Unsqueeze
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from collections.abc import Sequence


@rule(
    lambda op, x, a, b: op.Reshape(op.Reshape(x, a, label="first"), b, label="last"),
    lambda op, x, a, b: op.Reshape(op.Squeeze(x, a, label="first"), b, label="last"),
    lambda op, x, a, b: op.Reshape(op.Unsqueeze(x, a, label="first"), b, label="last"),
    family="simplify",
)
def reshape_pair(m: Match, x: str, b: str) -> str | NoMatch:
    """Of two reshapes the last decides."""
    sizes = m.editor.ints(b)
    if sizes is None:
        return NoMatch("the shape is not a constant")
    if 0 in sizes and not m.attr("last", "allowzero", 0):
        return NoMatch("a size is copied from the shape in between")
    if not _fits(m, x):
        return NoMatch("whether the first one fits is only known when running")
    return m.emit(Reshape, [x, b], {"allowzero": m.attr("last", "allowzero")})


@rule(lambda op, x, s: op.Reshape(op.Flatten(x, label="first"), s, label="last"), family="simplify")
def reshape_of_flatten(m: Match, x: str, s: str) -> str | NoMatch:
    """A reshape of a flattened value is one of the value."""
    sizes = m.editor.ints(s)
    if sizes is None or (0 in sizes and not m.attr("last", "allowzero", 0)):
        return NoMatch("the shape depends on the one in between")
    return m.emit(Reshape, [x, s], {"allowzero": m.attr("last", "allowzero")})


@rule(
    lambda op, x, s: op.Reshape(x, s, label="view"),
    lambda op, x, s: op.Expand(x, s, label="view"),
    family="simplify",
)
def same_shape(m: Match, x: str) -> str | NoMatch:
    """A reshape, or an expansion, to the shape a value has."""
    before, after = m.shape(x), m.shape(m.node("view").outputs[0])
    if before is None or after is None or None in before or before != after:
        return NoMatch("the shapes differ, or are not known")
    if _anonymous(before):
        return NoMatch("a size is only known when running")
    return x


@rule(lambda op, x, s: op.Reshape(x, s), family="simplify")
def constant_shape(m: Match, x: str, s: str) -> str | NoMatch:
    """A shape that nodes work out from sizes, of which one at most is not known now, is a constant."""
    if m.constant(s) is not None or m.editor.maker(s) is None:
        return NoMatch("the shape is a constant, or comes from outside")
    if m.attr("reshape", "allowzero", 0):
        return NoMatch("zeros in the shape are sizes")
    known, before = m.editor.value(s).known, m.shape(x)
    sizes = None if known is None or before is None else _written(list(known.ravel()), before)
    if sizes is None:
        return NoMatch("more than one size is only known when running")
    return m.emit(Reshape, [x, m.new_constant(f"{s}/sizes", np.array(sizes, np.int64))])


def _written(wanted: Sequence[Any], before: Sequence[Any]) -> list[int] | None:
    """A shape in numbers: 0 copies a size that stands at the same place, -1 leaves one to be worked out."""
    sizes: list[int] = []
    for i, size in enumerate(wanted):
        if not isinstance(size, Dim):
            sizes.append(int(size))
        elif i < len(before) and before[i] == size:
            sizes.append(0)
        else:
            sizes.append(-1)
    if sizes.count(-1) > 1:
        return None
    literal_zero = any(not isinstance(size, Dim) and size == 0 for size in wanted)
    # Beside a size that may be zero, one cannot be worked out; unless it had to be worked out before.
    given = any(not isinstance(size, Dim) and size == -1 for size in wanted)
    several = -1 in sizes and not given and sum(isinstance(size, Dim) for size in wanted) > 1
    return None if literal_zero or several else sizes


def _fits(m: Match, x: str) -> bool:
    """Whether a first reshape can never be refused: it must not go, then, where it would refuse a wrong input."""
    if m.node("first").op_type == Unsqueeze.name:
        return True
    before, between = m.shape(x), m.shape(m.node("first").outputs[0])
    if before is None or between is None or None in before or None in between:
        return False
    return not _anonymous(between) and element_count(before) == element_count(between)


def element_count(shape: Sequence[Any]) -> Any:
    """How many elements a value has, as a number or a polynomial of sizes."""
    return functools.reduce(operator.mul, shape, 1)


def _anonymous(shape: Sequence[Any]) -> bool:
    return any(isinstance(size, Dim) and any("?" in name for name in size.symbols()) for size in shape)
