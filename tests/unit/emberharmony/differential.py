"""One call on each library, and what differs between their answers."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emberharmony import EmberHarmonyError, library
from tests.unit.emberharmony.pools import A, Call

__all__ = ["Answer", "Listed", "answer", "difference", "listed"]

# Relative and absolute difference allowed for a result of each dtype.
TOLERANCE = {
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
    "float32": (2e-5, 2e-6),
    "float64": (1e-11, 1e-12),
    "complex64": (5e-5, 1e-5),
    "complex128": (1e-11, 1e-12),
}
KINDS = (IndexError, OverflowError, ZeroDivisionError, TypeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class Answer:
    """What a call gave: values on the host, or an error."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Listed:
    """A known difference: the library, the operations, words of the difference, and why it is one."""

    library: str
    ops: tuple[str, ...]
    words: str
    reason: str

    def covers(self, name: str, op: str, found: str) -> bool:
        """Whether a difference is this one."""
        return name == self.library and (self.ops == ("*",) or op in self.ops) and self.words in found


def listed() -> list[Listed]:
    """The known differences, from the file beside this one."""
    lines = Path(__file__).with_name("disagreements.txt").read_text(encoding="utf-8").splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines if line and not line.startswith("#")]
    return [Listed(name, tuple(ops.split()), words, reason) for name, ops, words, reason in rows]


def _made(value: Any, lib: Any) -> Any:
    if isinstance(value, A):
        return value.made(lib)
    if isinstance(value, list | tuple):
        return type(value)(_made(v, lib) for v in value)
    return value


def _changed(given: Any, made: Any, lib: Any) -> bool:
    """Whether an array has other values than it was made with."""
    if isinstance(given, A):
        return _native(lib.to_numpy(made)).tobytes() != given.values.tobytes()
    if isinstance(given, dict):
        return any(_changed(v, made[k], lib) for k, v in given.items())
    if isinstance(given, list | tuple):
        return any(_changed(g, m, lib) for g, m in zip(given, made, strict=True))
    return False


def _native(x: np.ndarray) -> np.ndarray:
    """The bytes of numbers in this machine's order, which NumPy keeps as they were."""
    return x.astype(x.dtype.newbyteorder("=")) if x.dtype.byteorder == ">" else x


def _host(value: Any, lib: Any) -> Any:
    if lib.is_array(value):
        return _native(lib.to_numpy(value))
    if isinstance(value, list | tuple):
        return type(value)(_host(v, lib) for v in value)
    # NumPy's operators give scalars where the others give arrays.
    return np.asarray(value) if isinstance(value, np.generic) else value


def _meaning(op: str, value: Any) -> Any:
    """What is unique about factors of a matrix: their product, and those of them that have no sign."""
    if op == "eigvals":
        return np.sort_complex(value)
    if not isinstance(value, tuple) or op not in ("svd", "qr", "eigh", "eig"):
        return value
    outside = [[v.shape for v in value], [str(v.dtype) for v in value]]
    wide = [v.astype(np.complex128) for v in value]
    if op == "svd":
        u, s, vh = wide
        count = s.shape[-1]
        product = (u[..., :count] * s[..., None, :]) @ vh[..., :count, :]
        return [*outside, value[1], product.astype(np.complex64)]
    if op == "qr":
        return [*outside, np.abs(wide[1]).astype(np.float32), (wide[0] @ wide[1]).astype(np.complex64)]
    if op == "eigh":
        w, v = wide
        return [*outside, value[0], ((v * w[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))).astype(np.complex64)]
    return [*outside, np.sort(np.abs(value[0]), -1)]


def answer(call: Call, name: str) -> Answer:
    """The answer of one library."""
    lib = library(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        args = _made(call.args, lib)
        options = {k: _made(v, lib) for k, v in call.options.items()}
        try:
            found = Answer(_meaning(call.op, _host(getattr(lib, call.op)(*args, **options), lib)))
        except Exception as error:  # noqa: BLE001 - any error is an answer, to be compared
            found = Answer(error=error)
        changed = any(_changed(*pair, lib) for pair in zip((call.args, call.options), (args, options), strict=True))
        return Answer(error=RuntimeError("an argument was changed")) if changed else found


def _kind(error: BaseException) -> str:
    """The class of an error as far as libraries have to agree on it."""
    if isinstance(error, EmberHarmonyError | np.exceptions.AxisError | np.linalg.LinAlgError):
        return type(error).__name__
    return next((k.__name__ for k in KINDS if isinstance(error, k)), f"raw {type(error).__name__}")


def _same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    if want.dtype.name not in TOLERANCE:
        return got == want
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return np.isclose(got.astype(wide), want.astype(wide), *TOLERANCE[want.dtype.name], equal_nan=True)


def _unequal(got: Any, want: Any) -> str | None:
    """What differs between two values, None if nothing does."""
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            return f"{got!r:.200} is not {want!r:.200}"
        return next((d for g, w in zip(got, want, strict=True) if (d := _unequal(g, w)) is not None), None)
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return None if type(got) is type(want) and got == want else f"{got!r:.100} is not {want!r:.100}"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
    same = np.atleast_1d(_same(got, want))
    if same.all():
        return None
    place = tuple(np.argwhere(~same)[0].tolist())
    return f"at {place}: {np.atleast_1d(got)[place]}, not {np.atleast_1d(want)[place]}"


def difference(got: Answer, want: Answer) -> str | None:
    """What differs between two answers, None if nothing does."""
    if want.error is not None and got.error is not None:
        first, second = _kind(got.error), _kind(want.error)
        raw = first.startswith("raw") or second.startswith("raw")
        return f"{first}({got.error!s:.150}), not {second}({want.error!s:.150})" if raw or first != second else None
    if want.error is not None:
        return f"no error, not {_kind(want.error)}({want.error!s:.150})"
    if got.error is not None:
        return f"{_kind(got.error)}({got.error!s:.150}), not a value"
    return _unequal(got.value, want.value)
