"""Operators that only move data: what the host does with them, and when nothing has to move at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.plan.tiling import Tiling
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.ops.onnx.shape import Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Tile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.wse.plan.kernels import HostExpr
    from pyflame_rt.backends.wse.plan.primitives import Flat, PrimitiveCall

__all__ = ["VIEWS", "host_view", "pad_pairs", "reshaped", "slice_parts"]

VIEWS = frozenset(
    {
        Concat.name,
        "Indices",
        Pad.name,
        Reshape.name,
        Slice.name,
        Squeeze.name,
        Tile.name,
        Transpose.name,
        Unsqueeze.name,
        "Windows",
    }
)
_PAD_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def host_view(step: PrimitiveCall, flat: Flat, sources: Sequence[HostExpr]) -> HostExpr:
    """What the host evaluates for a view of these sources."""
    shape = list(flat.shape(step.output))
    match step.op:
        case Reshape.name | Squeeze.name | Unsqueeze.name:
            return ["reshape", sources[0], shape]
        case Transpose.name:
            rank = len(shape)
            return ["transpose", sources[0], list(step.attributes.get("perm") or range(rank)[::-1])]
        case Concat.name:
            return ["concat", step.attributes["axis"] % len(shape), *sources]
        case Slice.name:
            return ["slice", sources[0], slice_parts(step, flat)]
        case Pad.name:
            return _padded(step, flat, sources[0])
        case Tile.name:
            return ["tile", sources[0], _numbers(step, flat, 1, "repeats")]
        case "Indices":
            return ["indices", sources[0], step.attributes["sizes"]]
        case "Windows":
            given = step.attributes
            names = ("window", "strides", "dilations", "pads", "out", "fill")
            return ["windows", sources[0], *[given[name] for name in names]]
        case _:
            raise UnsupportedOperatorError(f"node {step.origin!r}: {step.op} is not a view")


def _numbers(step: PrimitiveCall, flat: Flat, place: int, what: str) -> list[Any]:
    """Contents of an input that must be known; empty when it is left out."""
    name = step.inputs[place] if len(step.inputs) > place else ""
    if name and name not in flat.constants:
        raise UnsupportedOperatorError(f"node {step.origin!r}: {step.op} needs {what} known when compiling")
    return flat.constants[name].ravel().tolist() if name else []


def pad_pairs(step: PrimitiveCall, flat: Flat) -> tuple[list[list[int]], float]:
    """What Pad adds before and after each dimension, and its value."""
    shape = flat.shape(step.inputs[0])
    pads, fill = _numbers(step, flat, 1, "pads"), _numbers(step, flat, 2, "its value")
    axes = [a % len(shape) for a in _numbers(step, flat, 3, "axes") or range(len(shape))]
    pairs = [[0, 0] for _ in shape]
    for i, axis in enumerate(axes):
        pairs[axis] = [pads[i], pads[len(axes) + i]]
    return pairs, fill[0] if fill else 0


def _padded(step: PrimitiveCall, flat: Flat, source: HostExpr) -> HostExpr:
    shape = flat.shape(step.inputs[0])
    pairs, number = pad_pairs(step, flat)
    if any(n < 0 for pair in pairs for n in pair):
        parts = [[max(0, -a), size - max(0, -b), 1] for (a, b), size in zip(pairs, shape, strict=True)]
        source = ["slice", source, parts]
        pairs = [[max(0, n) for n in pair] for pair in pairs]
    text = repr(number) if isinstance(number, float) else int(number)  # JSON has no infinities
    return ["pad", source, pairs, _PAD_MODES[step.attributes.get("mode") or "constant"], text]


def slice_parts(step: PrimitiveCall, flat: Flat) -> list[list[Any]]:
    """Start, end and step of a slice in every dimension."""
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
