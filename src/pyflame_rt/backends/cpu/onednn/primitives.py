"""Forward primitives on tensors: each function describes one, and returns it with its layouts settled.

Descriptors say shapes, element types (int8 forms come from these) and layouts; a layout of ``"any"``
lets the primitive choose. Spatial arguments follow ONNX: a dilation of one is none.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.onednn import api
from pyflame_rt.backends.cpu.onednn.attr import Attr
from pyflame_rt.backends.cpu.onednn.primitive import Primitive, build
from pyflame_rt.backends.cpu.onednn.recipes import recorded
from pyflame_rt.backends.cpu.onednn.runtime import engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.onednn.memory import MemDesc

__all__ = [
    "batch_normalization",
    "binary",
    "concat",
    "convolution",
    "deconvolution",
    "eltwise",
    "inner_product",
    "layer_normalization",
    "lrn",
    "matmul",
    "pooling",
    "prelu",
    "reduction",
    "reorder",
    "resampling",
    "softmax",
    "sum_",
]

_DEFAULT = Attr()
_WEIGHTED = ("src", "weights", "bias", "dst")
_MAPPED = ("src", "dst")


@recorded
def convolution(
    src: MemDesc,
    weights: MemDesc,
    dst: MemDesc,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int] | None = None,
    bias: MemDesc | None = None,
    attr: Attr = _DEFAULT,
    algorithm: str = "direct",
) -> Primitive:
    """Convolution over one to three spatial dims.

    Weights are ``(out, in, ...)``, or ``(groups, out / groups, in / groups, ...)`` when grouped.
    """
    number = _choice(api.CONVOLUTION, algorithm, "convolution algorithm")
    descs = (src.handle, weights.handle, _maybe(bias), dst.handle)
    given = (api.FORWARD_INFERENCE, number, *descs, *_spatial(strides, dilations, pads_begin, pads_end))
    flops = _flops(dst, 2 * math.prod(weights.dims) // dst.dims[1])
    return build("convolution", given, _WEIGHTED, attr, flops)


@recorded
def deconvolution(
    src: MemDesc,
    weights: MemDesc,
    dst: MemDesc,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int] | None = None,
    bias: MemDesc | None = None,
    attr: Attr = _DEFAULT,
    algorithm: str = "direct",
) -> Primitive:
    """Transposed convolution; weights are ``(out, in, ...)`` or ``(groups, out / groups, in / groups, ...)``.

    ONNX keeps them ``(in, out, ...)``: describe those through :meth:`MemDesc.permute`.
    """
    number = _choice(api.DECONVOLUTION, algorithm, "deconvolution algorithm")
    descs = (src.handle, weights.handle, _maybe(bias), dst.handle)
    given = (api.FORWARD_INFERENCE, number, *descs, *_spatial(strides, dilations, pads_begin, pads_end))
    flops = _flops(src, 2 * math.prod(weights.dims) // src.dims[1])
    return build("deconvolution", given, _WEIGHTED, attr, flops)


@recorded
def matmul(
    src: MemDesc, weights: MemDesc, dst: MemDesc, *, bias: MemDesc | None = None, attr: Attr = _DEFAULT
) -> Primitive:
    """``src @ weights``: equal ranks, batch dims equal or one; transposition is a matter of strides.

    The bias has the rank of dst, its dims being dst's or one. Constant weights pack best with layout
    ``"any"``; ``api.RUNTIME_DIM`` leaves a size open until execution.
    """
    given = (src.handle, weights.handle, _maybe(bias), dst.handle)
    flops = _flops(dst, 2 * src.dims[-1])
    return build("matmul", given, _WEIGHTED, attr, flops, function="dnnl_matmul_primitive_desc_create")


@recorded
def inner_product(
    src: MemDesc, weights: MemDesc, dst: MemDesc, *, bias: MemDesc | None = None, attr: Attr = _DEFAULT
) -> Primitive:
    """``src`` times transposed ``weights`` over every dim but the first; weights are ``(out, in, ...)``."""
    given = (api.FORWARD_INFERENCE, src.handle, weights.handle, _maybe(bias), dst.handle)
    return build("inner_product", given, _WEIGHTED, attr, _flops(dst, 2 * math.prod(weights.dims[1:])))


@recorded
def pooling(
    src: MemDesc,
    dst: MemDesc,
    *,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int] | None = None,
    attr: Attr = _DEFAULT,
) -> Primitive:
    """Pooling; ``kind`` is ``max``, ``avg_include_padding`` or ``avg_exclude_padding``."""
    number = _choice(api.POOLING, kind, "pooling kind")
    steps, dilates, begin, end = _spatial(strides, dilations, pads_begin, pads_end)
    sizes = (steps, api.dims_array(tuple(kernel)), dilates, begin, end)
    given = (api.FORWARD_INFERENCE, number, src.handle, dst.handle, *sizes)
    return build("pooling", given, _MAPPED, attr, _flops(dst, math.prod(kernel)))


@recorded
def eltwise(
    src: MemDesc, dst: MemDesc, *, kind: str, alpha: float = 0.0, beta: float = 0.0, attr: Attr = _DEFAULT
) -> Primitive:
    """A function of each element; ``kind`` is a key of ``api.ELTWISE``."""
    number = _choice(api.ELTWISE, kind, "eltwise kind")
    given = (api.FORWARD_INFERENCE, number, src.handle, dst.handle, alpha, beta)
    return build("eltwise", given, _MAPPED, attr, _flops(dst))


@recorded
def softmax(src: MemDesc, dst: MemDesc, *, axis: int, log: bool = False, attr: Attr = _DEFAULT) -> Primitive:
    """Softmax, or its logarithm, along one axis."""
    number = api.SOFTMAX["log" if log else "accurate"]
    given = (api.FORWARD_INFERENCE, number, src.handle, dst.handle, axis % src.ndims)
    return build("softmax", given, _MAPPED, attr, _flops(dst, 4))


@recorded
def layer_normalization(
    src: MemDesc,
    dst: MemDesc,
    *,
    epsilon: float,
    scale: bool = True,
    shift: bool = True,
    attr: Attr = _DEFAULT,
) -> Primitive:
    """Normalisation over the last axis; ``scale`` and ``shift`` add f32 arguments of those names."""
    flags = (api.USE_SCALE if scale else 0) | (api.USE_SHIFT if shift else 0)
    given = (api.FORWARD_INFERENCE, src.handle, dst.handle, None, epsilon, flags)
    return build("layer_normalization", given, (*_MAPPED, *_affine(scale, shift)), attr, _flops(dst, 8))


@recorded
def batch_normalization(
    src: MemDesc,
    dst: MemDesc,
    *,
    epsilon: float,
    scale: bool = True,
    shift: bool = True,
    relu: bool = False,
    attr: Attr = _DEFAULT,
) -> Primitive:
    """Normalisation per channel with given ``mean`` and ``variance`` (f32 arguments)."""
    flags = api.USE_GLOBAL_STATS | (api.USE_SCALE if scale else 0) | (api.USE_SHIFT if shift else 0)
    flags |= api.FUSE_NORM_RELU if relu else 0
    given = (api.FORWARD_INFERENCE, src.handle, dst.handle, epsilon, flags)
    names = (*_MAPPED, "mean", "variance", *_affine(scale, shift))
    return build("batch_normalization", given, names, attr, _flops(dst, 4))


@recorded
def lrn(
    src: MemDesc,
    dst: MemDesc,
    *,
    size: int,
    alpha: float,
    beta: float,
    bias: float,
    kind: str = "across_channels",
    attr: Attr = _DEFAULT,
) -> Primitive:
    """Local response normalisation; ``alpha`` is divided by ``size`` as in ONNX."""
    number = _choice(api.LRN, kind, "lrn kind")
    given = (api.FORWARD_INFERENCE, number, src.handle, dst.handle, size, alpha, beta, bias)
    return build("lrn", given, _MAPPED, attr, _flops(dst, 2 * size + 8))


@recorded
def prelu(src: MemDesc, weights: MemDesc, dst: MemDesc, *, attr: Attr = _DEFAULT) -> Primitive:
    """Leaky ReLU with a tensor of slopes, of dst's rank and broadcast to it."""
    given = (api.FORWARD_INFERENCE, src.handle, weights.handle, dst.handle)
    return build("prelu", given, ("src", "weights", "dst"), attr, _flops(dst, 2))


