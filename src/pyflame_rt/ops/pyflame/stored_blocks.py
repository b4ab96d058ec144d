"""Weights in blocks as files of llama.cpp keep them: scales and numbers side by side in bytes, rows of whole blocks.

Every format gives numbers, a scale for each block of them, the number that stands for zero, and, where the format has
one, a minimum that is taken from each block: ``(number - zero) * scale - minimum``. It is the same arithmetic, in the
same order, as that of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import ShapeMismatchError, UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.block_weights import BlockRounded
from pyflame_rt.ops.onnx.cast import BitCast, Cast
from pyflame_rt.ops.onnx.logic import BitShift, BitwiseAnd
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice

__all__ = ["FORMATS", "BlockFormat", "MatMulStoredBlocks", "StoredNumbers", "StoredScales", "UnpackBlocks", "format_of"]

OWN = "pyflame"
_HALF = DType.Float16
_Numbers: TypeAlias = Callable[[Value], Value]
_Scales: TypeAlias = Callable[[Value], "tuple[Value, Value | None]"]


@dataclass(frozen=True)
class BlockFormat:
    """How a format keeps weights.

    Attributes:
        size: bytes of a group of blocks.
        weights: of such a group.
        block: weights that share a scale.
        bits: of a number, as engines keep it: 4 or 8.
        zero: the number that stands for zero.
        numbers: of groups [..., size], as bytes [..., weights].
        scales: of groups, as float32 [..., weights / block], and the minimums alike, where there are any.
        half: scales are numbers of 16 bits.
    """

    size: int
    weights: int
    block: int
    bits: int
    zero: int
    numbers: _Numbers
    scales: _Scales
    half: bool = False


def format_of(name: str) -> BlockFormat:
    """The format of a name.

    Raises:
        UnsupportedOperatorError: It is not known.

    Example:
        >>> format_of("Q4_0").size
        18
    """
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedOperatorError(f"blocks of format {name!r} are not one of {', '.join(FORMATS)}")
    return found


# ---------------------------------------------------------------------- parts of groups [..., size]


def _bytes(x: Value, begin: int, end: int) -> Value:
    return Slice(x, [begin], [end], [-1])


def _half(x: Value, begin: int) -> Value:
    """The 16-bit float in two bytes, as float32 [..., 1]."""
    low, high = (Cast(_bytes(x, at, at + 1), to=DType.UInt16) for at in (begin, begin + 1))
    code = low + BitShift(high, constant(8, DType.UInt16), direction="LEFT")
    return Cast(BitCast(code, to=_HALF.onnx), to=DType.Float32)


def _fields(x: Value, rows: int, shifts: list[int], mask: int) -> Value:
    """Bits of bytes, those of a row of bytes at one shift after those at the one before: [..., rows, shifts, row]."""
    parts = Reshape(x, [*_lead(x), rows, 1, -1])
    amounts = Unsqueeze(constant(shifts, DType.UInt8), [1])
    return BitwiseAnd(BitShift(parts, amounts, direction="RIGHT"), constant(mask, DType.UInt8))


def _flat(x: Value, like: Value) -> Value:
    return Reshape(x, [*_lead(like), -1])


def _lead(x: Value) -> list[int]:
    return [0] * (x.rank - 1)


def _nibbles(begin: int, end: int, rows: int) -> _Numbers:
    """Numbers of 4 bits: of each row of bytes the low halves, then the high ones."""

    def numbers(x: Value) -> Value:
        return _flat(_fields(_bytes(x, begin, end), rows, [0, 4], 15), x)

    return numbers


def _one_scale(x: Value) -> tuple[Value, None]:
    return _half(x, 0), None


def _with_minimum(x: Value) -> tuple[Value, Value]:
    """Two floats: what is added is a minimum with another sign."""
    return _half(x, 0), -_half(x, 2)


def _six_bits(x: Value) -> tuple[Value, Value]:
    """Eight scales and eight minimums of 6 bits in 12 bytes, each times a float."""

    def bits(begin: int, shift: int, mask: int) -> Value:
        return _flat(_fields(_bytes(x, begin, begin + 4), 1, [shift], mask), x)

    sixteen = constant(16, DType.UInt8)
    scales = Concat(bits(4, 0, 63), bits(12, 0, 15) + bits(4, 6, 3) * sixteen, axis=-1)
    minimums = Concat(bits(8, 0, 63), bits(12, 4, 15) + bits(8, 6, 3) * sixteen, axis=-1)
    return Cast(scales, to=DType.Float32) * _half(x, 0), Cast(minimums, to=DType.Float32) * _half(x, 2)


def _signed_bytes(x: Value) -> Value:
    """Signed numbers with 128 added."""
    return Cast(Cast(BitCast(_bytes(x, 2, 34), to=DType.Int8.onnx), to=DType.Int16) + 128, to=DType.UInt8)


def _five_bits(x: Value) -> Value:
    high = _flat(_fields(_bytes(x, 16, 48), 1, list(range(8)), 1), x)
    return _nibbles(48, 176, 4)(x) + high * constant(16, DType.UInt8)


def _of_six_bits(x: Value) -> Value:
    high = _flat(_fields(_bytes(x, 128, 192), 2, [0, 2, 4, 6], 3), x)
    return _nibbles(0, 128, 2)(x) + high * constant(16, DType.UInt8)


def _of_sixteen(x: Value) -> tuple[Value, None]:
    signed = BitCast(_bytes(x, 192, 208), to=DType.Int8.onnx)
    return Cast(signed, to=DType.Float32) * _half(x, 208), None


FORMATS = {
    "Q4_0": BlockFormat(18, 32, 32, 4, 8, _nibbles(2, 18, 1), _one_scale, half=True),
    "Q4_1": BlockFormat(20, 32, 32, 4, 0, _nibbles(4, 20, 1), _with_minimum),
    "Q8_0": BlockFormat(34, 32, 32, 8, 128, _signed_bytes, _one_scale, half=True),
    "Q4_K": BlockFormat(144, 256, 32, 4, 0, _nibbles(16, 144, 4), _six_bits),
    "Q5_K": BlockFormat(176, 256, 32, 8, 0, _five_bits, _six_bits),
    "Q6_K": BlockFormat(210, 256, 16, 8, 32, _of_six_bits, _of_sixteen),
}


# ---------------------------------------------------------------------- operators


def _groups(blocks: Value, form: BlockFormat) -> Value:
    """Bytes [..., row] as [..., groups, size]."""
    if blocks.dtype is not DType.UInt8 or not blocks.rank:
        raise ShapeMismatchError(f"blocks must be bytes with an axis for those of a row, got {blocks.tensor_type}")
    width = blocks.shape[-1]
    if not isinstance(width, int) or width % form.size:
        raise ShapeMismatchError(f"rows of {width} bytes are not whole groups of {form.size}")
    return Reshape(blocks, [*_lead(blocks), width // form.size, form.size])


def _type_of_rows(dtype: DType, each: Callable[[BlockFormat], int]) -> Callable[..., TensorType]:
    def infer(blocks: Value, /, *, format: str) -> TensorType:
        form, shape = format_of(format), blocks.tensor_type.shape
        if shape is None or not len(shape):
            return TensorType(dtype, None)
        width = shape[-1]
        last = width // form.size * each(form) if isinstance(width, int) else None
        return TensorType(dtype, Shape([*shape[:-1], last]))

    return infer


@operator(since=1, domain=OWN, infer=_type_of_rows(DType.UInt8, lambda form: form.weights))
def StoredNumbers(blocks: Value, /, *, format: str) -> Value:
    """The numbers of rows of blocks, a byte each, without scale and zero."""
    form = format_of(format)
    return _flat(form.numbers(_groups(blocks, form)), blocks)


@operator(since=1, domain=OWN)
def StoredScales(blocks: Value, /, *, format: str) -> tuple[Value, Value]:
    """Scales and minimums [..., blocks] of rows of blocks; minimums of a format without them are zero."""
    form = format_of(format)
    scale, minimum = form.scales(_groups(blocks, form))
    scale = _flat(scale, blocks)
    return scale, scale * 0.0 if minimum is None else _flat(minimum, blocks)


@operator(since=1, domain=OWN, infer=_type_of_rows(DType.Float32, lambda form: form.weights))
def UnpackBlocks(blocks: Value, /, *, format: str) -> Value:
    """The weights of rows of blocks [..., bytes] as float32 [..., weights]."""
    form = format_of(format)
    groups = _groups(blocks, form)
    scale, minimum = form.scales(groups)

    def by_block(x: Value, size: int) -> Value:
        return Reshape(x, [*_lead(groups), -1, size])

    numbers = Cast(by_block(form.numbers(groups), form.block), to=DType.Float32)
    real = (numbers - float(form.zero) if form.zero else numbers) * by_block(scale, 1)
    return _flat(Reshape(real if minimum is None else real - by_block(minimum, 1), [*_lead(groups), -1]), blocks)


@operator(since=1, domain=OWN, kind="product")
def MatMulStoredBlocks(A: Value, blocks: Value, bias: Value | None = None, /, *, format: str) -> Value:
    """Product of rows with a matrix whose columns are rows of blocks [columns, bytes].

    Rows are rounded to whole steps of 8 bits, by blocks as weights are: see ``MatMulNBits`` at accuracy level 4.
    """
    weights = UnpackBlocks(blocks, format=format)
    y = MatMul(BlockRounded(A, block_size=format_of(format).block), Transpose(weights, perm=[1, 0]))
    return y if bias is None else y + bias
