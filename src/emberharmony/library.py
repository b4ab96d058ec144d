"""A library: NumPy, PyTorch or MLX behind the names of `emberharmony.ops`."""

import functools
import importlib
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from emberharmony.declared import DECLARED
from emberharmony.dtypes import float_for, is_scalar, result_dtype
from emberharmony.errors import MissingExtra, UnknownBackendError
from emberharmony.guards import FOREIGN, GUARDS
from emberharmony.guards.refusals import careful
from emberharmony.hosting import note_host_step
from emberharmony.kinds import refuse_masked
from emberharmony.typing import Array, ArrayLike, DTypeLike

NAMES = ("numpy", "torch", "mlx")
_loading = threading.RLock()


class Library:
    """One array library with every operation as a bound function.

    >>> library("numpy").add(1, 2)
    array(3)
    """

    name: str

    def __init__(self, backend: ModuleType) -> None:
        self.name = backend.NAME
        self.looks_at_indices: bool = backend.LOOKS_AT_INDICES
        self._backend = backend

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Reached by the first use of an operation. Those of the backend's own do without the families' modules.
        bound = None if name.startswith("_") else self._native(name) or self._composed(name)
        if bound is None:
            raise AttributeError(f"library {self.name!r} has no operation {name!r}")
        setattr(self, name, bound)
        return bound

    def _native(self, name: str) -> Callable[..., Any] | None:
        """The backend's own function, behind the guard of its arguments if there is one."""
        native = self._backend.NATIVE.get(name)
        if native is None:
            return None
        if self.name == "numpy":
            return native if name in FOREIGN else self._guarded(name, native)
        return self._guarded(name, careful(self, name, native))

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        guard = GUARDS.get(name)
        return function if guard is None else partial(guard, self, function)

    def _composed(self, name: str) -> Callable[..., Any] | None:
        """An operation by its default body."""
        if name not in DECLARED:
            importlib.import_module("emberharmony.ops")  # declares them, and itself imports this file
        return self._guarded(name, partial(DECLARED[name], self)) if name in DECLARED else None

    def __dir__(self) -> list[str]:
        importlib.import_module("emberharmony.ops")
        return [*super().__dir__(), *DECLARED]

    def __repr__(self) -> str:
        return f"library({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str], "Library"], tuple[str]]:
        return library, (self.name,)

    def is_native(self, name: str) -> bool:
        """Whether the backend has its own function for an operation."""
        return name in self._backend.NATIVE

    def is_array(self, x: object) -> bool:
        """Whether `x` is an array of this library."""
        return self._backend.is_array(x)

    def dtype(self, x: Array) -> np.dtype[Any]:
        """The canonical dtype of an array."""
        return self._backend.dtype(x)

    def as_array(self, x: ArrayLike, dtype: DTypeLike = None) -> Array:
        """`x` as an array of this library; an array of the right dtype comes back as it is."""
        if dtype is None and self._backend.is_array(x):
            return x
        return self.convert_to_tensor(x, dtype)

    def promote(self, *values: ArrayLike) -> list[Array]:
        """The values as arrays of the one dtype they meet in."""
        arrays = [v if is_scalar(v) else self.as_array(v) for v in values]
        strong = [self.dtype(a) for a in arrays if not is_scalar(a)]
        dtype = result_dtype(strong, [a for a in arrays if is_scalar(a)])
        return [self.convert_to_tensor(a, dtype) for a in arrays]

    def promote_float(self, *values: ArrayLike) -> list[Array]:
        """The values as arrays of the one float dtype they meet in, float32 for integers."""
        met = self.promote(*values)
        dtype = float_for(self.dtype(met[0]))
        return [self.cast(a, dtype) for a in met]

    def supports(self, dtype: DTypeLike) -> bool:
        """Whether the library has arrays of this dtype and can compute with them."""
        return self._backend.supports(dtype)

    def native_dtype(self, dtype: DTypeLike) -> Any:
        """The library's own dtype object for a dtype.

        Raises:
            UnsupportedOpError: The library has no such dtype.
        """
        return self._backend.native_dtype(dtype)

    def from_numpy(self, array: np.ndarray) -> Array:
        """An array of this library with exactly the values and the dtype given.

        Raises:
            UnsupportedOpError: The library has no such dtype.
        """
        refuse_masked(array)
        return self._backend.from_numpy(array)

    def to_numpy(self, x: Array) -> np.ndarray:
        """A NumPy array with the values and dtype of `x`, evaluated and on the host."""
        return self._backend.to_numpy(x if self._backend.is_array(x) else self.as_array(x))

    def on_host(self, x: Array) -> np.ndarray:
        """Like `to_numpy`, for an operation that NumPy computes in this library's place; it is counted."""
        if self.name != "numpy":
            note_host_step()
        return self.to_numpy(x)

    def by_host(self, name: str, function: Callable[..., Any], *arrays: Array, **options: Any) -> Any:
        """Let NumPy compute an operation in the library's place; it is counted.

        Args:
            name: The operation, whose rule in `emberharmony.cotangents` gives gradients.
            function: It takes and gives NumPy arrays, one or a tuple.
            arrays: What it is given, as arrays of this library.
            options: What it and the rule are given besides.

        Raises:
            UnsupportedOpError: Gradients are asked for and there is no rule, or the arrays have no values yet.
        """
        return self._backend.by_host(self, name, partial(function, **options) if options else function, arrays, options)

    def host(self, name: str) -> Callable[..., Any]:
        """NumPy's form of an operation."""
        return getattr(library("numpy"), name)

    def values(self, x: Array) -> np.ndarray | None:
        """Like `to_numpy`, None inside a transformation of the library's where arrays have no values yet."""
        return self._backend.values(x)

    def is_unsupported(self, error: BaseException) -> bool:
        """Whether an error says that the library lacks an operation or dtype."""
        return self._backend.is_unsupported(error)


@functools.cache
def _load(name: str) -> Library:
    try:
        backend = importlib.import_module(f"emberharmony.backends.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise MissingExtra(f"backend {name!r} needs {name}: pip install 'pyflame[{name}]'", name=name) from error
    return Library(backend)


_loaded: dict[str, Library] = {}


def library(name: str) -> Library:
    """The library of that name, imported on first use.

    Args:
        name: "numpy", "torch" or "mlx".

    Raises:
        UnknownBackendError: No such library is known.
        MissingExtra: It is known but not installed.

    >>> library("numpy")
    library('numpy')
    """
    found = _loaded.get(name)
    if found is not None:
        return found
    if name not in NAMES:
        raise UnknownBackendError(f"unknown backend {name!r}; known: {', '.join(NAMES)}")
    with _loading:
        _loaded[str(name)] = found = _load(str(name))
    return found
