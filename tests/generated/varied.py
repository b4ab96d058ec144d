"""Operators on what `draw` leaves small or plain: large sizes, every element type, NaN and infinities, threads.

Case number i depends on nothing but i. The sizes lie around the widths of vectors and tiles, and are large enough that
threads share the work; the interpreter and native code must give the same answer, or refuse alike.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from tests.generated.build import answer, one_node, session
from tests.generated.draw import SAMPLES, Draw, Sample, draw_sample, operators
from tests.generated.sweep import RANDOM, STEPPED, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Case", "cases", "check_case"]

# Sizes about which kernels change their way.
SIZES = (5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100)
ELEMENTS = 1 << 20
TYPES = (
    "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
    "float8_e4m3fn", "float8_e5m2", "int4", "uint4",
)  # fmt: skip
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-40, 1e4)
KINDS = (*(f"large {threads}" for threads in (1, 2, 3)), "special", *(f"type {name}" for name in TYPES))
# Operators that take long for large inputs.
COSTLY = {"TfIdfVectorizer", "Eigh", "SVD", "PseudoInverse", "CTCLossGrad", "Multinomial"}


# Which of a transform's numbers a NaN or an infinity reaches depends on how the sum is split; and what has no
# decomposition is refused as it is computed, not before.
NOT_SPECIAL = {"DFT", "STFT", "Eigh", "SVD", "PseudoInverse", "Cholesky"}


class _TooLarge(Exception):
    """A draw that takes too long."""


class LargeDraw(Draw):
    """Draws sizes about the widths of vectors and tiles, and sometimes channels of that size."""

    def n(self, low: int = 1, high: int = 4) -> int:
        """A size, mostly a large one."""
        plain = super().n(low, high)
        return low + int(self.run.choice(SIZES)) if high > 2 and self.run.random() < 0.6 else plain

    def k(self, low: int = 1, high: int = 4) -> int:
        """What the model fixes: ranks and flags stay as they are, some channels grow."""
        plain = super().k(low, high)
        return int(self.model.choice(SIZES)) if low == 1 and high in (3, 4) and self.model.random() < 0.35 else plain

    def dims(self, low: int = 1, high: int = 4, most: int = 5) -> tuple[int, ...]:
        """A shape of the same ranks as before."""
        return tuple(self.n(1, most) for _ in range(super().k(low, high)))

    def f(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Floats, not too many."""
        _check(shape)
        return super().f(*shape, dtype=dtype)

    def i(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
        """Integers, not too many."""
        _check(shape)
        return super().i(low, high, *shape, dtype=dtype)


def _check(shape: Sequence[int]) -> None:
    if int(np.prod(shape, dtype=np.float64)) > ELEMENTS:
        raise _TooLarge


class Case(NamedTuple):
    """One operator in one way."""

    op: str
    seed: int
    kind: str

    def __str__(self) -> str:
        return f"{self.op}/{self.seed}/{self.kind}"


@cache
def cases(seeds: int = 3) -> tuple[Case, ...]:
    """All of them, in an order that mixes operators."""
    found = [Case(op.full_name, seed, kind) for op in operators() for seed in range(seeds) for kind in KINDS]
    order = np.random.default_rng(1).permutation(len(found))
    return tuple(found[i] for i in order)


def _large(case: Case) -> Sample | None:
    name = case.op.rpartition("::")[2]
    for attempt in range(20):
        try:
            made = SAMPLES[case.op](LargeDraw(1000 * case.seed + attempt, attempt))
        except (_TooLarge, ValueError, IndexError, ZeroDivisionError, TypeError):
            continue  # this draw has no such form
        made.domain, made.name = case.op.rpartition("::")[0], name
        arrays = [a for a in made.inputs if isinstance(a, np.ndarray)]
        if max((a.size for a in arrays), default=0) < ELEMENTS:
            return made
    return None


def _typed(sample: Sample, name: str) -> Sample:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)

    def cast(a: Any) -> Any:
        if isinstance(a, list):
            return [cast(one) for one in a]
        if not isinstance(a, np.ndarray) or a.dtype != np.float32:
            return a
        whole = np.round(a * 3) if dtype.kind in "iu" or "int" in name else a
        low = 0 if name.startswith("u") else None
        return (whole if low is None else np.abs(whole)).astype(dtype)

    return Sample([cast(a) for a in sample.inputs], sample.attributes, sample.outputs, sample.name, sample.domain)


def _special(sample: Sample, seed: int) -> Sample:
    r = np.random.default_rng(seed)

    # An infinite weight times the zeros around an image is NaN, where there are such zeros: only images are spoilt.
    inputs = sample.inputs[:1] if "Conv" in sample.name else sample.inputs

    def spoil(a: Any) -> Any:
        if not isinstance(a, np.ndarray) or a.dtype != np.float32 or not a.size:
            return a
        out = a.copy()
        count = max(1, a.size // 8)
        out.reshape(-1)[r.integers(0, a.size, count)] = r.choice(np.array(SPECIAL, np.float32), count)
        return out

    spoilt = [spoil(a) for a in inputs] + sample.inputs[len(inputs) :]
    return Sample(spoilt, sample.attributes, sample.outputs, sample.name, sample.domain)


def _drawn(case: Case) -> tuple[Sample | None, dict[str, Any]]:
    kind, _, how = case.kind.partition(" ")
    if kind == "large":
        return (None if case.op.rpartition("::")[2] in COSTLY else _large(case)), {"num_threads": int(how)}
    sample = draw_sample(case.op, 50 + case.seed)
    if kind == "type":
        return _typed(sample, how), {}
    return (None if sample.name in NOT_SPECIAL else _special(sample, case.seed)), {}


def check_case(case: Case, **options: Any) -> str:
    """ "" when the backends agree, else what they did."""
    sample, ways = _drawn(case)
    if sample is None:
        return ""
    graph, feeds = one_node(sample)
    expected = answer(lambda: session(graph, "Reference"), feeds)
    found = answer(lambda: session(graph, "CPU", **{**ways, **options}), feeds)
    if case.kind.startswith("type") and expected.outputs is None and found.outputs is None:
        return "untyped" * (expected.untyped or found.untyped)  # the first place that minds may be another one
    stepped = any(mark in case.op for mark in STEPPED)
    return verdict(expected, found, random=sample.name in RANDOM, loose=2.0 if stepped else 1.0)
