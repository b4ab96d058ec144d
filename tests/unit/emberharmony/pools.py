"""Edge values of every dtype in every structure, in a form that any library can be given."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from emberharmony.dtypes import COMPLEX, FLOAT, INTEGER, as_dtype, kind

__all__ = ["DTYPES", "FLOATS", "LAYOUTS", "OUTSIDE", "A", "Call", "edges", "grid", "mild", "quiet", "shaped"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *SIGNED, *UNSIGNED, *FLOATS, "complex64")
LAYOUTS = ("transposed", "strided", "offset", "reversed", "foreign")
OUTSIDE = (300, -1, -129, 2**31, 2**32 + 1, 2**63, -(2**63) - 1, 0.5, -2.5, float("nan"), float("inf"), 1e300, True)


@dataclass(frozen=True)
class A:
    """An array: its values, and how the library lays them out."""

    values: np.ndarray
    layout: str = "plain"

    def made(self, lib: Any) -> Any:
        """The array of one library."""
        x = lib.from_numpy(self.values)
        if self.layout == "transposed":
            return lib.transpose(lib.copy(lib.transpose(x)))
        if self.layout == "strided":
            wide = lib.from_numpy(np.repeat(self.values, 2, axis=-1))
            return wide[..., ::2]
        if self.layout == "reversed":
            return lib.flip(lib.from_numpy(self.values[::-1].copy()), 0)
        if self.layout == "foreign":
            return lib.from_numpy(foreign(self.values))
        if self.layout == "offset":
            return lib.concatenate([x[:1], x], 0)[1:]
        return x

    def __repr__(self) -> str:
        return f"A({self.values.tolist()}, {self.values.dtype}, {self.layout})"


def foreign(values: np.ndarray) -> np.ndarray:
    """The values as other programs may hand them over: backwards in memory, not to be written, bytes swapped."""
    order = values.dtype.newbyteorder(">") if values.dtype.kind in "iufc" and values.dtype.itemsize > 1 else None
    made = np.flip(np.flip(values).astype(values.dtype if order is None else order))
    made.flags.writeable = False
    return made


@dataclass(frozen=True)
class Call:
    """One call: the operation and what it is given."""

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        words = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.options.items()]
        return f"{self.op}({', '.join(words)})"


@functools.cache
def edges(dtype: str) -> np.ndarray:
    """The extremes of a dtype, and some values between."""
    wanted = as_dtype(dtype)
    if dtype == "bool":
        return np.array([True, False, True, True])
    if kind(wanted) == COMPLEX:
        return np.array([0, 1 + 2j, -1.5 - 0.5j, 3j, -2, 0.25j], wanted)
    if kind(wanted) == INTEGER:
        low, high = int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)
        some = [0, 1, 2, 3, 7, high, high - 1, low, low + 1, high // 2]
        return np.array(some + ([-1, -2, -7] if low < 0 else []), wanted)
    info = ml_dtypes.finfo(wanted)
    some = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 0.1, 7.0, np.inf, -np.inf, np.nan, float(info.max), -float(info.max)]
    return np.array([*some, float(info.tiny)], np.float64).astype(wanted)


@functools.cache
def mild(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Ordinary values, all different."""
    wanted = as_dtype(dtype)
    count = int(np.prod(shape))
    values = np.random.default_rng(seed).permutation(count) - count // 3
    if dtype == "bool":
        return (values % 2 == 0).reshape(shape)
    if dtype.startswith("uint"):
        values = np.abs(values)
    elif kind(wanted) == FLOAT:
        values = values / 4 + 0.125
    elif kind(wanted) == COMPLEX:
        values = values / 4 + 1j * (values % 3)
    return values.reshape(shape).astype(wanted)


@functools.cache
def grid(dtype: str) -> np.ndarray:
    """Edge values in two axes, without those that make sums NaN at once."""
    values = edges(dtype)
    return np.resize(values, (3, 4))


def shaped(dtype: str) -> Iterator[A]:
    """One dtype in every structure."""
    values = edges(dtype)
    yield A(values)
    yield A(values[:1].reshape(()))
    yield A(values[-1:].reshape(()))
    yield A(values[:0])
    yield A(np.zeros((0, 3), values.dtype))
    yield A(np.zeros((3, 0), values.dtype))
    yield A(grid(dtype))
    yield A(grid(dtype), "transposed")
    yield A(grid(dtype), "strided")
    yield A(grid(dtype), "offset")


def quiet(dtype: str) -> Iterator[A]:
    """One dtype in every structure, with ordinary values."""
    yield A(mild(dtype, (2, 3, 4)))
    yield A(mild(dtype, (3, 4)), "transposed")
    yield A(mild(dtype, (3, 4)), "strided")
    yield A(mild(dtype, (5,)))
    yield A(mild(dtype, ()))
    yield A(np.zeros((0, 3), as_dtype(dtype)))
