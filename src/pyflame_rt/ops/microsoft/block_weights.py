"""Operators of the ``com.microsoft`` domain on weights packed in blocks, and the quantized LSTM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DimLike, DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UnsupportedOperatorError
from pyflame_rt.ops.core.guards import Within, has_rank, has_shape, size_at
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.type_rules import normalize_axis
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.fused import MICROSOFT
from pyflame_rt.ops.onnx.arithmetic import Abs, Mul
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import BitShift, BitwiseAnd, Where
from pyflame_rt.ops.onnx.math import Round
from pyflame_rt.ops.onnx.matmul import MatMul, MatMulInteger
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, DynamicQuantizeLinear
from pyflame_rt.ops.onnx.reduce import ReduceMax
from pyflame_rt.ops.onnx.rnn import RecurrentForm, is_plain, lstm_functions, lstm_layer, recurrent_needs
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Pad, Slice
from pyflame_rt.ops.pyflame.recurrence import backwards_of, lstm_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

# ------------------------------------------------------------------ few bits a weight


def unpacked(x: Value, bits: int) -> Value:
    """The numbers of ``bits`` bits in the bytes of the last axis, lowest bits first."""
    if bits == 8:
        return x
    per = 8 // bits
    shifts = constant([i * bits for i in range(per)], DType.UInt8)
    parts = BitwiseAnd(BitShift(Unsqueeze(x, [x.rank]), shifts, direction="RIGHT"), constant(2**bits - 1, DType.UInt8))
    return Reshape(parts, [*[0] * (x.rank - 1), -1])


MOST = 127.0  # of the steps of a block's numbers
LEAST_LARGEST = 2.0**-118  # a block whose numbers are all below counts as zero: 127 divided by it is finite
MOST_EXACT = 256  # numbers of a block whose products with weights float32 adds up exactly
BYTES = 4  # the accuracy level that asks for rows of bytes


@operator(since=1, domain="pyflame", vjp=lambda g, y, x, **_: (g,))
def BlockRounded(X: Value, /, *, block_size: int) -> Value:
    """Numbers as blocks of the last axis hold them in whole steps from -127 to 127 of their largest magnitude.

    A block with a number that is not finite has none that is. Gradients pass as if nothing were rounded.
    """
    size = X.shape[-1]
    if not isinstance(size, int) or block_size < 1:
        raise ShapeMismatchError(f"blocks of {block_size} need a known last axis, got shape {X.shape}")
    blocks = -(-size // block_size)
    rest = blocks * block_size - size
    whole = Pad(X, [*[0] * (2 * X.rank - 1), rest]) if rest else X
    x = Reshape(whole, [*[0] * (X.rank - 1), blocks, block_size])
    largest = ReduceMax(Abs(x), [-1])
    some = largest >= LEAST_LARGEST
    steps = Round(x * Where(some, MOST / largest, constant(0.0, X.dtype)))
    near = Reshape(steps * Where(some, largest / MOST, constant(0.0, X.dtype)), [*[0] * (X.rank - 1), -1])
    return Slice(near, [0], [size], [-1]) if rest else near


def rounds_rows(A: DType, scales: DType, bits: int, block_size: int, accuracy_level: int, *, ordered: bool) -> bool:
    """Whether a MatMulNBits multiplies rows in whole steps: the file allows it, and their sums are exact."""
    exact = bits in (4, 8) and block_size <= MOST_EXACT and not ordered
    return accuracy_level == BYTES and exact and A is DType.Float32 and scales is DType.Float32


@operator(since=1, domain=MICROSOFT, kind="product")
def MatMulNBits(
    A: Value,
    B: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    K: int,
    N: int,
    block_size: int,
    accuracy_level: int = 0,
    bits: int = 4,
    weight_prepacked: int = 0,
) -> Value:
    """Product with a matrix of 2-, 4- or 8-bit weights, which have a scale and a zero point per block of a column.

    With ``accuracy_level`` 4 rows of float32 are rounded to whole steps of 8 bits, by blocks as weights are: the
    products of a block then add up exactly, and only sums of blocks are rounded. This holds for weights of 4 and 8
    bits in blocks of up to 256, without ``g_idx``; at other levels, and elsewhere, rows are multiplied as they are.
    """
    if bits not in (2, 4, 8):
        raise UnsupportedOperatorError(f"weights of {bits} bits are not supported, only of 2, 4 or 8")
    if weight_prepacked:
        raise UnsupportedOperatorError("weights packed for one device are not supported")
    blocks = -(-K // block_size)
    weights = unpacked(Reshape(B, [N, -1]), bits)
    kind = scales.dtype
    zeros = _zero_points(zero_points, N, blocks, bits, kind)
    scale = Reshape(scales, [N, blocks])
    if g_idx is not None:
        # Columns say themselves which block they belong to.
        weights = Cast(Slice(weights, [0], [K], [1]), to=kind)
        scale, zeros = (Gather(x, g_idx, axis=1) if x.rank else x for x in (scale, zeros))
        dense = (weights - zeros) * scale
    else:
        by_block = Cast(Reshape(weights, [N, blocks, block_size]), to=kind)
        zeros = Unsqueeze(zeros, [2]) if zeros.rank else zeros
        dense = Slice(Reshape((by_block - zeros) * Unsqueeze(scale, [2]), [N, -1]), [0], [K], [1])
    if rounds_rows(A.dtype, kind, bits, block_size, accuracy_level, ordered=g_idx is not None):
        A = BlockRounded(A, block_size=block_size)
    y = MatMul(A, Transpose(dense, perm=[1, 0]))
    return y if bias is None else y + bias


def _zero_points(zero_points: Value | None, n: int, blocks: int, bits: int, kind: DType) -> Value:
    """As real numbers (n, blocks), or one for all: the middle of the range."""
    if zero_points is None:
        return constant(float(2 ** (bits - 1)), kind)
    if zero_points.dtype is not DType.UInt8:
        return Cast(Reshape(zero_points, [n, blocks]), to=kind)
    return Cast(Slice(unpacked(Reshape(zero_points, [n, -1]), bits), [0], [blocks], [1]), to=kind)


@operator(since=1, domain=MICROSOFT)
def GatherBlockQuantized(
    data: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    /,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Rows of a table whose numbers have a scale and a zero point per block, as real numbers."""
    at, along = normalize_axis(gather_axis, data.rank), normalize_axis(quantize_axis, data.rank)
    packed = data.dtype is DType.UInt8
    if at == along or (packed and along != data.rank - 1):
        raise InputError(f"gather_axis {gather_axis} and quantize_axis {quantize_axis} do not fit shape {data.shape}")
    if not (packed or data.dtype in (DType.Int4, DType.UInt4)):
        raise UnsupportedOperatorError(f"tables of {data.dtype.label} are not supported")
    for name, given in (("scales", scales), ("zero_points", zero_points)):
        if given is not None and given.rank != data.rank:
            raise ShapeMismatchError(
                f"{name} has shape {given.shape}, but must have as many axes as data, {data.shape}"
            )
    values, scale = Gather(data, indices, axis=at), Gather(scales, indices, axis=at)
    zeros = None if zero_points is None else Gather(zero_points, indices, axis=at)
    along += indices.rank - 1 if at < along else 0
    values = unpacked(values, bits) if packed else values
    blocks, size = scale.shape[along], values.shape[along]
    if not isinstance(blocks, int) or not isinstance(size, int):
        raise ShapeMismatchError(f"the sizes of table {data.shape} and scales {scales.shape} must be numbers")
    of_block = constant([i // block_size for i in range(size)], DType.Int64)
    real = Cast(values, to=scale.dtype)
    if zeros is not None:
        zeros = Slice(unpacked(zeros, bits), [0], [blocks], [along]) if packed else zeros
        real = real - Gather(Cast(zeros, to=scale.dtype), of_block, axis=along)
    elif packed:
        real = real - float(2 ** (bits - 1))
    return real * Gather(scale, of_block, axis=along)


# ------------------------------------------------------------------ DynamicQuantizeLSTM


def _lstm_type(X: Value, W: Value, R: Value, /, *_: Value | None, direction: str, **__: Any) -> tuple[TensorType, ...]:
    x, r = X.tensor_type.shape, R.tensor_type.shape
    steps, batch = (None, None) if x is None else (x[0], x[1])
    hidden: DimLike = None if r is None else r[1]
    count = 2 if direction == "bidirectional" else 1
    last = TensorType(X.dtype, Shape([count, batch, hidden]))
    return TensorType(X.dtype, Shape([steps, count, batch, hidden])), last, last


def _rounded_type(gates: Value, R: Value, *_: Value, direction: str) -> tuple[TensorType, ...]:
    dims, weights = gates.tensor_type.shape, R.tensor_type.shape
    steps, batch = (None, None) if dims is None else dims[:2]
    hidden: DimLike = None if weights is None else weights[1]
    count = len(backwards_of(direction))
    last = TensorType(gates.dtype, Shape([count, batch, hidden]))
    return TensorType(gates.dtype, Shape([steps, batch, None if hidden is None else count * hidden])), last, last


def _rounded_needs(
    gates: Value, R: Value, scale: Value, zero: Value, initial_h: Value, initial_c: Value, /, *, direction: str
) -> None:
    count, hidden = len(backwards_of(direction)), size_at(R, 1)
    has_rank("gates", gates, 3)
    has_rank("R", R, 3)
    steps, batch, _ = gates.shape
    wide = None if hidden is None else 4 * hidden
    has_shape("R", R, [count, hidden, wide], "directions, hidden, gates")
    has_shape("gates", gates, [steps, batch, None if wide is None else count * wide])
    for name, state in (("initial_h", initial_h), ("initial_c", initial_c)):
        has_shape(name, state, [count, batch, hidden], "directions, batch, hidden")
    _scale_needs("scale", scale, zero, count, wide)


def _scale_needs(name: str, scale: Value, zero: Value, count: int, wide: DimLike) -> None:
    """One scale for each direction, or one for each of its gates' columns; and as many zero points."""
    has_shape(name, scale, [count] if scale.rank == 1 else [count, wide], "directions, columns")
    has_shape(f"the zero points of {name}", zero, scale.shape, "those of the scales")


def _dynamic_needs(*inputs: Value | None, direction: str, **attributes: Any) -> Iterator[Within]:
    yield from recurrent_needs(4, states=2, turned=True)(*inputs[:8], direction=direction, **attributes)
    count, wide = len(backwards_of(direction)), size_at(inputs[1], 2)
    for name, scale, zero in (("W_scale", *inputs[8:10]), ("R_scale", *inputs[10:12])):
        assert scale is not None
        assert zero is not None
        _scale_needs(name, scale, zero, count, wide)


@operator(since=1, domain="pyflame", infer=_rounded_type, requires=_rounded_needs)
def RoundedLSTMSteps(
    gates: Value,
    R: Value,
    scale: Value,
    zero: Value,
    initial_h: Value,
    initial_c: Value,
    /,
    *,
    direction: str = "forward",
) -> tuple[Value, ...]:
    """Hidden states [T, N, D * H], last states and cells [D, N, H], by quantized weights R [D, H, 4H].

    Before each product the states of all sequences of a direction are quantized by their range. Gates are what inputs
    and biases add, [T, N, D * 4H], in the order input, output, forget, cell.
    """
    return lstm_steps(gates, _weights(R, scale, zero), initial_h, initial_c, direction, _rounded)[:3]


@operator(since=1, domain=MICROSOFT, infer=_lstm_type, requires=_dynamic_needs, kind="product")
def DynamicQuantizeLSTM(
    X: Value,
    W: Value,
    R: Value,
    B: Value | None,
    sequence_lens: Value | None,
    initial_h: Value | None,
    initial_c: Value | None,
    P: Value | None,
    W_scale: Value,
    W_zero_point: Value,
    R_scale: Value,
    R_zero_point: Value,
    /,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Value, ...]:
    """LSTM with quantized weights; inputs and states are quantized by their own range before each product."""
    if not (activations or clip or input_forget) and P is None and is_plain(X, sequence_lens):
        # The form reads sizes of the recurrent weights as LSTM has them.
        form = RecurrentForm((X, W, Transpose(R, perm=[0, 2, 1]), B), direction, 0)
        starts = form.states(initial_h, initial_c, like=X)
        gates, bias = _input_gates(X, W, W_scale, W_zero_point), form.whole_bias()
        gates = gates if bias is None else gates + bias
        return form.outputs(*RoundedLSTMSteps(gates, R, R_scale, R_zero_point, *starts, direction=direction))
    return lstm_layer(
        (_rounded(X), _weights(W, W_scale, W_zero_point), _weights(R, R_scale, R_zero_point), B),
        sequence_lens,
        [initial_h, initial_c],
        P,
        direction=direction,
        functions=lstm_functions(activations, activation_alpha, activation_beta, clip, direction),
        coupled=bool(input_forget),
        seen=_rounded,
    )


def _rounded(x: Value) -> Value:
    """What a tensor is after it was quantized by its own range."""
    return DequantizeLinear(*DynamicQuantizeLinear(x))


def _input_gates(x: Value, w: Value, scale: Value, zero: Value) -> Value:
    """What inputs add to the gates, directions side by side: exact sums of products of bytes."""
    numbers, step, middle = DynamicQuantizeLinear(x)
    matrix = Reshape(Transpose(w, perm=[1, 0, 2]), [w.shape[1], -1])
    scales, zeros = (Reshape(v if v.rank == 2 else _each_column(v, w), [-1]) for v in (scale, zero))
    return Cast(MatMulInteger(numbers, matrix, middle, zeros), to=x.dtype) * (step * scales)


def _each_column(value: Value, w: Value) -> Value:
    """One number for each column in place of one for each direction."""
    return Expand(Unsqueeze(value, [1]), [w.shape[0], w.shape[2]])


def _weights(w: Value, scale: Value, zero: Value) -> Value:
    """(directions, inputs, 4 * hidden) in LSTM's own order; a scale for each direction, or each column of it."""
    if scale.rank not in (1, 2):
        raise InputError(f"scales must be per direction or per column, got shape {scale.shape}")
    places = [1, 2] if scale.rank == 1 else [1]
    shifted = Cast(w, to=DType.Float32) - Cast(Unsqueeze(zero, places), to=DType.Float32)
    return Transpose(Mul(shifted, Unsqueeze(scale, places)), perm=[0, 2, 1])
