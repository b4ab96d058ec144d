"""Convolutions, products and pooling: library primitives, with what follows them as post-ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.graph.epilogue import Epilogue, find_epilogue
from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.lower.convolution import channels_last, convolution
from pyflame_rt.backends.cpu.lower.gemv import row_product, takes_row_product
from pyflame_rt.backends.cpu.lower.lowering import LIBRARY_REFUSALS, Lowering, NotNative, fuses, lowers
from pyflame_rt.backends.cpu.lower.max_windows import mean_windows
from pyflame_rt.backends.cpu.lower.pooling import greatest
from pyflame_rt.backends.cpu.lower.products import general_convolution, general_matmul
from pyflame_rt.backends.cpu.lower.tiled_products import dense
from pyflame_rt.backends.cpu.memory.buffer_views import View
from pyflame_rt.backends.cpu.memory.constants import pack
from pyflame_rt.backends.cpu.onednn import primitives
from pyflame_rt.backends.cpu.onednn.api import OneDnnError, cpu_isa
from pyflame_rt.backends.cpu.onednn.attr import Attr
from pyflame_rt.backends.cpu.onednn.library import OneDnnUnavailable, available
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.run.threads import threads_for
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import AveragePool, GlobalAveragePool, GlobalMaxPool
from pyflame_rt.ops.onnx.windows import Windows, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.onednn.primitive import Primitive
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__ = ["conv", "matmul", "pool"]


def _is_row(low: Lowering, step: SpecializedNode, group: Group) -> bool:
    return not group.extra and takes_row_product(low, step)


def _fits_tiles(low: Lowering, step: SpecializedNode, group: Group) -> bool:
    """Several results are stored by products of two values that are both made at run time."""
    return not group.extra or (step.op is not Conv and low.constant_of(step.node.inputs[1]) is None)


def _fits_library(low: Lowering, step: SpecializedNode, group: Group) -> bool:
    return not group.extra and find_epilogue(low.concrete, group, step.node.outputs[0]) is not None


def _by_library(low: Lowering, step: SpecializedNode, group: Group) -> View:
    """A product by the library, with the loop as its post-ops."""
    epilogue = find_epilogue(low.concrete, group, step.node.outputs[0])
    assert epilogue is not None
    for other in epilogue.operands:
        low.view(other)
    return (_convolution if step.op is Conv else _matmul)(low, step, epilogue)


fuses(row_product, Conv, MatMul, Gemm, when=_is_row)
fuses(convolution, Conv, when=_fits_tiles)
fuses(dense, MatMul, Gemm, when=_fits_tiles)
fuses(_by_library, Conv, MatMul, Gemm, when=_fits_library)


def _alone(low: Lowering, step: SpecializedNode) -> bool:
    """A product on its own by a generated kernel, where there is one and the library was not chosen."""
    if step.node.outputs[0] in low.library:
        return False
    kept = low.mark()
    try:
        low.places[step.node.outputs[0]] = (convolution if step.op is Conv else dense)(low, step)
    except NotNative:
        low.back_to(kept)
        return False
    return True


_NONE = Epilogue((), ())


@lowers(Conv)
def conv(low: Lowering, step: SpecializedNode) -> None:
    """A convolution on its own; in loops where elements are not float32."""
    if low.concrete.dtype(step.node.inputs[0]) is not DType.Float32:
        low.places[step.node.outputs[0]] = general_convolution(low, step)
        return
    if takes_row_product(low, step):
        low.places[step.node.outputs[0]] = row_product(low, step)
        return
    if _alone(low, step):
        return
    kept = low.mark()
    try:
        low.places[step.node.outputs[0]] = _convolution(low, step, _NONE)
    except LIBRARY_REFUSALS:
        low.back_to(kept)
        low.places[step.node.outputs[0]] = general_convolution(low, step)


def _convolution(low: Lowering, step: SpecializedNode, epilogue: Epilogue) -> View:
    data, kernel, *rest = step.node.inputs
    src, weights = low.view(data), low.dense(kernel)
    if src.dtype is not DType.Float32:
        raise NotNative(f"convolution of {src.dtype.label}")
    if not src.count * weights.count:
        raise NotNative("a convolution of nothing, or by no filters")
    groups = step.attributes["group"]
    shape = weights.shape if groups == 1 else (groups, weights.shape[0] // groups, *weights.shape[1:])
    bias = low.dense(rest[0]) if rest and rest[0] else None
    at = _windows(step, src.shape[2:], weights.shape[2:])
    out_shape = low.concrete.shape(step.node.outputs[0])
    layout = _image_layout(len(out_shape))

    def make(attr: Attr) -> Primitive:
        return primitives.convolution(
            MemDesc(src.shape, "f32", layout),
            MemDesc(shape, "f32", "any"),
            MemDesc(out_shape, "f32", layout),
            strides=at.strides,
            pads_begin=[p[0] for p in at.padding],
            pads_end=[p[1] for p in at.padding],
            dilations=at.dilations,
            bias=None if bias is None else MemDesc(bias.shape, "f32"),
            attr=attr,
        )

    depth = math.prod(weights.shape[1:])
    with threads_for(math.prod(out_shape) * depth):
        primitive = _with_epilogue(low, epilogue, make)
    if primitive.impl.startswith("ref") and epilogue.names:
        raise NotNative("with this epilogue the library has only its slow implementation")
    args = {
        "src": _arranged(low, src, primitive.args["src"]),
        "weights": _packed(low, kernel, shape, primitive),
    }
    if bias is not None:
        args["bias"] = bias
    return _finish(low, step, epilogue, primitive, args)


def _image_layout(rank: int) -> str:
    """Channels last, the fastest for nearly every shape without AVX-512; there the library chooses."""
    if "avx512" in cpu_isa():
        return "any"
    return {3: "acb", 4: "acdb", 5: "acdeb"}.get(rank, "any")


def _windows(step: SpecializedNode, sizes: Sequence[int], kernel: Sequence[int], *, partial: bool = False) -> Windows:
    names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
    given = {n: step.attributes[n] for n in names if step.attributes.get(n) is not None}
    return windows(sizes, kernel, **given, partial=partial)


def _with_epilogue(low: Lowering, epilogue: Epilogue, make: Any) -> Primitive:
    """Tensor operands of post-ops lie as the result does, which only the bare primitive can tell."""
    if not epilogue.operands:
        return make(epilogue.attr([]))
    with make(Attr()) as bare:
        dst = bare.args["dst"]
        descs = [_operand_desc(low.view(n), dst) for n in epilogue.operands]
        return make(epilogue.attr(descs))


def _operand_desc(view: View, dst: MemDesc) -> MemDesc:
    if view.shape == dst.dims:
        return MemDesc.clone(dst.handle)
    shape = (1,) * (dst.ndims - len(view.shape)) + view.shape
    return MemDesc(shape, "f32")


def _finish(
    low: Lowering, step: SpecializedNode, epilogue: Epilogue, primitive: Primitive, args: dict[str, View]
) -> View:
    for i, name in enumerate(epilogue.operands):
        view = low.view(name)
        wanted = primitive.args[f"binary_{i}"]
        args[f"binary_{i}"] = _arranged(low, view, wanted) if view.shape == wanted.dims else low.dense(name)
    out = low.new_blocked(primitive.args["dst"], DType.Float32)
    args["dst"] = out
    low.primitive("+".join([step.op.name, *epilogue.names]), primitive, args)
    return out


def _arranged(low: Lowering, view: View, wanted: MemDesc) -> View:
    """The value in the layout a primitive wants."""
    if not wanted.is_plain or view.is_blocked:
        return view if low.desc(view) == wanted else low.reordered(view, wanted)
    same = all(n == 1 or a == b for n, a, b in zip(view.shape, view.strides, wanted.strides, strict=True))
    return view if same else low.reordered(view, wanted)


def _packed(low: Lowering, name: str, shape: tuple[int, ...], primitive: Primitive) -> View:
    """Weights in the primitive's layout: packed once when constant, on every run otherwise."""
    wanted = primitive.args["weights"]
    array = low.constant_of(name)
    if array is None:
        view = low.dense(name).reshaped(shape)
        assert view is not None
        return _arranged(low, view, wanted)
    source = np.ascontiguousarray(array).reshape(shape)
    if wanted.is_dense_row_major:
        return low.constant(source)
    return low.constant(pack(source, wanted), wanted, View(low.view(name).buffer, DType.Float32, shape, ()))


