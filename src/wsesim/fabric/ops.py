"""The DSD operations: element types, arithmetic, SIMD width.

``compute`` works on whole NumPy vectors (or a scalar for a scalar source) and returns a vector of the destination's
type. Rounding is NumPy's: one rounding per operation, so a multiply-add rounds twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPS", "OpSpec"]

H, S = np.dtype(np.float16), np.dtype(np.float32)
W, D = np.dtype(np.uint16), np.dtype(np.uint32)
I = np.dtype(np.int16)  # noqa: E741


@dataclass(frozen=True)
class OpSpec:
    """One DSD operation.

    Attributes:
        name: without the ``@``.
        dest: element type of the destination.
        sources: element type of each source.
        compute: the arithmetic.
        width: SIMD width on (WSE-2, WSE-3).
        fold: ufunc for the sequential form with one repeated destination, ``acc = fold(acc, x)``, if it is one.
        into: the arithmetic with the result stored in its first argument.
        float_sources: per source, whether a Python float may stand for a scalar.
    """

    name: str
    dest: np.dtype[Any]
    sources: tuple[np.dtype[Any], ...]
    compute: Callable[..., Any]
    width: tuple[int, int]
    fold: np.ufunc | None = None
    into: Callable[..., None] = field(init=False, repr=False, compare=False)
    float_sources: tuple[bool, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "into", _storing(self.compute))
        object.__setattr__(self, "float_sources", tuple(s.kind == "f" for s in self.sources))


def _storing(compute: Callable[..., Any]) -> Callable[..., None]:
    if isinstance(compute, np.ufunc):
        return lambda out, *values: compute(*values, out=out)
    if compute is _mac:
        return _mac_into

    def store(out: Any, *values: Any) -> None:
        out[...] = compute(*values)

    return store


def _mac_into(out: Any, a: Any, b: Any, c: Any) -> None:
    np.add(a, b * c, out=out)


def _move(x: Any) -> Any:
    return x


def _mac(a: Any, b: Any, c: Any) -> Any:
    return a + b * c


def _machs(a: Any, b: Any, c: Any) -> Any:
    return a + np.multiply(b, c, dtype=np.float32)


def _shift(fn: Callable[..., Any]) -> Callable[..., Any]:
    def apply(a: Any, b: Any) -> Any:
        count = np.asarray(b).astype(np.uint16)
        return np.where(count < 16, fn(a, np.minimum(count, 15)), fn(fn(a, np.uint16(15)), np.uint16(1)))

    return apply


def _sar(a: Any, b: Any) -> Any:
    signed = np.asarray(a).astype(np.uint16).view(np.int16)
    return np.right_shift(signed, np.minimum(np.asarray(b).astype(np.int16) & 0xFFF, 15)).astype(np.int16).view(W)


def _truncate(x: Any) -> Any:
    values = np.nan_to_num(np.trunc(np.asarray(x, np.float64)), nan=0.0, posinf=32767, neginf=-32768)
    return np.clip(values, -32768, 32767).astype(np.int16)


def _leading(x: Any) -> Any:
    values = np.atleast_1d(np.asarray(x)).astype(np.uint16)
    return np.array([16 - int(v).bit_length() for v in values], W)


def _trailing(x: Any) -> Any:
    values = np.atleast_1d(np.asarray(x)).astype(np.uint16)
    return np.array([(int(v) & -int(v)).bit_length() - 1 if v else 16 for v in values], W)


def _ones(x: Any) -> Any:
    values = np.atleast_1d(np.asarray(x)).astype(np.uint16)
    return np.array([int(v).bit_count() for v in values], W)


def _normal(kind: type[np.floating[Any]]) -> Callable[..., Any]:
    def apply(x: Any) -> Any:
        mantissa, _ = np.frexp(np.asarray(x, kind))
        return (mantissa * 2).astype(kind)

    return apply


def _scaled(kind: type[np.floating[Any]]) -> Callable[..., Any]:
    def apply(x: Any, by: Any) -> Any:
        return np.ldexp(np.asarray(x, kind), np.asarray(by).astype(np.int16).astype(np.int32)).astype(kind)

    return apply


def _maximum(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def _spec(row: tuple[Any, ...]) -> OpSpec:
    name, kinds, fn, wide, *fold = row
    return OpSpec(name, kinds[0], kinds[1:], fn, wide, fold[0] if fold else None)


# SIMD widths: the appendix table of the documentation; operations it does not list have width 1.
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("add16", (W, W, W), np.add, (4, 8), np.add),
    ("addc16", (W, W, W), np.add, (1, 8)),
    ("sub16", (W, W, W), np.subtract, (4, 8), np.subtract),
    ("and16", (W, W, W), np.bitwise_and, (4, 8), np.bitwise_and),
    ("or16", (W, W, W), np.bitwise_or, (4, 8), np.bitwise_or),
    ("xor16", (W, W, W), np.bitwise_xor, (4, 8), np.bitwise_xor),
    ("sll16", (W, W, W), _shift(np.left_shift), (1, 4)),
    ("slr16", (W, W, W), _shift(np.right_shift), (1, 4)),
    ("sar16", (W, W, W), _sar, (1, 4)),
    ("clz", (W, W), _leading, (1, 1)),
    ("ctz", (W, W), _trailing, (1, 1)),
    ("popcnt", (W, W), _ones, (1, 1)),
    ("mov16", (W, W), _move, (4, 8)),
    ("mov32", (D, D), _move, (2, 4)),
    ("fmovh", (H, H), _move, (4, 8)),
    ("fmovs", (S, S), _move, (2, 4)),
    ("fabsh", (H, H), np.abs, (4, 8)),
    ("fabss", (S, S), np.abs, (2, 4)),
    ("fnegh", (H, H), np.negative, (4, 8)),
    ("fnegs", (S, S), np.negative, (2, 4)),
    ("faddh", (H, H, H), np.add, (4, 8), np.add),
    ("fadds", (S, S, S), np.add, (2, 4), np.add),
    ("faddhs", (S, S, H), np.add, (2, 4), np.add),
    ("fsubh", (H, H, H), np.subtract, (4, 8), np.subtract),
    ("fsubs", (S, S, S), np.subtract, (2, 4), np.subtract),
    ("fmulh", (H, H, H), np.multiply, (4, 8), np.multiply),
    ("fmuls", (S, S, S), np.multiply, (1, 1), np.multiply),
    ("fmaxh", (H, H, H), _maximum, (1, 8), np.maximum),
    ("fmaxs", (S, S, S), _maximum, (1, 4), np.maximum),
    ("fmach", (H, H, H, H), _mac, (4, 8)),
    ("fmacs", (S, S, S, S), _mac, (1, 1)),
    ("fmachs", (S, S, H, H), _machs, (2, 4)),
    ("fh2s", (S, H), lambda x: np.asarray(x).astype(S), (1, 4)),
    ("fs2h", (H, S), lambda x: np.asarray(x).astype(H), (1, 4)),
    ("fh2xp16", (I, H), _truncate, (1, 8)),
    ("fs2xp16", (I, S), _truncate, (1, 4)),
    ("xp162fh", (H, I), lambda x: np.asarray(x).astype(H), (1, 8)),
    ("xp162fs", (S, I), lambda x: np.asarray(x).astype(S), (1, 4)),
    ("fnormh", (H, H), _normal(np.float16), (4, 8)),
    ("fnorms", (S, S), _normal(np.float32), (2, 4)),
    ("fscaleh", (H, H, I), _scaled(np.float16), (4, 8)),
    ("fscales", (S, S, I), _scaled(np.float32), (2, 4)),
)
OPS: dict[str, OpSpec] = {row[0]: _spec(row) for row in _TABLE}
