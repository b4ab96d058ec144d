"""Feeds: whatever callers give as inputs, to arrays of the declared type and shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyflame_rt.arrays import host_array
from pyflame_rt.graph import (
    AnyType,
    DType,
    OptionalType,
    SequenceType,
    Tensor,
    TensorInfo,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.dim import SIZE_BOUNDS
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, InvalidModelError, ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.names import closest
from pyflame_rt.graph.tensor import whole
from pyflame_rt.iobinding import OrtValue

__all__ = ["FeedReader", "random_feed"]

# Python numbers take the input's type when no information is lost: bool < int < float < complex.
_KIND_ORDER = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


class FeedReader:
    """Checks and converts the feeds of one model.

    NumPy arrays and scalars must have the declared element type; Python numbers and lists take
    it. Sizes that the model declares as numbers are checked, as ONNX Runtime does (a declared
    scalar is not: neither does ONNX Runtime).

    Example:
        >>> reader = FeedReader([TensorInfo("x", [None, 2], DType.Float32)], [])
        >>> reader.read({"x": [[1, 2]]})
        {'x': array([[1., 2.]], dtype=float32)}
    """

    __slots__ = ("_bounds", "_kinds", "_plain", "_required")

    def __init__(
        self, required: Iterable[TensorInfo], overridable: Iterable[TensorInfo], bounds: str | None = None
    ) -> None:
        needed = list(required)
        self._required = [i.name for i in needed if not isinstance(i.type, OptionalType)]
        self._kinds = {info.name: info.type for info in (*needed, *overridable)}
        # Element type and sizes in the form the common case compares with.
        self._plain = {
            name: (kind.dtype.numpy, _sizes(kind))
            for name, kind in self._kinds.items()
            if isinstance(kind, TensorType) and kind.dtype is not DType.String
        }

        self._bounds = [] if bounds is None else list(_bounded_axes(self._kinds, bounds))

    def read(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays by input name; every required input is there."""
        if type(feed) is not dict and not isinstance(feed, Mapping):
            raise InputError(
                f"the feed must map input names to values, got {type(feed).__name__}. Inputs: {_listed(self._kinds)}"
            )
        ready: dict[str, Any] = {}
        for name, value in feed.items():
            plain = self._plain.get(name)
            if (
                plain is not None
                and type(value) is np.ndarray
                and value.dtype == plain[0]
                and _fits(value.shape, plain[1])
            ):
                ready[name] = value
            else:
                self._slow(name, value, ready)
        missing = [name for name in self._required if ready.get(name) is None]
        if missing:
            self._refuse_none(feed, missing)
            raise InputError(
                f"input {missing[0]!r} is missing. Given: {_listed(feed)}; needed: {_listed(self._required)}"
            )
        for name, axis, size, low, high in self._bounds:
            shape = np.shape(ready[name]) if name in ready else None
            if shape is not None and not (low <= shape[axis] and (high is None or shape[axis] <= high)):
                room = f"{low} or more" if high is None else f"{low} to {high}"
                raise ShapeMismatchError(
                    f"input {name!r} has {size} = {shape[axis]} (axis {axis}); the model was written for {room}"
                )
        return ready

    def _refuse_none(self, feed: Mapping[str, Any], missing: Sequence[str]) -> None:
        """A value of None is not a missing one: say which it is."""
        for name, value in feed.items():
            known = self._resolve(name)
            if known in missing and (value is None or isinstance(value, OrtValue)):
                raise InputError(
                    f"input {name!r} is None; the model takes {self._kinds[known]}. Give an array: only an optional "
                    "input may be None"
                )

    def _slow(self, name: str, value: Any, ready: dict[str, Any]) -> None:
        known = self._resolve(name)
        if known in ready:
            raise InputError(f"input {known!r} is given twice")
        converted = convert(value, self._kinds[known], f"input {known!r}")
        if converted is not None:
            ready[known] = converted

    def _resolve(self, name: str) -> str:
        if name in self._kinds:
            return name
        # TorchScript numbers its arguments: `input` is called `input.1` in the graph.
        if f"{name}.1" in self._kinds:
            return f"{name}.1"
        close = closest(name, self._kinds)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"the model has no input {name!r}.{hint} Inputs: {_listed(self._kinds)}")


