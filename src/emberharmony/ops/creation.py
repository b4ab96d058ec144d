"""Making arrays, and changing their dtype."""

from typing import Any

import numpy as np

from emberharmony.dtypes import (
    FLOAT,
    INTEGER,
    as_dtype,
    bool_,
    canonical,
    checked_scalar,
    float32,
    int64,
    kind,
    plain_array,
)
from emberharmony.kinds import array_library, refuse_masked
from emberharmony.library import Library, library
from emberharmony.registry import alias, creation, op, primitive
from emberharmony.typing import Array, ArrayLike, DTypeLike, Shape


def host_array(x: ArrayLike, dtype: DTypeLike = None) -> np.ndarray:
    """A NumPy array of plain Python data: float32 for floats, int64 for integers.

    >>> host_array([1.5]).dtype
    dtype('float32')
    """
    if dtype is None:
        return plain_array(x)
    wanted = as_dtype(dtype)
    made: Any = np.asarray(checked_scalar(x, wanted) if isinstance(x, int) else x)
    if made.dtype == wanted:
        return canonical(made)
    if not isinstance(x, np.ndarray | np.generic) and made.dtype.kind in "iufO" and made.size:
        for value in (made.min(), made.max()):
            checked_scalar(value, wanted)
    with np.errstate(all="ignore"):
        # An imaginary part is left out without a warning, as `cast` does.
        return (made.real if made.dtype.kind == "c" and kind(wanted) in (INTEGER, FLOAT) else made).astype(wanted)


def exact(lib: Library, x: ArrayLike) -> np.ndarray:
    """Python numbers with all their digits, or the values of an array, on the host."""
    return lib.to_numpy(x) if lib.is_array(x) else np.asarray(x)


def number(lib: Library, x: ArrayLike) -> Any:
    """One Python number, with all its digits."""
    return exact(lib, x).item()


def _holds_arrays(x: object) -> bool:
    return isinstance(x, list | tuple) and any(array_library(v) not in (None, "numpy") or _holds_arrays(v) for v in x)


@creation
def convert_to_tensor(lib: Library, x: ArrayLike, dtype: DTypeLike = None) -> Array:
    """Turn `x` into an array of the current backend.

    Python floats become float32 and integers int64; arrays keep their dtype.

    >>> ops.to_numpy(ops.convert_to_tensor([1, 2]))
    array([1, 2])
    """
    refuse_masked(x)
    if lib.is_array(x):
        return x if dtype is None or lib.dtype(x) == as_dtype(dtype) else lib.cast(x, dtype)
    foreign = array_library(x)
    if foreign is not None and foreign != lib.name:
        return lib.from_numpy(host_array(library(foreign).to_numpy(x), dtype))
    if _holds_arrays(x):
        return lib.stack([lib.convert_to_tensor(v, dtype) for v in x])
    return lib.from_numpy(host_array(x, dtype))


array = alias("array", convert_to_tensor, by_array=False)
asarray = alias("asarray", convert_to_tensor, by_array=False)


@primitive
def cast(lib: Library, x: ArrayLike, dtype: DTypeLike) -> Array:
    """Convert the elements to another dtype.

    >>> ops.cast(np.array([1.7, -1.7]), "int32")
    array([ 1, -1], dtype=int32)
    """


@primitive
def bitcast(lib: Library, x: ArrayLike, dtype: DTypeLike) -> Array:
    """Read the same bytes as another dtype of equal width.

    >>> ops.bitcast(np.array([1.0], np.float32), "int32")
    array([1065353216], dtype=int32)
    """


view = alias("view", bitcast)


@primitive
def copy(lib: Library, x: ArrayLike) -> Array:
    """An array with the same values that shares no memory with `x`.

    >>> ops.copy(np.arange(2))
    array([0, 1])
    """


@primitive
def full(lib: Library, shape: int | Shape, fill_value: ArrayLike, dtype: DTypeLike = None) -> Array:
    """An array with one value everywhere.

    >>> ops.to_numpy(ops.full((2,), 7))
    array([7, 7])
    """


@op
def zeros(lib: Library, shape: int | Shape, dtype: DTypeLike = float32) -> Array:
    """An array of zeros.

    >>> ops.to_numpy(ops.zeros((2,)))
    array([0., 0.], dtype=float32)
    """
    return lib.full(shape, 0, dtype)


@op
def ones(lib: Library, shape: int | Shape, dtype: DTypeLike = float32) -> Array:
    """An array of ones.

    >>> ops.to_numpy(ops.ones((2,), dtype="int64"))
    array([1, 1])
    """
    return lib.full(shape, 1, dtype)


