"""Convolution and pooling where windows are laid out one by one, and the PEs multiply or reduce them.

Windows that need only the edges of neighbouring tiles slide over them instead
(:mod:`pyflame_rt.backends.wse.plan.sliding_windows`).
A convolution becomes a product of ``[windows, taps]`` and ``[taps, channels]``, pooling a reduction of
``[windows, taps]`` in which every PE has windows of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.plan.decompositions import Opening
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPoolValues
from pyflame_rt.ops.onnx.pool import ReduceWindow
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Transpose
from pyflame_rt.ops.onnx.windows import windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.backends.wse.plan.primitives import PrimitiveCall

__all__ = ["WINDOWED"]


class _Windows(Opening):
    def windowed(self, source: str, geometry: Mapping[str, Any], out: tuple[int, ...], fill: str) -> str:
        """The windows over all axes as ``[*out, *window]``."""
        return self.add("Windows", (source,), (*out, *geometry["window"]), **geometry, out=list(out), fill=fill)

    def convolution(self) -> list[PrimitiveCall]:
        """Windows times weights, plus bias, with channels brought to their place."""
        given = self.step.attributes
        x, w = self.step.inputs[:2]
        batch, channels, *space = self.flat.shape(x)
        outs, inner, *taps = self.flat.shape(w)
        groups = given["group"]
        found = windows(
            space, taps, **{k: given[k] for k in ("strides", "dilations", "pads", "auto_pad")}
        )  # fmt: skip
        geometry = _all_axes(found)
        places, many = list(self.shape[2:]), math.prod(self.shape[2:])
        rank, depth = len(places), inner * math.prod(taps)
        cut = self.windowed(x, geometry, (batch, channels, *places), "0")
        cut = self.add(Reshape.name, (cut,), (batch, groups, inner, *places, *taps))
        order = [1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
        cut = self.add(Transpose.name, (cut,), (groups, batch, *places, inner, *taps), perm=order)
        front = (groups,) if groups > 1 else ()
        rows = self.add(Reshape.name, (cut,), (*front, batch * many, depth))
        weight = self.add(Reshape.name, (w,), (groups, outs // groups, depth))
        weight = self.add(Transpose.name, (weight,), (groups, depth, outs // groups), perm=[0, 2, 1])
        weight = self.add(Reshape.name, (weight,), (*front, depth, outs // groups))
        made = self.add(MatMul.name, (rows, weight), (*front, batch * many, outs // groups))
        if len(self.step.inputs) > 2 and self.step.inputs[2]:
            bias = self.add(Reshape.name, (self.step.inputs[2],), (groups, 1, outs // groups) if front else (outs,))
            made = self.add(Add.name, (made, bias), (*front, batch * many, outs // groups))
        made = self.add(Reshape.name, (made,), (groups, batch, *places, outs // groups))
        order = [1, 0, 2 + rank, *range(2, 2 + rank)]
        made = self.add(Transpose.name, (made,), (batch, groups, outs // groups, *places), perm=order)
        self.add(Reshape.name, (made,), self.shape, self.step.output)
        return self.steps

    def pooling(self) -> list[PrimitiveCall]:
        """The maximum or sum of each window."""
        given = self.step.attributes
        x = self.step.inputs[0]
        shape = self.flat.shape(x)
        if self.step.op == MaxPoolValues.full_name:
            names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
            found = windows(shape[2:], given["kernel_shape"], **{k: given[k] for k in names})
            geometry, kind = _all_axes(found), "max"
        else:
            half = len(shape)
            pads = [[given["pads"][d], given["pads"][half + d]] for d in range(half)]
            geometry = {"window": given["window"], "strides": given["strides"], "dilations": given["dilations"]}
            geometry, kind = {**geometry, "pads": pads}, given["kind"]
        cut = self.windowed(x, geometry, self.shape, "-inf" if kind == "max" else "0")
        flat = (math.prod(self.shape), math.prod(geometry["window"]))
        rows = self.add(Reshape.name, (cut,), flat)
        axes = self.constant(np.array([1]))
        op = ReduceMax.name if kind == "max" else ReduceSum.name
        made = self.add(op, (rows, axes), flat[:1], keepdims=0, rows_only=True)
        self.add(Reshape.name, (made,), self.shape, self.step.output)
        return self.steps


def _all_axes(found: Any) -> dict[str, Any]:
    """A geometry over space as one over batch and channels as well."""
    return {
        "window": [1, 1, *found.kernel],
        "strides": [1, 1, *found.strides],
        "dilations": [1, 1, *found.dilations],
        "pads": [[0, 0], [0, 0], *[list(p) for p in found.padding]],
    }


WINDOWED = {
    Conv.name: lambda flat, step: _Windows(flat, step).convolution(),
    MaxPoolValues.full_name: lambda flat, step: _Windows(flat, step).pooling(),
    ReduceWindow.full_name: lambda flat, step: _Windows(flat, step).pooling(),
}
