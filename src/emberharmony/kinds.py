"""Which library a value belongs to, by its type."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from emberharmony.errors import MaskedArrayError, MixedArraysError

MASKED = "masked"
NESTED = "nested"
WRAPPED = "wrapped"
KIND: dict[type, str | None] = {np.ndarray: "numpy", list: NESTED, tuple: NESTED, dict: NESTED}
KIND |= dict.fromkeys((int, float, bool, complex, str, type(None)), None)


def register_wrapper(cls: type) -> None:
    """Let calls accept `cls`, whose `array` attribute is taken in its place."""
    KIND[cls] = WRAPPED


def classify(cls: type) -> str | None:
    """The library of a type, NESTED, WRAPPED, or None for anything else.

    Nothing is imported to find out: a library nobody imported cannot have made an array.
    """
    if cls in KIND:
        return KIND[cls]
    torch, mlx = sys.modules.get("torch"), sys.modules.get("mlx.core")
    found: str | None = None
    if _is_masked_type(cls):
        found = MASKED
    elif issubclass(cls, np.ndarray):
        found = "numpy"
    elif torch is not None and issubclass(cls, torch.Tensor):
        found = "torch"
    elif mlx is not None and issubclass(cls, mlx.array):
        found = "mlx"
    elif issubclass(cls, list | tuple):
        found = NESTED
    elif issubclass(cls, tuple(c for c, k in KIND.items() if k is WRAPPED)):
        found = WRAPPED
    KIND[cls] = found
    return found


def _is_masked_type(cls: type) -> bool:
    module = sys.modules.get("numpy.ma")  # NumPy imports it where it is used
    return module is not None and issubclass(cls, module.MaskedArray)


def hides_elements(value: object) -> bool:
    """Whether something in a masked array, or in one of a list of them, is masked; False for everything else.

    >>> hides_elements([np.ma.masked_array([1, 2], [0, 1])]), hides_elements(np.ones(2))
    (True, False)
    """
    if isinstance(value, list | tuple):
        nested = "numpy.ma" in sys.modules and bool(value) and isinstance(value[0], list | tuple | np.ndarray)
        return nested and any(map(hides_elements, value))
    return _is_masked_type(type(value)) and bool(np.ma.is_masked(value))


def refuse_masked(value: object) -> None:
    """Refuse a masked array, even without a masked element: NumPy's own functions would mask more.

    Raises:
        MaskedArrayError: It is one.
    """
    if _is_masked_type(type(value)):
        raise MaskedArrayError(
            "masked arrays are not taken, their mask would be lost: give x.filled(value), or x.data to ignore the mask"
        )


def array_library(value: object) -> str | None:
    """Name of the library that made an array, None if it is no array.

    >>> array_library(np.zeros(2)), array_library(3.5)
    ('numpy', None)
    """
    kind = classify(type(value))
    if kind is MASKED:
        refuse_masked(value)
    if kind is WRAPPED:
        return array_library(value.array)  # pyright: ignore[reportAttributeAccessIssue]
    return None if kind is NESTED else kind


def find_library(values: Iterable[object], found: str | None = None) -> str | None:
    """Name of the one library whose arrays are among the values.

    >>> find_library([1, [np.zeros(2)]])
    'numpy'

    Raises:
        MixedArraysError: Arrays of two libraries are among them.
    """
    for value in values:
        kind = classify(type(value))
        if kind is None:
            continue
        if kind is NESTED:
            inner = value.values() if isinstance(value, dict) else value
            kind = find_library(inner, found)  # pyright: ignore[reportArgumentType]
        elif kind is WRAPPED or kind is MASKED:
            kind = array_library(value)
        if kind is None or kind == found:
            continue
        if found is not None:
            raise MixedArraysError(
                f"arrays of {found} and {kind} in one call: convert one of them, "
                f"for example with library({found!r}).from_numpy(ops.to_numpy(x))"
            )
        found = kind
    return found


def unwrapped(value: Any) -> Any:
    """Replace wrapped arrays, also inside sequences."""
    kind = classify(type(value))
    if kind is WRAPPED:
        return value.array
    if kind is NESTED and isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(unwrapped(v) for v in value)
    return value