@op
def empty(lib: Library, shape: int | Shape, dtype: DTypeLike = float32) -> Array:
    """An array whose values do not matter; they are zeros, so that results repeat.

    >>> ops.to_numpy(ops.empty((2,)))
    array([0., 0.], dtype=float32)
    """
    return lib.full(shape, 0, dtype)


@op
def full_like(lib: Library, x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike = None) -> Array:
    """One value in the shape, and by default the dtype, of `x`.

    >>> ops.full_like(np.zeros(2), 3)
    array([3., 3.])
    """
    x = lib.as_array(x)
    return lib.full(x.shape, fill_value, lib.dtype(x) if dtype is None else dtype)


@op
def zeros_like(lib: Library, x: ArrayLike, dtype: DTypeLike = None) -> Array:
    """Zeros in the shape, and by default the dtype, of `x`.

    >>> ops.zeros_like(np.ones(2))
    array([0., 0.])
    """
    return lib.full_like(x, 0, dtype)


@op
def ones_like(lib: Library, x: ArrayLike, dtype: DTypeLike = None) -> Array:
    """Ones in the shape, and by default the dtype, of `x`.

    >>> ops.ones_like(np.zeros(2))
    array([1., 1.])
    """
    return lib.full_like(x, 1, dtype)


@op
def empty_like(lib: Library, x: ArrayLike, dtype: DTypeLike = None) -> Array:
    """An array like `x` whose values do not matter (zeros).

    >>> ops.empty_like(np.ones(2)).shape
    (2,)
    """
    return lib.full_like(x, 0, dtype)


@op
def arange(
    lib: Library,
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DTypeLike = None,
) -> Array:
    """Evenly spaced values: int64 for integer arguments, else float32.

    >>> ops.to_numpy(ops.arange(3))
    array([0, 1, 2])
    """
    low, high = (0, start) if stop is None else (start, stop)
    low, high, step = (number(lib, v) for v in (low, high, step))
    if step == 0:
        raise ValueError("values cannot be 0 apart")
    made = np.arange(low, high, step)
    whole = made.dtype.kind in "iu"
    return lib.from_numpy(host_array(made, (int64 if whole else float32) if dtype is None else dtype))


@op
def linspace(
    lib: Library,
    start: float,
    stop: float,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike = float32,
) -> Array:
    """`num` evenly spaced values from `start` to `stop`.

    >>> ops.to_numpy(ops.linspace(0, 1, 3))
    array([0. , 0.5, 1. ], dtype=float32)
    """
    made = np.linspace(exact(lib, start), exact(lib, stop), num, endpoint=endpoint)
    # As NumPy has it: integers are the ones below.
    return lib.from_numpy(host_array(np.floor(made) if kind(as_dtype(dtype)) == INTEGER else made, dtype))


