"""Products and convolutions in every type and form; the usual ones have kernels of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.ir.kernel_program import Reduce, Reduction, Scalar, apply, load, scalar
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN
from pyflame_rt.backends.cpu.lower.batched_products import batched_product
from pyflame_rt.backends.cpu.lower.convolution import gathered_convolution, turned_convolution
from pyflame_rt.backends.cpu.lower.loop_nests import row_step
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.pooling import add_bias, convolve
from pyflame_rt.backends.cpu.lower.tiled_products import product_step
from pyflame_rt.backends.cpu.lower.transposed_phases import Axis, transposed_by_phases
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.backends.cpu.onednn import primitives
from pyflame_rt.backends.cpu.onednn.library import available
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.packing import pack
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.conv import ConvTranspose, transposed_geometry
from pyflame_rt.ops.onnx.signal import DFT
from pyflame_rt.ops.onnx.windows import windows

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.onednn.primitive import Primitive
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["general_convolution", "general_matmul"]

# Transforms longer than this are left to the reference: they are made as products with a matrix.
MAX_TRANSFORM = 1024


def general_matmul(low: Lowering, step: SpecializedNode) -> View:
    """Dot products of rows and columns in any type loops have; vectors and empty matrices too."""
    a, b = low.strided(step.node.inputs[0]), low.strided(step.node.inputs[1])
    if a.dtype is not b.dtype or a.dtype not in LOOP_TYPES or a.dtype in (DType.Bool, DType.Int8, DType.UInt8):
        raise NotNative(f"a product of {a.dtype.label} and {b.dtype.label}")
    shape = low.concrete.shape(step.node.outputs[0])
    a = replace(a, shape=(1, *a.shape), strides=(0, *a.strides)) if len(a.shape) == 1 else a
    b = replace(b, shape=(*b.shape, 1), strides=(*b.strides, 0)) if len(b.shape) == 1 else b
    rank = max(len(a.shape), len(b.shape)) - 2
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, n, depth = a.shape[-2], b.shape[-1], a.shape[-1]
    if a.dtype in (DType.Float32, DType.Float64) and len(batch) <= 2 and m * n * depth * math.prod(batch):
        result = batched_product(low, step.op.name, a, b).reshaped(shape)
        assert result is not None
        return result
    b = b.permuted([*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2])
    b = b if b.strides[-1] == 1 else low.copied(b)
    full = (*batch, m, n, depth)
    left, right = a.broadcast((*batch, m, depth)), b.broadcast((*batch, n, depth))
    left = replace(left, shape=full, strides=(*left.strides[:-1], 0, left.strides[-1]))
    right = replace(right, shape=full, strides=(*right.strides[:rank], 0, *right.strides[rank:]))
    out = low.new((*batch, m, n), a.dtype)
    if out.count:
        target = View(out.buffer, out.dtype, full, (*contiguous_strides(full[:-1]), 0))
        value = apply("mul", load(0, a.dtype.label), load(1, b.dtype.label))
        stages = [Reduce((Reduction("r", "sum", value),)), Scalar("out", scalar("r", value.dtype), 2)]
        row_step(low, step.op.name, [left, right, target], 1, stages)
    result = out.reshaped(shape)
    assert result is not None
    return result


def general_convolution(low: Lowering, step: SpecializedNode) -> View:
    """A convolution in any type loops have."""
    x, weights = low.strided(step.node.inputs[0]), low.dense(step.node.inputs[1])
    if x.dtype not in LOOP_TYPES or x.dtype is not weights.dtype or x.dtype is DType.Bool:
        raise NotNative(f"a convolution of {x.dtype.label} and {weights.dtype.label}")
    if not x.count * weights.count:
        raise NotNative("a convolution of nothing, or by no filters")
    names = ("strides", "dilations", "pads", "auto_pad")
    given = {n: step.attributes[n] for n in names if step.attributes.get(n) is not None}
    y = convolve(low, x, weights, windows(x.shape[2:], weights.shape[2:], **given), step.attributes["group"])
    rest = step.node.inputs[2] if len(step.node.inputs) > 2 else ""
    return add_bias(low, y, low.strided(rest)) if rest else y


# ---------------------------------------------------------------------- transposed convolution


@lowers(ConvTranspose)
def conv_transpose(low: Lowering, step: SpecializedNode) -> None:
    """The library's deconvolution; ONNX keeps weights (in, out / groups, ...)."""
    src, kernel = low.strided(step.node.inputs[0]), step.node.inputs[1]
    if src.count and (src.dtype is DType.Float64 or (src.dtype is DType.Float32 and not available())):
        if src.dtype is DType.Float64 or not _gathered(low, step):
            low.places[step.node.outputs[0]] = _general_transposed(low, step)
        return
    if src.dtype is not DType.Float32 or not src.count or not 3 <= len(src.shape) <= 5:
        raise NotNative(f"transposed convolution of {src.dtype.label}{list(src.shape)}")
    out_shape = low.concrete.shape(step.node.outputs[0])
    groups, taps = step.attributes["group"], low.concrete.shape(kernel)
    attributes = {k: v for k, v in step.attributes.items() if k != "group"}
    steps, gaps, padding, _ = transposed_geometry(_Sized(src.shape), _Sized(taps), **attributes)
    begin = [int(b) for b, _ in padding]
    end = [
        (n - 1) * s + (k - 1) * d + 1 - b - o
        for n, s, k, d, b, o in zip(src.shape[2:], steps, taps[2:], gaps, begin, out_shape[2:], strict=True)
    ]
    rest = step.node.inputs[2] if len(step.node.inputs) > 2 else ""
    if not rest and groups == 1 and set(steps) == set(gaps) == {1} and _turned(low, step, begin, end):
        return
    if _gathered(low, step):
        return
    bias = low.dense(rest) if rest else None
    wide = (groups, taps[1], taps[0] // groups, *taps[2:])
    shape = wide if groups > 1 else wide[1:]
    layout = {3: "acb", 4: "acdb", 5: "acdeb"}[len(src.shape)]
    primitive = primitives.deconvolution(
        MemDesc(src.shape, "f32", layout),
        MemDesc(shape, "f32", "any"),
        MemDesc(out_shape, "f32", layout),
        strides=steps,
        pads_begin=begin,
        pads_end=end,
        dilations=gaps,
        bias=None if bias is None else MemDesc(bias.shape, "f32"),
    )
    args = {"src": _arranged(low, src, primitive.args["src"])}
    args["weights"] = _turned_weights(low, kernel, wide, primitive)
    if bias is not None:
        args["bias"] = bias
    out = low.new_blocked(primitive.args["dst"], DType.Float32)
    low.primitive(ConvTranspose.name, primitive, {**args, "dst": out})
    low.places[step.node.outputs[0]] = out


def _gathered(low: Lowering, step: SpecializedNode) -> bool:
    """A transposed convolution as sums over what reaches a pixel; False where something else is better."""
    shape, taps = (low.concrete.shape(name) for name in step.node.inputs[:2])
    if len(taps) != 4 or step.attributes["group"] != 1 or any(step.node.inputs[2:]):
        return False
    attributes = {k: v for k, v in step.attributes.items() if k != "group"}
    steps, gaps, padding, _ = transposed_geometry(_Sized(shape), _Sized(taps), **attributes)
    return gathered_convolution(low, step, steps, gaps, [int(begin) for begin, _ in padding])


def _general_transposed(low: Lowering, step: SpecializedNode) -> View:
    """A transposed convolution in any type loops have."""
    x, weights = low.strided(step.node.inputs[0]), low.dense(step.node.inputs[1])
    sizes = low.concrete.shape(step.node.outputs[0])[2:]
    attributes = {k: v for k, v in step.attributes.items() if k != "group"}
    steps, gaps, padding, _ = transposed_geometry(_Sized(x.shape), _Sized(weights.shape), **attributes)
    given = zip(x.shape[2:], sizes, weights.shape[2:], steps, gaps, padding, strict=True)
    axes = [Axis(n, result, k, s, d, int(before)) for n, result, k, s, d, (before, _) in given]
    rest = step.node.inputs[2] if len(step.node.inputs) > 2 else ""
    bias = low.strided(rest) if rest else None
    return transposed_by_phases(low, x, weights, bias, axes, step.attributes["group"])


def _turned(low: Lowering, step: SpecializedNode, begin: list[int], end: list[int]) -> bool:
    """A transposed convolution as a convolution by turned filters; False where there is no kernel for that."""
    taps = low.concrete.shape(step.node.inputs[1])[2:]
    pads = [(k - 1 - b, k - 1 - e) for k, b, e in zip(taps, begin, end, strict=True)]
    if len(taps) != 2 or any(p < 0 for pair in pads for p in pair):
        return False
    kept = low.mark()
    try:
        low.places[step.node.outputs[0]] = turned_convolution(low, step, tuple(pads))
    except NotNative:
        low.back_to(kept)
        return False
    return True


class _Sized:
    """Sizes alone, where geometry is asked for."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _arranged(low: Lowering, view: View, wanted: MemDesc) -> View:
    same = wanted.is_plain and all(
        n == 1 or a == b for n, a, b in zip(view.shape, view.strides, wanted.strides, strict=True)
    )
    return view if same else low.reordered(view, wanted)


def _turned_weights(low: Lowering, name: str, wide: tuple[int, ...], primitive: Primitive) -> View:
    """(in, out / groups, ...) as (groups, out / groups, in / groups, ...): packed once when constant."""
    groups, outputs, inputs, *taps = wide
    split = (groups, inputs, outputs, *taps)
    shape = wide if groups > 1 else wide[1:]
    wanted = primitive.args["weights"]
    array = low.constant_of(name)
    if array is not None:
        turned = np.ascontiguousarray(np.swapaxes(np.ascontiguousarray(array).reshape(split), 1, 2)).reshape(shape)
        like = View(low.view(name).buffer, DType.Float32, shape, ())
        return low.constant(pack(turned, wanted), wanted, like)
    view = low.dense(name).reshaped(split)
    assert view is not None
    turned_view = view.permuted([0, 2, 1, *range(3, len(split))])
    dense = low.copied(turned_view).reshaped(shape)
    assert dense is not None
    return _arranged(low, dense, wanted)


# ---------------------------------------------------------------------- Fourier transforms


@lowers(DFT)
def fourier(low: Lowering, step: SpecializedNode) -> None:
    """A transform of moderate length is a product with the transform of the unit signals."""
    from pyflame_rt.ops.core.evaluate import Context, run_op

    x, name = low.strided(step.node.inputs[0]), step.node.outputs[0]
    shape = low.concrete.shape(name)
    if x.dtype is not DType.Float32 or step.attributes["inverse"]:
        # Parts that cancel in an inverse transform keep the rounding of the fast algorithm, which others expect.
        raise NotNative(f"an inverse transform, or one of {x.dtype.label}")
    given = [low.constant_of(n) if n else None for n in (*step.node.inputs[1:], "", "")[:2]]
    if any(n and g is None for n, g in zip(step.node.inputs[1:], given, strict=False)):
        raise NotNative("length or axis are not constant")
    axis = (-2 if given[1] is None else int(given[1].item())) % len(x.shape)
    length, parts = x.shape[axis], x.shape[-1]
    if max(length, shape[axis]) > MAX_TRANSFORM:
        raise NotNative(f"transforms longer than {MAX_TRANSFORM} run by the reference")
    if not x.count:
        raise NotNative("a transform of nothing")
    units = np.eye(length * parts, dtype=np.float64).reshape(length * parts, length, parts)
    arrays = [units, given[0], np.asarray(1)]
    (table,) = run_op(step.op, arrays, dict(step.attributes), Context.of("numpy"))
    matrix = np.ascontiguousarray(table.reshape(length * parts, -1).astype(np.float32))
    order = [*(k for k in range(len(x.shape) - 1) if k != axis), axis, len(x.shape) - 1]
    rows = math.prod(x.shape) // (length * parts)
    a = low.copied(x.permuted(order)).reshaped((rows, length * parts))
    assert a is not None
    out = low.new((rows, matrix.shape[1]), DType.Float32)
    product_step(low, DFT.name, a, matrix, [], PLAIN, out)
    turned = tuple(shape[k] for k in order)
    result = out.reshaped(turned)
    assert result is not None
    back: list[Any] = [order.index(k) for k in range(len(shape))]
    low.places[name] = result.permuted(back)