@recorded
def resampling(src: MemDesc, dst: MemDesc, *, kind: str, attr: Attr = _DEFAULT) -> Primitive:
    """Resizing of the spatial dims to dst's, half-pixel centres; ``kind`` is ``nearest`` or ``linear``."""
    number = _choice(api.RESAMPLING, kind, "resampling kind")
    given = (api.FORWARD_INFERENCE, number, None, src.handle, dst.handle)
    return build("resampling", given, _MAPPED, attr, _flops(dst, 8))


@recorded
def reduction(
    src: MemDesc, dst: MemDesc, *, kind: str, p: float = 0.0, epsilon: float = 0.0, attr: Attr = _DEFAULT
) -> Primitive:
    """Reduction along every axis where dst has size one and src has not; ``kind`` is a key of ``api.REDUCTION``."""
    given = (_choice(api.REDUCTION, kind, "reduction kind"), src.handle, dst.handle, p, epsilon)
    return build("reduction", given, _MAPPED, attr, _flops(src), function="dnnl_reduction_primitive_desc_create")


@recorded
def binary(src_0: MemDesc, src_1: MemDesc, dst: MemDesc, *, kind: str, attr: Attr = _DEFAULT) -> Primitive:
    """An operation on two tensors of one rank, each broadcast along its dims of size one."""
    given = (_choice(api.BINARY, kind, "binary kind"), src_0.handle, src_1.handle, dst.handle)
    names = ("src_0", "src_1", "dst")
    return build("binary", given, names, attr, _flops(dst), function="dnnl_binary_primitive_desc_create")