# ---------------------------------------------------------------------- products


@lowers(MatMul, Gemm)
def matmul(low: Lowering, step: SpecializedNode) -> None:
    """A product on its own."""
    if takes_row_product(low, step):
        low.places[step.node.outputs[0]] = row_product(low, step)
        return
    if _alone(low, step):
        return
    kept = low.mark()
    try:
        low.places[step.node.outputs[0]] = _matmul(low, step, _NONE)
    except LIBRARY_REFUSALS as error:
        if step.op is not MatMul:
            raise NotNative(str(error)) from error
        low.back_to(kept)
        low.places[step.node.outputs[0]] = general_matmul(low, step)


def _matmul(low: Lowering, step: SpecializedNode, epilogue: Epilogue) -> View:
    a, b = low.strided(step.node.inputs[0]), low.as_stored(step.node.inputs[1])
    out_shape = low.concrete.shape(step.node.outputs[0])
    if a.dtype is not DType.Float32 or not a.count or not b.count or min(len(a.shape), len(b.shape)) < 2:
        raise NotNative("a product of vectors, of nothing, or of another type than float32")
    bias, scale = None, 1.0
    if step.op is Gemm:
        a, b, bias, scale = _gemm_operands(low, step, a, b)
    rank = len(out_shape)
    if len(b.shape) == 2 and low.constant_of(step.node.inputs[1]) is not None and scale == 1.0:
        return _dense_layer(low, step, epilogue, a, b, bias)
    a, b = _usable(low, _ranked(a, rank)), _usable(low, _ranked(b, rank))

    def make(attr: Attr) -> Primitive:
        given = attr if scale == 1.0 else Attr().linear(scale)
        return primitives.matmul(
            low.desc(a),
            low.desc(b),
            MemDesc(out_shape, "f32"),
            bias=None if bias is None else MemDesc(_ranked(bias, rank).shape, "f32"),
            attr=given,
        )

    if scale != 1.0 and (epilogue.names or bias is not None):
        raise NotNative("alpha together with a bias or an epilogue")
    with threads_for(math.prod(out_shape) * a.shape[-1]):
        primitive = _with_epilogue(low, epilogue, make)
    args = {"src": a, "weights": b}
    if bias is not None:
        args["bias"] = bias
    return _finish(low, step, epilogue, primitive, args)