def _bounded_axes(kinds: Mapping[str, ValueType], text: str) -> Iterator[tuple[str, int, str, int, int | None]]:
    """Axes whose sizes have bounds, as a model's metadata tell them: ``{"batch": [2, 8]}``."""
    try:
        bounds = {str(size): (int(low), None if high is None else int(high)) for size, (low, high) in
                  json.loads(text).items()}  # fmt: skip
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidModelError(f"the model's {SIZE_BOUNDS} are {text[:80]!r}: {error}") from error
    for name, kind in kinds.items():
        for axis, dim in enumerate((kind.shape if isinstance(kind, TensorType) else None) or ()):
            if str(dim) in bounds and not isinstance(dim, int):
                yield name, axis, str(dim), *bounds[str(dim)]


def _sizes(kind: TensorType) -> tuple[int | None, ...] | None:
    """Sizes to check: None where any will do; None as a whole for an unknown or scalar shape."""
    if not kind.shape:
        return None
    return tuple(d if isinstance(d, int) else None for d in kind.shape)


def _fits(shape: tuple[int, ...], sizes: tuple[int | None, ...] | None) -> bool:
    if sizes is None:
        return True
    if len(shape) != len(sizes):
        return False
    return all(want is None or got == want for got, want in zip(shape, sizes, strict=True))


def convert(value: Any, kind: ValueType, where: str) -> Any:
    """One value as an array, a list (sequences) or None (empty optionals)."""
    if isinstance(value, OrtValue):
        value = value.value
    match kind:
        case OptionalType(elem=elem):
            return None if value is None else convert(value, elem, where)
        case SequenceType(elem=elem):
            if not isinstance(value, (list, tuple)):
                raise InputError(f"{where} is a sequence: give a list, not {type(value).__name__}")
            return [convert(v, elem, f"{where}, element {i}") for i, v in enumerate(value)]
        case TensorType():
            return None if value is None else _convert_tensor(value, kind, where)
        case AnyType():
            return _as_array(value, where) if not isinstance(value, (list, dict)) else value
        case _:
            return value


def _convert_tensor(value: Any, kind: TensorType, where: str) -> np.ndarray[Any, Any]:
    if kind.dtype is DType.String:
        array = _strings(value, where)
    elif isinstance(value, (bool, int, float, complex, str, list, tuple, range)):
        array = _from_python(value, kind.dtype, where)
    else:
        array = _exactly(_as_array(value, where), kind.dtype, where)
    sizes = _sizes(kind)
    if not _fits(array.shape, sizes):
        raise ShapeMismatchError(_shape_message(array.shape, kind, where))
    return array


def _shape_message(shape: tuple[int, ...], kind: TensorType, where: str) -> str:
    sizes = _sizes(kind) or ()
    if len(shape) != len(sizes):
        return (
            f"{where} has rank {len(shape)} (shape {list(shape)}); the model declares rank {len(sizes)}: {kind.shape}"
        )
    wrong = [i for i, (g, w) in enumerate(zip(shape, sizes, strict=True)) if w not in (None, g)]
    axes = "; ".join(f"axis {i}: got {shape[i]}, expected {sizes[i]}" for i in wrong)
    return f"{where} has shape {list(shape)}; the model declares {kind.shape} ({axes})"


def _as_array(value: Any, where: str) -> np.ndarray[Any, Any]:
    """An array from anything that holds one, its element type kept."""
    if isinstance(value, np.ndarray):
        return whole(value, where)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, Tensor):
        return value.raw()
    try:
        found = host_array(value)
        if found is not None:
            return found
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
    except Exception as error:  # whatever methods of the caller's own object raise
        raise InputError(f"{where}: {type(value).__name__} cannot be read: {error}") from error
    raise InputError(
        f"{where}: cannot make an array of {type(value).__name__}. Give a NumPy array, a list, a "
        f"Tensor, an OrtValue or an object with __dlpack__"
    )


def _exactly(array: np.ndarray[Any, Any], dtype: DType, where: str) -> np.ndarray[Any, Any]:
    if array.dtype == dtype.numpy:
        return array
    got = array.dtype.name
    try:
        found = DType.of(array.dtype)
    except DTypeMismatchError:
        found = None
    if found is dtype:  # the other byte order
        return array.astype(dtype.numpy)
    raise DTypeMismatchError(
        f"{where} has element type {got}; the model takes {dtype.label}. Convert it first, for "
        f"example with .astype({_spelling(dtype)})"
    )


def _spelling(dtype: DType) -> str:
    name = dtype.numpy.name
    return f"np.{name}" if hasattr(np, name) else f"ml_dtypes.{name}"


