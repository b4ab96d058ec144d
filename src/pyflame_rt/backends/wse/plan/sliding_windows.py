"""Windows that slide over tiles: where the PEs need no more of a tensor than their neighbours' edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.maxpool import MaxPoolValues
from pyflame_rt.ops.onnx.pool import ReduceWindow
from pyflame_rt.ops.onnx.windows import windows

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.primitives import Flat, PrimitiveCall
    from pyflame_rt.backends.wse.plan.tiling import Grid

__all__ = ["SLIDING", "Side", "can_slide", "sides_of"]

SLIDING = frozenset({Conv.name, MaxPoolValues.full_name, ReduceWindow.full_name})


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two dimensions over which a window slides, as a PE sees it.

    Attributes:
        window: taps of the window.
        stride: from one result to the next.
        dilation: from one tap to the next.
        size: of the tensor.
        tile: of the source on a PE.
        made: of the result on a PE.
        low: what is needed before the tile: the padding, or the edge of the neighbour.
        cut: whether there are neighbours.
    """

    window: int
    stride: int
    dilation: int
    size: int
    tile: int
    made: int
    low: int
    cut: bool

    @property
    def high(self) -> int:
        """What is needed after the tile."""
        reach = (self.made - 1) * self.stride + (self.window - 1) * self.dilation + 1
        return max(0, reach - self.low - self.tile)

    @property
    def wide(self) -> int:
        """The tile with what is around it."""
        return self.low + self.tile + self.high

    @property
    def near(self) -> bool:
        """Whether results lie where their elements do, and the direct neighbours have all that is missing."""
        if not self.cut:
            return True
        return self.size > 1 and self.made * self.stride == self.tile and max(self.low, self.high) <= self.tile


def _geometry(flat: Flat, step: PrimitiveCall) -> tuple[list[Any], ...] | None:
    """Window, strides, dilations and padding before each of the last two dimensions; None for other windows."""
    given, shape = step.attributes, flat.shape(step.inputs[0])
    if len(shape) < 2:
        return None
    if step.op == ReduceWindow.full_name:
        if given["kind"] not in ("max", "sum"):
            return None
        plain = zip(
            given["window"][:-2], given["strides"][:-2], given["pads"], given["pads"][len(shape) :], strict=False
        )
        if any(w != 1 or s != 1 or p or q for w, s, p, q in plain):
            return None
        names = ("window", "strides", "dilations")
        return *(list(given[n][-2:]) for n in names), list(given["pads"][len(shape) - 2 : len(shape)])
    if len(shape) != 4 or (step.op == Conv.name and given["group"] != 1):
        return None
    taps = flat.shape(step.inputs[1])[2:] if step.op == Conv.name else given["kernel_shape"]
    names = ["strides", "dilations", "pads", "auto_pad", *(["ceil_mode"] if step.op != Conv.name else [])]
    found = windows(shape[2:], taps, **{n: given[n] for n in names})
    return list(found.kernel), list(found.strides), list(found.dilations), [p[0] for p in found.padding]


def sides_of(flat: Flat, step: PrimitiveCall, grid: Grid) -> tuple[Side, Side] | None:
    """Both dimensions on a grid; None for windows over others."""
    found = _geometry(flat, step)
    if found is None:
        return None
    shape, out = flat.shape(step.inputs[0]), flat.shape(step.output)
    sides = [
        Side(w, s, d, n, -(-n // cuts), -(-m // cuts), p, cuts > 1)
        for w, s, d, p, n, m, cuts in zip(*found, shape[-2:], out[-2:], (grid.rows, grid.cols), strict=True)
    ]
    return sides[0], sides[1]


def can_slide(flat: Flat, step: PrimitiveCall, grid: Grid) -> bool:
    """Whether a step needs no more than the edges of neighbours."""
    if step.op not in SLIDING or flat.dtype(step.output) not in (DType.Float32, DType.Float16):
        return False
    sides = sides_of(flat, step, grid)
    if sides is None or not all(s.near for s in sides):
        return False
    # A dimension of size 1 lies on every PE, so a cut one must not shrink to that.
    return all(n > 1 or not s.cut for n, s in zip(flat.shape(step.output)[-2:], sides, strict=True))