def _dense_layer(low: Lowering, step: SpecializedNode, epilogue: Epilogue, a: View, b: View, bias: View | None) -> View:
    """A product with constant weights: packed once, every leading axis of the input a row."""
    out_shape = low.concrete.shape(step.node.outputs[0])
    rows, depth, width = math.prod(out_shape[:-1]), a.shape[-1], out_shape[-1]
    a = a.reshaped((rows, depth)) or low.copied(a).reshaped((rows, depth)) or a
    if a.strides[-1] != 1 and depth != 1:
        a = low.copied(a)
    if bias is not None and bias.count != width:
        raise NotNative("a bias that differs from row to row")
    operands = {n: _flat_operand(low, n, out_shape, (rows, width)) for n in epilogue.operands}

    def make(attr: Attr) -> Primitive:
        return primitives.inner_product(
            low.desc(a),
            MemDesc((width, depth), "f32", "any"),
            MemDesc((rows, width), "f32"),
            bias=None if bias is None else MemDesc((width,), "f32"),
            attr=attr,
        )

    with threads_for(rows * depth * width):
        primitive = make(epilogue.attr([MemDesc(v.shape, "f32") for v in operands.values()]))
    args = {"src": a, "weights": _packed_matrix(low, b.permuted([1, 0]), primitive)}
    if bias is not None:
        args["bias"] = bias
    args |= {f"binary_{i}": view for i, view in enumerate(operands.values())}
    out = low.new((rows, width), DType.Float32)
    low.primitive("+".join([step.op.name, *epilogue.names]), primitive, {**args, "dst": out})
    return out.reshaped(out_shape) or out


def _flat_operand(low: Lowering, name: str, shape: tuple[int, ...], flat: tuple[int, int]) -> View:
    """An operand of the epilogue with its leading axes merged as those of the product are."""
    view = low.dense(name)
    result = (
        view.reshaped(flat) if view.shape == shape else view.reshaped((1, flat[1])) if view.count == flat[1] else None
    )
    if result is None:
        raise NotNative("an operand that broadcasts over some leading axes only")
    return result


def _gemm_operands(low: Lowering, step: SpecializedNode, a: View, b: View) -> tuple[View, View, View | None, float]:
    attributes = step.attributes
    a = a.permuted([1, 0]) if attributes["transA"] else a
    b = b.permuted([1, 0]) if attributes["transB"] else b
    addend = next(iter(step.node.inputs[2:]), "")
    if not addend:
        return a, b, None, attributes["alpha"]
    if attributes["alpha"] != 1.0 or attributes["beta"] != 1.0:
        raise NotNative("alpha or beta together with a bias")
    bias = low.dense(addend)
    if bias.count != b.shape[1] or bias.shape[-1:] != b.shape[1:]:
        raise NotNative("a bias that is not one number for each column: the library has only slow code for it")
    return a, b, bias, 1.0


def _ranked(view: View, rank: int) -> View:
    lead = rank - len(view.shape)
    if lead <= 0:
        return view
    return View(view.buffer, view.dtype, (1,) * lead + view.shape, (view.count,) * lead + view.strides, view.offset)


