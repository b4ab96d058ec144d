"""Data that changes its place on the fabric: what a chain of views does with the coordinates of an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.plan.views import pad_pairs, slice_parts
from pyflame_rt.ops.onnx.shape import Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Pad, Slice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.backends.wse.plan.primitives import Flat, PrimitiveCall

__all__ = ["SPREADS", "CoordinateView", "view_of"]

SPREADS = frozenset({Pad.name, Reshape.name, Slice.name, Squeeze.name, Transpose.name, Unsqueeze.name, "Windows"})


@dataclass(frozen=True, slots=True)
class CoordinateView:
    """One change of coordinates.

    Attributes:
        kind: ``reshape``, ``transpose`` (``data`` is the permutation), ``slice`` (start, step and count of each
            dimension), ``shift`` (what is added to each coordinate), ``windows`` (window, stride, dilation and padding
            of each dimension).
        shape: of the result.
        fill: what is where no element goes; None when every place gets one.
    """

    kind: str
    shape: tuple[int, ...]
    data: tuple[Any, ...] = ()
    fill: float | None = None


def view_of(step: PrimitiveCall, flat: Flat) -> CoordinateView | None:
    """A step as a change of coordinates; None when it is not one."""
    shape = flat.shape(step.output)
    match step.op:
        case Reshape.name | Squeeze.name | Unsqueeze.name:
            return CoordinateView("reshape", shape)
        case Transpose.name:
            return CoordinateView("transpose", shape, tuple(step.attributes.get("perm") or range(len(shape))[::-1]))
        case Slice.name:
            parts = slice_parts(step, flat)
            return CoordinateView(
                "slice", shape, tuple((p[0] or 0, p[2], n) for p, n in zip(parts, shape, strict=True))
            )
        case Pad.name if step.attributes.get("mode") in (None, "", "constant"):
            pairs, fill = pad_pairs(step, flat)
            if any(n < 0 for pair in pairs for n in pair):
                return None
            return CoordinateView("shift", shape, tuple(pair[0] for pair in pairs), float(fill))
        case "Windows":
            return _windows(step.attributes, shape)
        case _:
            return None


def _windows(given: Mapping[str, Any], shape: tuple[int, ...]) -> CoordinateView:
    names = ("window", "strides", "dilations", "pads")
    each = zip(*[given[n] for n in names], strict=True)
    return CoordinateView("windows", shape, tuple((w, s, d, p[0]) for w, s, d, p in each), float(given["fill"]))