@recorded
def reorder(src: MemDesc, dst: MemDesc, *, attr: Attr = _DEFAULT) -> Primitive:
    """A copy from one layout or element type to another; scales and zero points quantise."""
    given = (src.handle, engine(), dst.handle, engine())
    function = "dnnl_reorder_primitive_desc_create"
    return build("reorder", given, _MAPPED, attr, _flops(dst), function=function, engine_first=False)


@recorded
def concat(srcs: Sequence[MemDesc], dst: MemDesc | None = None, *, axis: int, attr: Attr = _DEFAULT) -> Primitive:
    """Concatenation of ``src_0``, ``src_1``...; without dst its layout is chosen."""
    given = (_maybe(dst), len(srcs), axis % srcs[0].ndims, _handles(srcs))
    return build("concat", given, _numbered(srcs), attr, function="dnnl_concat_primitive_desc_create")


@recorded
def sum_(
    srcs: Sequence[MemDesc], dst: MemDesc | None = None, *, scales: Sequence[float] | None = None, attr: Attr = _DEFAULT
) -> Primitive:
    """The scaled sum of ``src_0``, ``src_1``... of one shape."""
    factors = (ctypes.c_float * len(srcs))(*(scales if scales is not None else [1.0] * len(srcs)))
    given = (_maybe(dst), len(srcs), factors, _handles(srcs))
    flops = _flops(srcs[0], 2 * len(srcs))
    return build("sum", given, _numbered(srcs), attr, flops, function="dnnl_sum_primitive_desc_create")


def _spatial(
    strides: Sequence[int], dilations: Sequence[int] | None, pads_begin: Sequence[int], pads_end: Sequence[int]
) -> tuple[ctypes.Array[ctypes.c_int64], ...]:
    dilates = [d - 1 for d in dilations] if dilations is not None else [0] * len(strides)
    return tuple(api.dims_array(tuple(v)) for v in (strides, dilates, pads_begin, pads_end))


def _maybe(desc: MemDesc | None) -> int | None:
    return None if desc is None else desc.handle


def _handles(descs: Sequence[MemDesc]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(descs))(*(d.handle for d in descs))


def _numbered(srcs: Sequence[MemDesc]) -> dict[str, int]:
    return {f"src_{i}": api.ARG_MULTIPLE_SRC + i for i in range(len(srcs))} | {"dst": api.ARGS["dst"]}


def _affine(scale: bool, shift: bool) -> tuple[str, ...]:
    return (("scale",) if scale else ()) + (("shift",) if shift else ())


def _choice(table: dict[str, int], name: str, what: str) -> int:
    number = table.get(name)
    if number is None:
        raise ValueError(f"no {what} {name!r}; there are {', '.join(table)}")
    return number


def _flops(desc: MemDesc, per_element: int = 1) -> int:
    return max(0, math.prod(desc.dims) * per_element) if api.RUNTIME_DIM not in desc.dims else 0