def _usable(low: Lowering, view: View) -> View:
    """The library wants one of the last two axes contiguous, and no axis stretched by a stride of zero."""
    inner = view.strides[-1] == 1 or view.strides[-2] == 1 or view.shape[-1] == 1 or view.shape[-2] == 1
    stretched = any(s == 0 and n != 1 for s, n in zip(view.strides, view.shape, strict=True))
    odd = any(s < n for s, n in zip(view.strides[:-2], view.shape[:-2], strict=True) if n > 1 and s == 0)
    return low.copied(view) if not inner or stretched or odd else view


def _packed_matrix(low: Lowering, view: View, primitive: Primitive) -> View:
    wanted = primitive.args["weights"]
    whole: Any = view.buffer.array
    start = whole.reshape(-1)[view.offset :] if view.offset else whole
    strides = [s * whole.itemsize for s in view.strides]
    array = np.lib.stride_tricks.as_strided(start, view.shape, strides, writeable=False)
    return low.constant(pack(array, wanted), wanted, view)


# ---------------------------------------------------------------------- pooling


def _other_pool(graph: SpecializedGraph, step: SpecializedNode) -> str:
    if len([o for o in step.node.outputs if o]) > 1:
        return "the indices of the maxima are asked for"
    dtype, shape = graph.types[step.node.inputs[0]]
    if step.op in (MaxPool, GlobalMaxPool):
        return f"pooling of {dtype.label}" if dtype not in LOOP_TYPES or dtype is DType.Bool else ""
    return "" if dtype is DType.Float32 and 3 <= len(shape) <= 5 else f"pooling of {dtype.label}{list(shape)}"


@lowers(MaxPool, AveragePool, GlobalAveragePool, GlobalMaxPool, refuses=_other_pool)
def pool(low: Lowering, step: SpecializedNode) -> None:
    """Pooling in the layout its input has; maxima by a loop, since the library's pass over NaN."""
    src = low.view(step.node.inputs[0])
    if step.op in (MaxPool, GlobalMaxPool):
        low.places[step.node.outputs[0]] = _max_pool(low, step, src)
        return
    if not src.is_blocked and not src.is_dense:
        src = low.dense(step.node.inputs[0])
    out_shape = low.concrete.shape(step.node.outputs[0])
    if 0 in out_shape:
        raise NotNative("there is nothing to pool")
    at = _pool_windows(step, src.shape[2:])
    reach = at.reach(src.shape[2:])
    if any(after >= kernel for (_, after), kernel in zip(reach, at.kernel, strict=True)):
        raise NotNative("a window that lies in the padding alone")
    kind = _pool_kind(step)
    further = any(found > asked for (_, found), (_, asked) in zip(reach, at.padding, strict=True))
    if kind == "avg_include_padding" and (further or any(at.beyond)):
        raise NotNative("windows that reach beyond the padding they count")
    if not available() and step.op is AveragePool:
        whole = kind == "avg_include_padding"
        low.places[step.node.outputs[0]] = mean_windows(low, low.strided(step.node.inputs[0]), at, whole=whole)
        return
    try:
        primitive = primitives.pooling(
            low.desc(src),
            MemDesc(out_shape, "f32", "any"),
            kind=kind,
            kernel=at.kernel,
            strides=at.strides,
            pads_begin=[p[0] for p in reach],
            pads_end=[p[1] for p in reach],
            dilations=at.dilations,
        )
    except (OneDnnError, OneDnnUnavailable) as error:
        raise NotNative(str(error)) from error
    if primitive.impl.startswith("ref"):
        primitive.close()
        raise NotNative("the library has only its slow implementation for these windows")
    out = low.new_blocked(primitive.args["dst"], DType.Float32)
    low.primitive(step.op.name, primitive, {"src": src, "dst": out})
    low.places[step.node.outputs[0]] = out


def _max_pool(low: Lowering, step: SpecializedNode, src: View) -> View:
    name = step.node.inputs[0]
    x = channels_last(low, name) if src.is_blocked and len(src.shape) == 4 else low.strided(name)
    return greatest(low, x, _pool_windows(step, x.shape[2:]))


def _pool_windows(step: SpecializedNode, sizes: Sequence[int]) -> Windows:
    if step.op.name.startswith("Global"):
        return windows(sizes, sizes)
    return _windows(step, sizes, step.attributes["kernel_shape"], partial=True)


def _pool_kind(step: SpecializedNode) -> str:
    return "avg_include_padding" if step.attributes.get("count_include_pad") else "avg_exclude_padding"
