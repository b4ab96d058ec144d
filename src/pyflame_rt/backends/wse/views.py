"""Operators that only move data: what the host does with them, and when nothing has to move at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.tiling import Tiling
from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.wse.flatten import Flat, Step
    from pyflame_rt.backends.wse.kernels import HostExpr

__all__ = ["VIEWS", "host_view", "reshaped"]

VIEWS = frozenset({"Concat", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Windows"})


def host_view(step: Step, flat: Flat, sources: Sequence[HostExpr]) -> HostExpr:
    """What the host evaluates for a view of these sources."""
    shape = list(flat.shape(step.output))
    match step.op:
        case "Reshape" | "Squeeze" | "Unsqueeze":
            return ["reshape", sources[0], shape]
        case "Transpose":
            rank = len(shape)
            return ["transpose", sources[0], list(step.attributes.get("perm") or range(rank)[::-1])]
        case "Concat":
            return ["concat", step.attributes["axis"] % len(shape), *sources]
        case "Slice":
            return ["slice", sources[0], _slices(step, flat)]
        case "Windows":
            given = step.attributes
            names = ("window", "strides", "dilations", "pads", "out", "fill")
            return ["windows", sources[0], *[given[name] for name in names]]
        case _:
            raise UnsupportedOperatorError(f"node {step.origin!r}: {step.op} is not a view")


def _slices(step: Step, flat: Flat) -> list[list[Any]]:
    shape = flat.shape(step.inputs[0])
    given: list[list[int] | None] = []
    for name in step.inputs[1:]:
        if name and name not in flat.constants:
            raise UnsupportedOperatorError(f"node {step.origin!r}: Slice needs bounds known when compiling")
        given.append(flat.constants[name].tolist() if name else None)
    starts, ends, axes, steps = [*given, None, None][:4]
    assert starts is not None
    assert ends is not None
    places = range(len(starts)) if axes is None else [a % len(shape) for a in axes]
    parts: list[list[Any]] = [[None, None, 1] for _ in shape]
    for i, axis in enumerate(places):
        stride = 1 if steps is None else steps[i]
        first, last, _ = slice(starts[i], ends[i], stride).indices(shape[axis])
        parts[axis] = [first, None if last < 0 else last, stride]
    return parts


def reshaped(tiling: Tiling, shape: tuple[int, ...]) -> Tiling | None:
    """The tiling under a shape that differs by dimensions of size 1 only; None when data would have to move."""
    kept = [(s, a) for s, a in zip(tiling.shape, tiling.axes, strict=True) if s != 1]
    if [s for s, _ in kept] != [s for s in shape if s != 1]:
        return None
    axes = iter(a for _, a in kept)
    return Tiling(shape, tuple("" if s == 1 else next(axes) for s in shape), tiling.grid)