def _from_python(value: Any, dtype: DType, where: str) -> np.ndarray[Any, Any]:
    try:
        if _holds_arrays(value):
            return _exactly(whole(value, where), dtype, where)
        natural = np.asarray(value)
    except RecursionError as error:
        raise InputError(f"{where}: the list holds itself, or is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{where}: the list is not rectangular: {error}") from error
    if natural.size and not _keeps_meaning(natural.dtype, dtype):
        raise DTypeMismatchError(
            f"{where} holds Python values of kind {natural.dtype.name}; the model takes {dtype.label}"
        )
    try:
        with np.errstate(over="ignore"):
            made = np.asarray(value, dtype=dtype.numpy)
    except (OverflowError, ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error
    if dtype.is_float and natural.dtype.kind in "iuf":
        lost = np.isfinite(natural) & ~np.isfinite(made)
        if lost.any():
            raise InputError(
                f"{where}: {natural[lost].flat[0]} is beyond the range of {dtype.label}, which the model takes"
            )
    return made


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_arrays(item) for item in value)
    return isinstance(value, (np.ndarray, np.generic))


def _keeps_meaning(natural: np.dtype[Any], dtype: DType) -> bool:
    if dtype is DType.Bool:
        return natural.kind == "b"
    want = 2 if dtype.is_float else 3 if dtype.is_complex else 1
    return _KIND_ORDER.get(natural.kind, 9) <= want


def _strings(value: Any, where: str) -> np.ndarray[Any, Any]:
    given = value.raw() if isinstance(value, Tensor) else value
    # As objects: NumPy would write the numbers among strings as strings.
    try:
        kind = object if isinstance(given, (list, tuple)) and not _holds_arrays(given) else None
        array = np.asarray(given, kind)
    except ValueError as error:
        raise InputError(f"{where}: the list is not rectangular: {error}") from error
    except RecursionError as error:
        raise InputError(f"{where}: the list holds itself, or is nested too deeply") from error
    if array.dtype.kind not in "USTO":
        raise DTypeMismatchError(f"{where} has element type {array.dtype.name}; the model takes strings")
    out = np.empty(array.shape, dtype=object)
    for index, item in np.ndenumerate(array):
        if isinstance(item, bytes):
            item = item.decode("utf-8", "surrogateescape")
        if not isinstance(item, str):
            raise DTypeMismatchError(f"{where} holds {item!r} at {list(index)}; the model takes strings")
        out[index] = str(item)
    return out


def _listed(names: Iterable[str], limit: int = 8) -> str:
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(repr(n) for n in found[:limit]) + more if found else "none"


@names_arguments
def random_feed(
    inputs: Sequence[TensorInfo], *, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """A feed of random values for the inputs of a model.

    Args:
        inputs: descriptions, as in ``graph.required_inputs``.
        seed: the same seed gives the same values.
        sizes: sizes for symbolic dimensions; 1 for those not named.

    Example:
        >>> random_feed([TensorInfo("x", ["N", 3])], sizes={"N": 2})["x"].shape
        (2, 3)
    """
    generator = np.random.default_rng(abs(expect_whole(seed, "seed")))
    if sizes is not None:
        expect(sizes, Mapping, "sizes")
    known = dict(sizes or {})
    for name, size in known.items():
        if not isinstance(size, int) or size < 0:
            raise InputError(f"size {name!r} is {size!r}, not a whole number from 0 on")
    return {info.name: _random(info.type, generator, known) for info in inputs}


def _random(kind: ValueType, generator: np.random.Generator, sizes: Mapping[str, int]) -> Any:
    match kind:
        case TensorType(dtype=dtype, shape=shape):
            dims = [_size(d, sizes) for d in (shape or ())]
            return _random_array(dtype, dims, generator)
        case SequenceType(elem=elem) | OptionalType(elem=elem):
            inner = _random(elem, generator, sizes)
            return [inner] if isinstance(kind, SequenceType) else inner
        case _:
            raise InputError(f"cannot make random values of type {kind}; give a feed")


def _size(dim: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        return 1
    names = {**dict.fromkeys(dim.symbols(), 1), **sizes}
    return max(dim.evaluate(names) or 1, 0)


def _random_array(dtype: DType, dims: list[int], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    if dtype is DType.String:
        return np.full(dims, "text", dtype=object)
    if dtype.is_float:
        return np.asarray(generator.standard_normal(dims)).astype(dtype.numpy)
    if dtype.is_complex:
        pair = generator.standard_normal((2, *dims))
        return np.asarray(pair[0] + 1j * pair[1]).astype(dtype.numpy)
    # Integers are often indices: 0 and 1 are valid nearly everywhere.
    return np.asarray(generator.integers(0, 2, dims)).astype(dtype.numpy)
