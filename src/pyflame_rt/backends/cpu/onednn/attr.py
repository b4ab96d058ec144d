"""Primitive attributes: post-ops, quantisation, scratchpad, arithmetic mode. Frozen data, made native on use."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import TYPE_CHECKING, assert_never

from pyflame_rt.backends.cpu.onednn import api
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.backends.cpu.onednn.memory import MemDesc

__all__ = ["Attr", "Binary", "Depthwise", "Eltwise", "PostOp", "Prelu", "Sum"]


@dataclass(frozen=True)
class Eltwise:
    """``dst = f(dst)``; ``kind`` is a key of ``api.ELTWISE``."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Binary:
    """``dst = dst <kind> operand``; the operand broadcasts along its dims of size one."""

    kind: str
    operand: MemDesc


@dataclass(frozen=True)
class Sum:
    """``dst = result + scale * (what dst held - zero_point)``; ``dtype`` reads dst as another type of its size."""

    scale: float = 1.0
    zero_point: int = 0
    dtype: str | None = None


@dataclass(frozen=True)
class Prelu:
    """Leaky ReLU with a tensor of slopes; bit ``i`` of ``mask`` says they vary along dim ``i``."""

    mask: int


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution fused behind a 1x1 one."""

    kernel: int
    stride: int
    pad: int
    weights: str = "f32"
    bias: str | None = "f32"
    dst: str = "f32"


PostOp = Eltwise | Binary | Sum | Prelu | Depthwise


@dataclass(frozen=True)
class Attr:
    """What a primitive does besides its own work; methods return a new value with one more thing.

    Example:
        >>> Attr().relu().eltwise("linear", 2.0, 1.0).post_ops[0]
        Eltwise(kind='relu', alpha=0.0, beta=0.0)
    """

    post_ops: tuple[PostOp, ...] = ()
    scale_masks: tuple[tuple[str, int], ...] = ()
    zero_point_masks: tuple[tuple[str, int], ...] = ()
    user_scratchpad: bool = True
    fpmath: str = "strict"

    def append(self, post_op: PostOp) -> Attr:
        """One more post-op."""
        return dataclasses.replace(self, post_ops=(*self.post_ops, post_op))

    def eltwise(self, kind: str, alpha: float = 0.0, beta: float = 0.0) -> Attr:
        """Any function in ``api.ELTWISE``."""
        if kind not in api.ELTWISE:
            raise ValueError(f"no eltwise {kind!r}; there are {', '.join(api.ELTWISE)}")
        return self.append(Eltwise(kind, float(alpha), float(beta)))

    def relu(self) -> Attr:
        """``max(x, 0)``."""
        return self.eltwise("relu")

    def leaky(self, slope: float) -> Attr:
        """``x`` where positive, else ``slope * x``."""
        return self.eltwise("relu", slope)

    def elu(self, alpha: float = 1.0) -> Attr:
        """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
        return self.eltwise("elu", alpha)

    def clip(self, low: float, high: float) -> Attr:
        """``min(max(x, low), high)``."""
        return self.eltwise("clip_v2", low, high)

    def gelu_erf(self) -> Attr:
        """GELU through erf."""
        return self.eltwise("gelu_erf")

    def gelu_tanh(self) -> Attr:
        """GELU through tanh."""
        return self.eltwise("gelu_tanh")

    def swish(self, alpha: float = 1.0) -> Attr:
        """``x * logistic(alpha * x)``; SiLU at one."""
        return self.eltwise("swish", alpha)

    def hardswish(self, alpha: float = 1 / 6, beta: float = 0.5) -> Attr:
        """``x * clip(alpha * x + beta, 0, 1)``."""
        return self.eltwise("hardswish", alpha, beta)

    def hardsigmoid(self, alpha: float = 0.2, beta: float = 0.5) -> Attr:
        """``clip(alpha * x + beta, 0, 1)``."""
        return self.eltwise("hardsigmoid", alpha, beta)

    def logistic(self) -> Attr:
        """The sigmoid."""
        return self.eltwise("logistic")

    def tanh(self) -> Attr:
        """The hyperbolic tangent."""
        return self.eltwise("tanh")

    def linear(self, scale: float, shift: float = 0.0) -> Attr:
        """``scale * x + shift``."""
        return self.eltwise("linear", scale, shift)

    def binary(self, kind: str, operand: MemDesc) -> Attr:
        """An operation with a second tensor, named ``binary_0``, ``binary_1``... among the arguments."""
        if kind not in api.BINARY:
            raise ValueError(f"no binary {kind!r}; there are {', '.join(api.BINARY)}")
        return self.append(Binary(kind, operand))

    def sum(self, scale: float = 1.0, zero_point: int = 0, dtype: str | None = None) -> Attr:
        """Add to what dst already holds."""
        return self.append(Sum(float(scale), zero_point, dtype))

    def prelu(self, mask: int = 2) -> Attr:
        """Leaky ReLU with slopes in a tensor, named ``prelu_0``... among the arguments."""
        return self.append(Prelu(mask))

    def scales(self, arg: str, mask: int = 0) -> Attr:
        """Quantisation scales of ``src``, ``weights`` or ``dst``, given at execution as ``scales_<arg>`` (f32).

        Bit ``i`` of ``mask`` says they vary along dim ``i``. Sources are multiplied, dst is divided.
        """
        return dataclasses.replace(self, scale_masks=(*self.scale_masks, (arg, mask)))

    def zero_points(self, arg: str, mask: int = 0) -> Attr:
        """Zero points of ``src``, ``weights`` or ``dst``, given at execution as ``zero_points_<arg>`` (s32)."""
        return dataclasses.replace(self, zero_point_masks=(*self.zero_point_masks, (arg, mask)))

    def extra_args(self) -> dict[str, int]:
        """Names and ids of the arguments that these attributes add to a primitive."""
        found: dict[str, int] = dict(self._post_op_args())
        found |= {f"scales_{arg}": api.ARG_SCALES | api.ARGS[arg] for arg, _ in self.scale_masks}
        found |= {f"zero_points_{arg}": api.ARG_ZERO_POINTS | api.ARGS[arg] for arg, _ in self.zero_point_masks}
        return found

    def _post_op_args(self) -> Iterator[tuple[str, int]]:
        binaries = prelus = 0
        for index, post_op in enumerate(self.post_ops):
            match post_op:
                case Binary():
                    yield f"binary_{binaries}", api.arg_post_op(index) | api.ARGS["src_1"]
                    binaries += 1
                case Prelu():
                    yield f"prelu_{prelus}", api.arg_post_op(index) | api.ARGS["weights"]
                    prelus += 1
                case Depthwise():
                    yield "dw_weights", api.ARG_POST_OP_DW | api.ARGS["weights"]
                    if post_op.bias is not None:
                        yield "dw_bias", api.ARG_POST_OP_DW | api.ARGS["bias"]
                case Eltwise() | Sum():
                    pass
                case _:
                    assert_never(post_op)

    @contextlib.contextmanager
    def native(self) -> Iterator[int]:
        """The ``dnnl_primitive_attr_t`` for the length of a ``with`` block."""
        lib, out = api.lib(), ctypes.c_void_p()
        lib.dnnl_primitive_attr_create(ctypes.byref(out))
        handle = out.value or 0
        try:
            self._fill(handle)
            yield handle
        finally:
            lib.dnnl_primitive_attr_destroy(handle)

    def _fill(self, handle: int) -> None:
        lib = api.lib()
        if self.user_scratchpad:
            lib.dnnl_primitive_attr_set_scratchpad_mode(handle, api.SCRATCHPAD_USER)
        if self.fpmath != "strict":
            lib.dnnl_primitive_attr_set_fpmath_mode(handle, api.FPMATH[self.fpmath])
        for arg, mask in self.scale_masks:
            lib.dnnl_primitive_attr_set_scales_mask(handle, api.ARGS[arg], mask)
        for arg, mask in self.zero_point_masks:
            lib.dnnl_primitive_attr_set_zero_points_mask(handle, api.ARGS[arg], mask)
        if self.post_ops:
            self._fill_post_ops(handle)

    def _fill_post_ops(self, handle: int) -> None:
        lib, out = api.lib(), ctypes.c_void_p()
        lib.dnnl_post_ops_create(ctypes.byref(out))
        try:
            for post_op in self.post_ops:
                _append(out.value or 0, post_op)
            lib.dnnl_primitive_attr_set_post_ops(handle, out)  # copies
        finally:
            lib.dnnl_post_ops_destroy(out)


def _append(handle: int, post_op: PostOp) -> None:
    lib = api.lib()
    match post_op:
        case Eltwise(kind, alpha, beta):
            lib.dnnl_post_ops_append_eltwise(handle, api.ELTWISE[kind], alpha, beta)
        case Binary(kind, operand):
            lib.dnnl_post_ops_append_binary(handle, api.BINARY[kind], operand.handle)
        case Sum(scale, zero_point, dtype):
            lib.dnnl_post_ops_append_sum(handle, scale, zero_point, 0 if dtype is None else api.DATA_TYPES[dtype])
        case Prelu(mask):
            lib.dnnl_post_ops_append_prelu(handle, mask)
        case Depthwise(kernel, stride, pad, weights, bias, dst):
            types = (api.DATA_TYPES[weights], 0 if bias is None else api.DATA_TYPES[bias], api.DATA_TYPES[dst])
            lib.dnnl_post_ops_append_dw(handle, *types, kernel, stride, pad)
        case _:
            assert_never(post_op)
