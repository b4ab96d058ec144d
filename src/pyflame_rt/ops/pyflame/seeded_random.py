"""Random numbers from a key that is an input: equal keys give equal numbers, new keys need no new program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.math import Cos, Log, Sqrt
from pyflame_rt.ops.onnx.random import threefry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.value import Value

__all__ = ["KeyedBits", "KeyedNormal", "KeyedUniform"]


def _sizes(numbers: Sequence[int]) -> list[int]:
    if any(n < 0 for n in numbers):
        raise InputError(f"sizes must not be negative, got {list(numbers)}")
    return list(numbers)


def _bits_type(shape: Value, key: Value, /, **_: Any) -> TensorType:
    length = shape.tensor_type.shape
    if length is not None and len(length) != 1:
        raise ShapeMismatchError(f"a shape must be a list of sizes, got {shape.type}")
    if shape.known is not None:
        return TensorType(DType.Int32, Shape(_sizes(shape.ints())))
    rank = None if length is None else length[0]
    return TensorType(DType.Int32, Shape([None] * rank) if isinstance(rank, int) else None)


# Words are made in pieces that stay in the cache.
_PIECE = 1 << 14


@primitive(since=1, domain="pyflame", infer=_bits_type)
def KeyedBits(ops: Any, shape: Any, key: Any, /, *, bits: int = 31, stream: int = 0) -> Any:
    """Random integers from 0 to ``2**bits - 1``, a function of the key (two words of 32 bits) and the place alone."""
    if not 1 <= bits <= 31:
        raise InputError(f"KeyedBits makes 1 to 31 bits, {bits} were asked for")
    sizes = _sizes([int(d) for d in ops.to_numpy(shape)])
    words = ops.to_numpy(key).ravel().tolist()
    if len(words) != 2:
        raise InputError(f"the key must be two words, got {len(words)}")
    half = (math.prod(sizes) + 1) // 2
    low, high = (int(w) & 0xFFFFFFFF for w in words)
    firsts, seconds = [], []
    for start in range(0, half, _PIECE) if half else [0]:
        counters = ops.arange(start, min(half, start + _PIECE), 1, dtype=DType.Int64.numpy)
        first, second = threefry(ops, (low, high), counters, stream)
        firsts.append(ops.cast(ops.right_shift(first, 32 - bits), DType.Int32.numpy))
        seconds.append(ops.cast(ops.right_shift(second, 32 - bits), DType.Int32.numpy))
    return ops.reshape(ops.concatenate([*firsts, *seconds], 0)[: math.prod(sizes)], sizes)


# What a small type holds exactly: more bits would round some numbers up to 1.
_PRECISION = {DType.Float16: 11, DType.BFloat16: 8}


def _uniform(shape: Value, key: Value, dtype: DType, stream: int, bits: int) -> Value:
    if dtype is not DType.Float64:
        return Cast(KeyedBits(shape, key, bits=bits, stream=stream), to=DType.Float32) * 2.0**-bits
    high = Cast(KeyedBits(shape, key, bits=26, stream=stream), to=dtype)
    low = Cast(KeyedBits(shape, key, bits=27, stream=stream + 2), to=dtype)
    return (high * 2.0**27 + low) * 2.0**-53


def _float_type(shape: Value, key: Value, /, *, dtype: int) -> TensorType:
    return TensorType(DType.from_onnx(dtype), _bits_type(shape, key).shape)


@operator(since=1, domain="pyflame", infer=_float_type)
def KeyedUniform(shape: Value, key: Value, /, *, dtype: int = 1) -> Value:
    """Numbers from 0 up to but without 1."""
    target = DType.from_onnx(dtype)
    return Cast(_uniform(shape, key, target, 0, _PRECISION.get(target, 24)), to=target)


@operator(since=1, domain="pyflame", infer=_float_type)
def KeyedNormal(shape: Value, key: Value, /, *, dtype: int = 1) -> Value:
    """Standard normal numbers, by the transform of Box and Muller."""
    target = DType.from_onnx(dtype)
    radius = Sqrt(Log(1.0 - _uniform(shape, key, target, 0, 24)) * -2.0)
    return Cast(radius * Cos(_uniform(shape, key, target, 1, 24) * (2 * math.pi)), to=target)
