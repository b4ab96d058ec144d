"""The slope of one call along one direction, by a library's gradients and by quotients of NumPy's answers."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from emberharmony import UnsupportedOpError, library
from emberharmony.dtypes import COMPLEX, FLOAT, as_dtype, kind
from tests.unit.emberharmony.calls import BINARY, REDUCTIONS, RUNNING, UNARY
from tests.unit.emberharmony.pools import FLOATS, A, Call, edges

__all__ = ["Slope", "disagreement", "places", "quotient", "ties"]

# How far a gradient may be from the quotient, of the sum of its terms' sizes.
LOOSE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 2e-6, "complex64": 5e-5}
STEP = 1e-5
SYMMETRIC = ("cholesky", "eigh", "eigvalsh")
# Factors of a matrix are unique up to signs.
SIGNS = ("svd", "qr", "eigh", "eig", "eigvals")


@dataclass(frozen=True)
class Slope:
    """A call and the place of the argument that moves."""

    call: Call
    place: tuple[int | str, ...]

    @property
    def array(self) -> A:
        """The argument."""
        value: Any = (*self.call.args, self.call.options)
        for step in self.place:
            value = value[step]
        return value

    def __repr__(self) -> str:
        return f"{self.call!r:.250} towards {self.place}"


def places(call: Call) -> Iterator[Slope]:
    """Every argument of a call that a gradient could be asked for."""

    def inside(value: Any, place: tuple[int | str, ...]) -> Iterator[Slope]:
        if isinstance(value, A):
            if kind(value.values.dtype) in (FLOAT, COMPLEX) and value.values.size and np.isfinite(value.values).all():
                yield Slope(call, place)
        elif isinstance(value, list | tuple):
            for i, part in enumerate(value):
                yield from inside(part, (*place, i))
        elif isinstance(value, dict):
            for key, part in value.items():
                yield from inside(part, (*place, key))

    yield from inside((*call.args, call.options), ())


def _narrowest(slope: Slope) -> str:
    """The least exact dtype that a call goes through."""
    found = {str(part) for part in _leaves((*slope.call.args, slope.call.options))}
    return next(name for name in ("bfloat16", "float16", "complex64", "float32", "float64") if name in found)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, A):
        yield value.values.dtype
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, str):
        yield value


def ties() -> Iterator[Call]:
    """Calls at equal values and zeros, where smooth functions are composed of some that have corners there."""
    rows = (
        [0, 0, 0],
        [1, 1, 2],
        [2, 0, 3],
        [0, 0, 5],
        [0, 2, 0],
        [-1.5, -1.5],
        [[1, 1], [1, 1]],
        [[0, 2], [3, 4]],
        0.5,
    )
    for dtype in FLOATS:
        wanted = as_dtype(dtype)
        finite = [A(np.array(v)) for v in edges(dtype) if v == 0 or 0.01 < abs(v) < 100]
        for op in (*UNARY, "softmax", "log_softmax", "std", "norm"):
            for x in finite:
                yield Call(op, (x,))
        for op in BINARY:
            for x in finite:
                yield Call(op, (x, x))
                for other in (0, 1, 2, 3, 0.5, -1):
                    yield Call(op, (x, A(np.array(other, wanted))))
                    yield Call(op, (x, other))
        for row in rows:
            x = A(np.array(row, wanted))
            for op in (*(set(REDUCTIONS) - {"median"}), *RUNNING, "softmax", "log_softmax", "norm"):
                yield Call(op, (x,), {"axis": -1})
            for order in (1, 2, 3, 4, 0.5):
                yield Call("norm", (x, order), {"axis": -1})
            if x.values.ndim == 1:
                yield Call("inner", (x, x))


def widened(x: A) -> A:
    """Floats and complex numbers in the widest dtype."""
    wide = {FLOAT: np.float64, COMPLEX: np.complex128}.get(kind(x.values.dtype))
    return x if wide is None else A(x.values.astype(wide), x.layout)


def _called(slope: Slope, lib: Any, moving: Any, wide: bool = False) -> Any:
    """The call's answer with ``moving`` in the place."""

    def made(value: Any, place: tuple[int | str, ...]) -> Any:
        if place == slope.place:
            return moving
        if isinstance(value, A):
            return (widened(value) if wide else value).made(lib)
        if isinstance(value, list | tuple):
            return type(value)(made(v, (*place, i)) for i, v in enumerate(value))
        if isinstance(value, dict):
            return {k: made(v, (*place, k)) for k, v in value.items()}
        return value

    *args, options = made((*slope.call.args, slope.call.options), ())
    if wide:
        args = ["float64" if isinstance(a, str) and a in FLOATS else a for a in args]
        options = {k: "float64" if isinstance(v, str) and v in FLOATS else v for k, v in options.items()}
    return getattr(lib, slope.call.op)(*args, **options)