@op
def logspace(
    lib: Library,
    start: float,
    stop: float,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Values evenly spaced on a log scale, from `base ** start` to `base ** stop`.

    >>> ops.to_numpy(ops.logspace(0, 2, 3))
    array([  1.,  10., 100.], dtype=float32)
    """
    made = np.logspace(exact(lib, start), exact(lib, stop), num, endpoint=endpoint, base=number(lib, base))
    return lib.from_numpy(host_array(made, dtype))


@op
def eye(lib: Library, n: int, m: int | None = None, k: int = 0, dtype: DTypeLike = float32) -> Array:
    """Ones on the diagonal `k`, zeros elsewhere.

    >>> ops.to_numpy(ops.eye(2, dtype="int64"))
    array([[1, 0],
           [0, 1]])
    """
    return lib.from_numpy(np.eye(n, m, k, dtype=np.bool_).astype(as_dtype(dtype)))


@op
def identity(lib: Library, n: int, dtype: DTypeLike = float32) -> Array:
    """The unit matrix of size `n`.

    >>> ops.to_numpy(ops.identity(1))
    array([[1.]], dtype=float32)
    """
    return lib.eye(n, dtype=dtype)


@op
def tri(lib: Library, n: int, m: int | None = None, k: int = 0, dtype: DTypeLike = float32) -> Array:
    """Ones at and below the diagonal `k`, zeros above.

    >>> ops.to_numpy(ops.tri(2, dtype="int64"))
    array([[1, 0],
           [1, 1]])
    """
    return lib.from_numpy(np.tri(n, m, k, dtype=np.bool_).astype(as_dtype(dtype)))


@op
def tril(lib: Library, x: ArrayLike, k: int = 0) -> Array:
    """The part of a matrix at and below diagonal `k`, zeros above.

    >>> ops.tril(np.ones((2, 2)))
    array([[1., 0.],
           [1., 1.]])
    """
    x = lib.as_array(x)
    return lib.where(lib.tri(x.shape[-2], x.shape[-1], k, bool_), x, lib.zeros_like(x))


@op
def triu(lib: Library, x: ArrayLike, k: int = 0) -> Array:
    """The part of a matrix at and above diagonal `k`, zeros below.

    >>> ops.triu(np.ones((2, 2)))
    array([[1., 1.],
           [0., 1.]])
    """
    x = lib.as_array(x)
    return lib.where(lib.tri(x.shape[-2], x.shape[-1], k - 1, bool_), lib.zeros_like(x), x)


@op
def triu_indices(lib: Library, n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Rows and columns of the upper triangle, ready to index with: `x[triu_indices(n)]`.

    >>> [ops.to_numpy(i).tolist() for i in ops.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = np.triu_indices(n, k, m)
    return lib.from_numpy(rows), lib.from_numpy(columns)


@op
def tril_indices(lib: Library, n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Rows and columns of the lower triangle, ready to index with: `x[tril_indices(n)]`.

    >>> [ops.to_numpy(i).tolist() for i in ops.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = np.tril_indices(n, k, m)
    return lib.from_numpy(rows), lib.from_numpy(columns)


@op
def meshgrid(lib: Library, *xs: ArrayLike, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of a grid from the coordinates along each axis.

    >>> ops.meshgrid(np.arange(2), np.arange(1))
    [array([[0, 1]]), array([[0, 0]])]
    """
    arrays = [lib.ravel(lib.as_array(x)) for x in xs]
    lengths = tuple(a.shape[0] for a in arrays)
    count = len(arrays)
    grids = [
        lib.broadcast_to(lib.reshape(a, (1,) * i + (-1,) + (1,) * (count - 1 - i)), lengths)
        for i, a in enumerate(arrays)
    ]
    return [lib.swapaxes(g, 0, 1) for g in grids] if indexing == "xy" and count > 1 else grids


@op
def diag(lib: Library, x: ArrayLike, k: int = 0) -> Array:
    """The diagonal of a matrix, or the matrix with `x` on its diagonal.

    >>> ops.diag(np.array([1, 2]))
    array([[1, 0],
           [0, 2]])
    """
    x = lib.as_array(x)
    if len(x.shape) == 2:
        return lib.diagonal(x, k)
    size = x.shape[0] + abs(k)
    # Element i sits at (i, i + k): spread along columns for k >= 0, along rows below.
    spread = lib.pad(x, [(abs(k), 0)])
    spread = lib.reshape(spread, (1, -1) if k >= 0 else (-1, 1))
    return lib.where(lib.eye(size, k=k, dtype=bool_), spread, lib.zeros_like(spread))


@op
def diagonal(lib: Library, x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal of two axes, as the last axis of the result.

    >>> ops.diagonal(np.arange(4).reshape(2, 2))
    array([0, 3])
    """
    x = lib.moveaxis(lib.as_array(x), (axis1, axis2), (-2, -1))
    rows, columns = x.shape[-2:]
    places = np.eye(rows, columns, offset, dtype=bool).ravel().nonzero()[0]
    flat = lib.reshape(x, (*x.shape[:-2], rows * columns))
    return lib.take(flat, places, axis=-1)


@op
def to_numpy(lib: Library, x: ArrayLike) -> np.ndarray:
    """The values as a NumPy array on the host, dtype kept.

    >>> ops.to_numpy([1, 2])
    array([1, 2])
    """
    return lib.to_numpy(x)


@op
def stop_gradient(lib: Library, x: ArrayLike) -> Array:
    """`x`, seen as a constant by automatic differentiation.

    >>> ops.stop_gradient(np.ones(1))
    array([1.])
    """
    return lib.as_array(x)


@op
def is_tensor(lib: Library, x: Any) -> bool:
    """Whether `x` is an array of one of the libraries.

    >>> ops.is_tensor(np.ones(1)), ops.is_tensor([1.0])
    (True, False)
    """
    return lib.is_array(x)


@op
def result_type(lib: Library, *xs: ArrayLike) -> np.dtype[Any]:
    """The dtype in which the arguments meet.

    >>> ops.result_type(np.ones(1, "float32"), 2.5)
    dtype('float32')
    """
    return lib.dtype(lib.promote(*xs)[0])
