"""Random numbers from a counter-based generator: equal seeds give equal bits everywhere.

The bits are those of Threefry-2x32 with 20 rounds (Salmon et al., 2011), which needs only
additions, rotations and exclusive-ors of 32-bit words.
"""

from __future__ import annotations

import math
import secrets
import struct
from typing import Any

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.ops.core.guards import has_rank
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.math import Cos, Log, Sqrt
from pyflame_rt.ops.onnx.reduce import CumSum, ReduceSum
from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
from pyflame_rt.ops.onnx.shape import Unsqueeze
from pyflame_rt.ops.onnx.slicing import Slice

__all__ = ["manual_seed"]

# ---------------------------------------------------------------------- keys

_lock = new_lock()
_state: tuple[int, int] | None = None  # (seed, draws so far) after manual_seed


def manual_seed(seed: int | None) -> None:
    """Make draws without a seed of their own repeatable; None makes them fresh again."""
    global _state
    with _lock:
        _state = None if seed is None else (seed & 0xFFFFFFFF, 0)


def _fresh_key() -> tuple[int, int]:
    global _state
    with _lock:
        if _state is None:
            return secrets.randbits(32), secrets.randbits(32)
        seed, count = _state
        _state = (seed, count + 1)
        # Far from the keys of seed attributes, whose second word is a small stream number.
        return seed, (0x80000000 + count) & 0xFFFFFFFF


def _seed_key(seed: float, stream: int) -> tuple[int, int]:
    return struct.unpack("<I", struct.pack("<f", seed))[0], stream


# ---------------------------------------------------------------------- the generator

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF


def threefry(ops: Any, key: tuple[int, int], low: Any, high: int = 0) -> tuple[Any, Any]:
    """Two random words for each counter; words are int64 arrays that hold 32 bits."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    x0 = ops.bitwise_and(ops.add(low, keys[0]), _MASK)
    x1 = ops.full_like(low, (high + keys[1]) & _MASK)
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x0 = ops.bitwise_and(ops.add(x0, x1), _MASK)
            turned = ops.bitwise_or(ops.left_shift(x1, rotation), ops.right_shift(x1, 32 - rotation))
            x1 = ops.bitwise_xor(ops.bitwise_and(turned, _MASK), x0)
        x0 = ops.bitwise_and(ops.add(x0, keys[(block + 1) % 3]), _MASK)
        x1 = ops.bitwise_and(ops.add(x1, (keys[(block + 2) % 3] + block + 1) & _MASK), _MASK)
    return x0, x1


def _bits_type(shape: Value, /, **_: Any) -> TensorType:
    if shape.known is not None:
        return TensorType(DType.Int32, Shape(shape.ints()))
    rank = shape.tensor_type.shape[0] if shape.tensor_type.shape is not None else None
    return TensorType(DType.Int32, Shape([None] * rank) if isinstance(rank, int) else None)


def _bits_needs(shape: Value, /, **_: Any) -> None:
    has_rank("shape", shape, 1)


@primitive(since=1, domain="pyflame", infer=_bits_type, requires=_bits_needs, random=True)
def RandomBits(ops: Any, shape: Any, /, *, bits: int = 31, seed: float | None = None, stream: int = 0) -> Any:
    """Random integers from 0 to ``2**bits - 1``; equal seeds and streams give equal ones.

    ``bits`` is at most 31, so that the result is an int32 on every library.
    """
    if not 1 <= bits <= 31:
        raise InputError(f"RandomBits makes 1 to 31 bits, {bits} were asked for")
    sizes = [int(d) for d in ops.to_numpy(shape)]
    count = math.prod(sizes)
    key = _fresh_key() if seed is None else _seed_key(seed, stream)
    half = (count + 1) // 2
    first, second = threefry(ops, key, ops.arange(half, dtype=DType.Int64.numpy))
    words = ops.concatenate([first, second], 0)[:count]
    return ops.reshape(ops.cast(ops.right_shift(words, 32 - bits), DType.Int32.numpy), sizes)


# ---------------------------------------------------------------------- distributions


# What a small type holds exactly: more bits would round some numbers up to 1.
_PRECISION = {DType.Float16: 11, DType.BFloat16: 8}


def _uniform(shape: Value, dtype: DType, seed: float | None, stream: int = 0, bits: int = 24) -> Value:
    """Numbers from 0 up to but without 1: float64 ones, or float32 ones of so many bits."""
    if dtype is not DType.Float64:
        return Cast(RandomBits(shape, bits=bits, seed=seed, stream=stream), to=DType.Float32) * 2.0**-bits
    high = Cast(RandomBits(shape, bits=26, seed=seed, stream=stream), to=dtype)
    low = Cast(RandomBits(shape, bits=27, seed=seed, stream=stream + 2), to=dtype)
    return (high * 2.0**27 + low) * 2.0**-53


def _between(shape: Value, dtype: DType, low: float, high: float, seed: float | None) -> Value:
    drawn = _uniform(shape, dtype, seed, bits=_PRECISION.get(dtype, 24))
    return Cast(drawn * (high - low) + low, to=dtype)


def _normal(shape: Value, dtype: DType, seed: float | None) -> Value:
    """Standard normal numbers by the transform of Box and Muller."""
    radius = Sqrt(Log(1.0 - _uniform(shape, dtype, seed)) * -2.0)
    return radius * Cos(_uniform(shape, dtype, seed, stream=1) * (2 * math.pi))


@operator(since=22, random=True)
def RandomUniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: list[int]
) -> Value:
    """Numbers between two bounds."""
    target = DType.from_onnx(dtype)
    return _between(constant(shape, DType.Int64), target, low, high, seed)


@operator(since=22, random=True)
def RandomUniformLike(
    input: Value, /, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Value:
    """Numbers between two bounds, in the shape of the input."""
    target = input.dtype if dtype is None else DType.from_onnx(dtype)
    return _between(ShapeOf(input), target, low, high, seed)


@operator(since=22, random=True)
def RandomNormal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: list[int]
) -> Value:
    """Normally distributed numbers."""
    target = DType.from_onnx(dtype)
    return Cast(_normal(constant(shape, DType.Int64), target, seed) * scale + mean, to=target)


@operator(since=22, random=True)
def RandomNormalLike(
    input: Value, /, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Value:
    """Normally distributed numbers, in the shape of the input."""
    target = input.dtype if dtype is None else DType.from_onnx(dtype)
    return Cast(_normal(ShapeOf(input), target, seed) * scale + mean, to=target)


@operator(since=22, random=True)
def Bernoulli(input: Value, /, *, dtype: int | None = None, seed: float | None = None) -> Value:
    """1 with the probability the input names, else 0."""
    drawn = _uniform(ShapeOf(input), input.dtype, seed)
    hit = drawn < Cast(input, to=drawn.dtype)
    return Cast(hit, to=input.dtype if dtype is None else DType.from_onnx(dtype))


@operator(since=22, random=True)
def Multinomial(input: Value, /, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    """Class numbers drawn by their unnormalized log-probabilities, ``sample_size`` for each row."""
    exact = DType.Float64 if input.dtype is DType.Float64 else DType.Float32
    chances = CumSum(Softmax(Cast(input, to=exact), axis=1), constant(1))
    # The last bound is left out: it is 1 up to rounding, and every draw is below it.
    bounds = Slice(chances, [0], [-1], [1])
    drawn = _uniform(constant([input.shape[0], sample_size]), exact, seed)
    passed = Unsqueeze(drawn, [2]) >= Unsqueeze(bounds, [1])
    target = DType.from_onnx(dtype)
    return ReduceSum(Cast(passed, to=target), [2], keepdims=0)