def _parts(found: Any, lib: Any) -> Iterator[Any]:
    if isinstance(found, list | tuple):
        for part in found:
            yield from _parts(part, lib)
    elif lib.is_array(found):
        yield found if kind(lib.dtype(found)) in (FLOAT, COMPLEX) else lib.cast(found, "float32")


def _weighted(slope: Slope, lib: Any, found: Any) -> Any:
    """A number that every element of the answer moves by a weight of its own; None for answers without numbers."""
    total = None
    for count, part in enumerate(_parts(found, lib)):
        if kind(lib.dtype(part)) == COMPLEX or slope.call.op in SIGNS:
            part = lib.abs(part)
        size = int(np.prod(part.shape))
        # Equal eigenvalues have no order.
        numbers = np.zeros(size) if slope.call.op == "eigvals" else np.arange(size)
        weights = np.cos(0.5 + count + numbers).reshape(tuple(part.shape))
        one = lib.sum(lib.multiply(part, lib.from_numpy(weights.astype(lib.dtype(part)))), dtype="float64")
        total = one if total is None else lib.add(total, one)
    return total


def direction(slope: Slope) -> np.ndarray:
    """Where the argument moves; of a matrix that is symmetric by contract, one triangle alone does not."""
    shape = slope.array.values.shape
    towards = np.sin(1.0 + np.arange(int(np.prod(shape)))).reshape(shape)
    square = slope.call.op in SYMMETRIC and len(shape) > 1 and shape[-1] == shape[-2]
    if kind(slope.array.values.dtype) == COMPLEX:
        towards = towards + 1j * towards[::-1] ** 2 if shape else towards * (1 + 2j)
    return towards + np.conj(np.swapaxes(towards, -1, -2)) if square else towards


def quotient(slope: Slope) -> float | None:
    """The slope by float64 answers of NumPy; None where there is none, or the answer has a corner or a step."""
    lib, start = library("numpy"), widened(slope.array).values
    towards = direction(slope)
    sides = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for by in (-2 * STEP, -STEP, 0.0, STEP, 2 * STEP):
            moved = A(start + by * towards, slope.array.layout).made(lib)
            try:
                total = _weighted(slope, lib, _called(slope, lib, moved, wide=True))
            except Exception:  # noqa: BLE001 - what NumPy refuses has no slope
                return None
            if total is None or not np.isfinite(total):
                return None
            sides.append(float(total))
        if np.abs(sides).max() > 1e5:
            return None  # too large for differences of this step
        steps = np.diff(sides) / STEP
    rough = max(1e-6, 1e-5 * np.abs(sides).max()) + 1e-3 * np.abs(steps).max()
    return float((sides[3] - sides[1]) / (2 * STEP)) if np.ptp(steps) < rough else None


def disagreement(slope: Slope, name: str, want: float) -> str | None:
    """What is wrong with a library's gradient; None where it is right or refused by name."""
    lib = library(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            x = slope.array.made(lib)
            if _weighted(slope, lib, _called(slope, lib, x)) is None:
                return None
        except Exception:  # noqa: BLE001 - compared without gradients elsewhere
            return None
        try:
            found = lib.gradients(lambda v: _weighted(slope, lib, _called(slope, lib, v)), x)
        except UnsupportedOpError:
            return None
        except Exception as error:  # noqa: BLE001 - an error of a library's own is a difference
            return f"{type(error).__name__}: {error!s:.200}"
        got = widened(A(lib.to_numpy(found))).values
        if got.shape != slope.array.values.shape:
            return f"a gradient of shape {got.shape}"
        terms = np.real(np.conj(got) * direction(slope))
    bound = LOOSE[_narrowest(slope)] * (np.abs(terms).sum() + abs(want)) + 1e-5
    return None if abs(terms.sum() - want) <= bound else f"{terms.sum():.6g}, not {want:.6g}"
