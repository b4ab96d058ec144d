"""Products of 8-bit integers as float32 products, where those are exact.

float32 holds every integer up to 2**24. A product whose sums cannot leave that range, in whatever order they are added,
is exact in float32, and there it runs at full speed on every machine. Products of bytes with constant weights have
kernels of integers (`lower/integer_products`) and stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Node
from pyflame_rt.ops.onnx.arithmetic import Sub
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv, ConvInteger
from pyflame_rt.ops.onnx.matmul import MatMul, MatMulInteger
from pyflame_rt.ops.onnx.shape import Flatten
from pyflame_rt.opt.rule import NoMatch, specialized_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.opt.specialize import Specializer

__all__ = ["INTEGER_PRODUCTS", "dequantized", "exact_float_product", "is_depthwise", "is_kernel_group"]

EXACT = 2**24
INTEGER_PRODUCTS = (ConvInteger.name, MatMulInteger.name)
# An 8-bit number minus a zero point of its type.
SPAN = 255


def is_kernel_group(node: Node, shape: Sequence[int]) -> bool:
    """Whether kernels of integers take the groups of a convolution: one, large ones, or each channel on its own."""
    groups = node.attributes.get("group", 1)
    if len(shape) != 4 or not isinstance(groups, int):
        return False
    return groups == 1 or shape[1] >= 8 or is_depthwise(groups, shape, node.attributes.get("dilations"))


def is_depthwise(groups: int, shape: Sequence[int], dilations: Any) -> bool:
    """Whether every channel has a filter of its own, small enough and without gaps."""
    plain = dilations is None or all(d == 1 for d in dilations)
    return groups > 1 and shape[1] == 1 and shape[0] == groups and plain and max(shape[2:]) <= 7


@specialized_rule("node", *INTEGER_PRODUCTS)
def exact_float_product(s: Specializer, node: Node) -> list[Node] | NoMatch:
    """A product of bytes as one of float32, where no sum can leave the integers that float32 holds."""
    constants, types, fresh = s.out.constants, s.out.types, s.fresh
    data, factor, zero, shift = (*node.inputs, "", "")[:4]
    if any(types[n][0] not in (DType.Int8, DType.UInt8) for n in (data, factor)):
        return NoMatch("the operands are not bytes")
    is_conv = node.op_type == ConvInteger.name
    if factor in constants and (not shift or shift in constants):
        wide = _centred(constants[factor], constants.get(shift), rows=is_conv)
        axes = tuple(range(1, wide.ndim)) if is_conv else (-2,)
        if wide.ndim < 2 or not wide.size or np.abs(wide).sum(axis=axes, dtype=np.float64).max() * SPAN > EXACT:
            return NoMatch("sums with these weights may leave what float32 holds")
        nodes, right = [], fresh(factor)
        s.constant(right, wide)
    else:
        shape = types[factor][1]
        depth = int(np.prod(shape[1:] if is_conv else shape[-2:-1] or shape))
        if depth * SPAN * SPAN > EXACT or (shift and types[shift][1] not in ((), (1,))):
            return NoMatch("sums of so many products may leave what float32 holds, or zero points differ")
        nodes, right = _shifted(node, factor, shift, fresh)
    sizes = types[zero][1] if zero else ()
    column = len(sizes) == 1 and sizes != (1,)
    before, left = _shifted(node, data, zero, fresh, column=column and not is_conv)
    product = fresh(node.name)
    attributes = dict(node.attributes)
    nodes += before
    nodes.append(Node(fresh(node.name), Conv.name if is_conv else MatMul.name, [left, right], [product], attributes))
    nodes.append(Node(fresh(node.name), Cast.name, [product], [node.outputs[0]], {"to": DType.Int32.onnx}))
    s.out.exact.add(product)
    return nodes


def dequantized(
    arrays: Sequence[np.ndarray[Any, Any] | None], attributes: Mapping[str, Any]
) -> np.ndarray[Any, Any] | None:
    """8-bit weights as a DequantizeLinear gives them, made in one piece of memory; None of forms other than usual.

    Example:
        >>> dequantized([np.int8([[2, 3]]), np.float32([0.5]), np.int8([1])], {"axis": 1}).tolist()
        [[0.5, 1.0]]
    """
    x, scale, zero = (*arrays, None)[:3]
    if x is None or scale is None or x.dtype not in (np.int8, np.uint8) or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    if zero is not None and (zero.dtype != x.dtype or zero.shape != scale.shape):
        return None
    if attributes.get("block_size") or attributes.get("output_dtype") not in (None, 0, DType.Float32.onnx):
        return None
    form: list[int] = []
    if scale.size != 1:
        axis = attributes["axis"]
        if not -x.ndim <= axis < x.ndim or scale.size != x.shape[axis]:
            return None
        form = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    result = x.astype(np.float32, order="C")  # exact, as is the difference
    if zero is not None and zero.any():
        result -= zero.astype(np.float32).reshape(form)
    result *= scale.reshape(form)
    return result


def _centred(array: np.ndarray[Any, Any], zero: np.ndarray[Any, Any] | None, *, rows: bool) -> np.ndarray[Any, Any]:
    wide = array.astype(np.float32)
    if zero is None:
        return wide
    shift = zero.astype(np.float32)
    if rows and shift.ndim == 1:
        shift = shift.reshape(-1, *(1,) * (array.ndim - 1))
    return np.subtract(wide, shift, out=wide)


def _shifted(
    node: Node, name: str, zero: str, fresh: Callable[[str], str], *, column: bool = False
) -> tuple[list[Node], str]:
    """A tensor minus its zero point, as float32."""
    to = {"to": DType.Float32.onnx}
    wide = fresh(name)
    nodes = [Node(fresh(node.name), Cast.name, [name], [wide], to)]
    if not zero:
        return nodes, wide
    point, result = fresh(zero), fresh(name)
    nodes.append(Node(fresh(node.name), Cast.name, [zero], [point], to))
    if column:
        turned = fresh(zero)
        nodes.append(Node(fresh(node.name), Flatten.name, [point], [turned], {"axis": 1}))
        point = turned
    nodes.append(Node(fresh(node.name), Sub.name, [wide, point], [result]))
    return nodes, result
