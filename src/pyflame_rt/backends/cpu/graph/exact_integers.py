"""Products of 8-bit integers as float32 products, where those are exact.

float32 holds every integer up to 2**24. A product whose sums cannot leave that range, in whatever order they are added,
is exact in float32, and there it runs at full speed on every machine. Products of bytes with constant weights have
kernels of integers (`lower/integer_products`) and stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Arrays = Mapping[str, np.ndarray[Any, Any]]
    Types = Mapping[str, tuple[DType, tuple[int, ...]]]

__all__ = [
    "BLOCK_PRODUCT",
    "INTEGER_PRODUCTS",
    "FloatForm",
    "dequantized",
    "float_form",
    "is_block_product",
    "is_depthwise",
    "is_integer_product",
    "is_kernel_group",
]

EXACT = 2**24
# Operators that kernels take whole.
BLOCK_PRODUCT = "com.microsoft::MatMulNBits"
FEW_ROWS = 6  # rows for which weights are unpacked while they are multiplied
INTEGER_PRODUCTS = ("ConvInteger", "MatMulInteger")
# An 8-bit number minus a zero point of its type.
SPAN = 255


class FloatForm(NamedTuple):
    """Nodes that stand for an integer product.

    Attributes:
        nodes: in order; the last makes the int32 output.
        weights: name and contents of the constant factor, or None.
        exact: the float32 value that equals the output.
    """

    nodes: list[Node]
    weights: tuple[str, np.ndarray[Any, Any]] | None
    exact: str


def is_integer_product(node: Node, constants: Arrays, types: Types) -> bool:
    """Whether a MatMulInteger or ConvInteger is one that kernels of integers take: bytes times constant weights."""
    data, factor, zero, shift = (*node.inputs, "", "")[:4]
    if factor not in constants or (shift and shift not in constants):
        return False
    if any(types[n][0] not in (DType.Int8, DType.UInt8) for n in (data, factor)):
        return False
    if zero and int(np.prod(types[zero][1])) != 1:
        return False
    shape, rank = constants[factor].shape, len(types[data][1])
    if node.op_type == "MatMulInteger":
        return len(shape) == 2 and rank >= 2
    return is_kernel_group(node, shape)


def is_block_product(node: Node, constants: Arrays, types: Types, attributes: Mapping[str, Any]) -> bool:
    """Whether a MatMulNBits is one that kernels take: a few rows of float32, constant weights in whole blocks."""
    data, weights, scales, zeros, order, bias = (*node.inputs, "", "", "", "")[:6]
    if order or weights not in constants or scales not in constants or (zeros and zeros not in constants):
        return False
    if any(types[n][0] is not DType.Float32 for n in (data, scales, bias) if n):
        return False
    depth, columns, block, bits = (attributes[name] for name in ("K", "N", "block_size", "bits"))
    if bits not in (4, 8) or attributes["weight_prepacked"] or block < 16 or depth % block:
        return False
    blocks, sizes = depth // block, types[data][1]
    points = constants[zeros] if zeros else None
    if points is not None:
        packed = points.dtype == np.uint8
        if points.size != columns * (-(-blocks * bits // 8) if packed else blocks):
            return False
    held = constants[weights].nbytes == columns * depth * bits // 8 and constants[scales].size == columns * blocks
    few = len(sizes) > 0 and sizes[-1] == depth and all(isinstance(n, int) for n in sizes)
    return held and few and 1 <= int(np.prod(sizes[:-1])) <= FEW_ROWS


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


def float_form(node: Node, constants: Arrays, types: Types, fresh: Callable[[str], str]) -> FloatForm | None:
    """The float32 form of a MatMulInteger or ConvInteger; None where it would not surely be exact."""
    data, factor, zero, shift = (*node.inputs, "", "")[:4]
    if any(types[n][0] not in (DType.Int8, DType.UInt8) for n in (data, factor)):
        return None
    is_conv = node.op_type == "ConvInteger"
    if factor in constants and (not shift or shift in constants):
        wide = _centred(constants[factor], constants.get(shift), rows=is_conv)
        axes = tuple(range(1, wide.ndim)) if is_conv else (-2,)
        if wide.ndim < 2 or not wide.size or np.abs(wide).sum(axis=axes, dtype=np.float64).max() * SPAN > EXACT:
            return None
        weights = (fresh(factor), wide)
        nodes, right = [], weights[0]
    else:
        shape = types[factor][1]
        depth = int(np.prod(shape[1:] if is_conv else shape[-2:-1] or shape))
        if depth * SPAN * SPAN > EXACT or (shift and types[shift][1] not in ((), (1,))):
            return None
        weights = None
        nodes, right = _shifted(node, factor, shift, fresh)
    sizes = types[zero][1] if zero else ()
    column = len(sizes) == 1 and sizes != (1,)
    before, left = _shifted(node, data, zero, fresh, column=column and not is_conv)
    product = fresh(node.name)
    attributes = dict(node.attributes)
    nodes += before
    nodes.append(Node(fresh(node.name), "Conv" if is_conv else "MatMul", [left, right], [product], attributes))
    to_int = {"to": DType.Int32.onnx}
    nodes.append(Node(fresh(node.name), "Cast", [product], [node.outputs[0]], to_int))
    return FloatForm(nodes, weights, product)


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
    nodes = [Node(fresh(node.name), "Cast", [name], [wide], to)]
    if not zero:
        return nodes, wide
    point, result = fresh(zero), fresh(name)
    nodes.append(Node(fresh(node.name), "Cast", [zero], [point], to))
    if column:
        turned = fresh(zero)
        nodes.append(Node(fresh(node.name), "Flatten", [point], [turned], {"axis": 1}))
        point = turned
    nodes.append(Node(fresh(node.name), "Sub", [wide, point], [result]))
    return nodes, result
