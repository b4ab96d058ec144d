"""Shapes, indices, sorting, products, devices and gradients."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from emberharmony.backends.mlx.base import (
    as_float,
    as_mlx,
    from_numpy,
    is_float,
    meet,
    native,
    to_numpy,
    values,
    widened,
)
from emberharmony.backends.numpy import arrays as host
from emberharmony.errors import UnsupportedOpError
from emberharmony.hosting import note_host_step
from emberharmony.typing import ArrayLike, Pairs, Shape

Array = mx.array


@native
def reshape(x: ArrayLike, newshape: int | Shape) -> Array:
    """Another shape; MLX infers no size for an array without elements."""
    x = as_mlx(x)
    sizes = [newshape] if isinstance(newshape, int) else [int(n) for n in newshape]
    if x.size == 0 and -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        if known == 0:
            raise ValueError(f"cannot infer a size of {tuple(sizes)} for no elements")
        sizes[sizes.index(-1)] = 0
    return mx.reshape(x, sizes)


@native
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Another order of axes."""
    return mx.transpose(as_mlx(x), None if axes is None else list(axes))


@native
def broadcast_to(x: ArrayLike, shape: Shape) -> Array:
    """Repeated."""
    return mx.broadcast_to(as_mlx(x), [int(n) for n in shape])


@native
def concatenate(xs: Sequence[ArrayLike], axis: int | None = 0) -> Array:
    """Joined."""
    return mx.concatenate(meet(*(as_mlx(x) for x in xs)), axis=axis)


@native
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Elements at indices, which are within the axis."""
    x = as_mlx(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return mx.take(x, mx.stop_gradient(as_mlx(indices)), axis=along)


@native
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Elements an index array points at."""
    x = as_mlx(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return mx.take_along_axis(x, mx.stop_gradient(as_mlx(indices)), axis=along)


_AT = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
_BOOL = {"add": "max", "mul": "min"}


@native
def index_put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, mode: str | None = None) -> Array:
    """Rows replaced or combined, in a copy."""
    x = mx.array(as_mlx(x))
    places, new = mx.stop_gradient(as_mlx(indices)), as_mlx(values)
    if mode is None:
        x[places] = new
        return x
    if x.dtype == mx.bool_:
        done = index_put(x.astype(mx.uint8), places, new.astype(mx.uint8), _BOOL.get(mode, mode))
        return done.astype(mx.bool_)
    return getattr(x.at[places], _AT[mode])(new)


@native
def slice_update(x: ArrayLike, start_indices: Sequence[int], updates: ArrayLike) -> Array:
    """A block replaced, in a copy."""
    x, new = mx.array(as_mlx(x)), as_mlx(updates)
    key = (slice(int(s), int(s) + n) for s, n in zip(start_indices, new.shape, strict=True))
    x[tuple(key)] = new.astype(x.dtype)
    return x


@native
def nonzero(x: ArrayLike) -> tuple[Array, ...]:
    """Places of elements that are not 0, found on the host: MLX has no shapes that depend on data."""
    note_host_step()
    return tuple(from_numpy(part) for part in np.nonzero(np.atleast_1d(to_numpy(as_mlx(x)))))


@native
def argsort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Stable order; backwards it is the order of the reversed array, so that ties keep theirs."""
    x = as_mlx(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    if not descending:
        return mx.argsort(x, axis=along).astype(mx.int64)
    order = mx.argsort(mx.flip(x, along), axis=along).astype(mx.int64)
    return x.shape[along] - 1 - mx.flip(order, along)


@native
def sort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Sorted."""
    x = as_mlx(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    ordered = mx.sort(x, axis=along)
    return mx.flip(ordered, along) if descending else ordered


@native
def searchsorted(sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> Array:
    """Where values belong, found on the host."""
    note_host_step()
    line, wanted = (to_numpy(v) for v in meet(sorted_sequence, values))
    return from_numpy(host.searchsorted(line, wanted, side))


@native
def matmul(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Matrix product; MLX has none for integers, which are multiplied on the host."""
    x1, x2 = meet(x1, x2)
    if mx.issubdtype(x1.dtype, mx.inexact):
        return mx.matmul(x1, x2)
    note_host_step()
    return from_numpy(host.matmul(to_numpy(x1), to_numpy(x2)))


@native
def einsum(subscripts: str, *operands: ArrayLike) -> Array:
    """Sums of products; of integers on the host."""
    arrays = meet(*operands)
    if mx.issubdtype(arrays[0].dtype, mx.inexact):
        wide = (widened(a) for a in arrays)
        return mx.einsum(subscripts.replace(" ", ""), *wide).astype(arrays[0].dtype)
    note_host_step()
    return from_numpy(host.einsum(subscripts, *(to_numpy(a) for a in arrays)))


def _fourier(name: str, x: ArrayLike, *options: Any) -> Array:
    """A Fourier transform in complex64, the only complex type of MLX.

    NumPy computes it, whose sums are closer to the truth; MLX's own gives the gradient, and serves inside `mx.compile`.
    """
    x = as_float(x)
    if x.dtype == mx.float64:
        raise UnsupportedOpError(f"{name} of float64", "mlx", "cast it to float32, or use numpy")
    wide = widened(x)

    def transform(a: mx.array) -> mx.array:
        return getattr(mx.fft, name)(a, *options)

    if values(wide) is None:
        return transform(wide)
    note_host_step()
    hosted: Any = mx.custom_function(lambda a: from_numpy(getattr(np.fft, name)(to_numpy(a), *options)))
    hosted.vjp(lambda primal, gradient, _: mx.vjp(transform, [primal], [gradient])[1][0])
    return hosted(wide)


@native
def fft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Fourier transform."""
    return _fourier("fft", x, n, axis)


@native
def ifft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Inverse Fourier transform."""
    return _fourier("ifft", x, n, axis)


@native
def rfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Fourier transform of real numbers."""
    return _fourier("rfft", x, n, axis)


@native
def irfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Inverse of rfft."""
    return _fourier("irfft", x, n, axis)


@native
def fft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Array:
    """Fourier transform over two axes."""
    return _fourier("fft2", x, s, axes)


@native
def ifft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Array:
    """Inverse of fft2."""
    return _fourier("ifft2", x, s, axes)


@native
def conv(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Convolution: MLX's own, with channels last, where it has one, else the default body."""
    from emberharmony.declared import DECLARED
    from emberharmony.library import library
    from emberharmony.ops.nn import fits, pad_pairs, per_axis

    x, w = meet(x, w)
    count = x.ndim - 2
    pairs = pad_pairs(padding, count)
    # MLX convolves neither float64 nor, in groups, volumes, and says so only when evaluated.
    most = 0 if x.dtype == mx.float64 else 3 if groups == 1 else 2
    known = is_float(x) and 1 <= count <= most and x.size and w.size
    known = known and w.ndim == x.ndim and fits(x, w.shape[2:], pairs, per_axis(dilation, count))
    if not known or any(n < 0 for pair in pairs for n in pair):
        return DECLARED["conv"](library("mlx"), x, w, strides, padding, dilation, groups)
    done = mx.conv_general(
        mx.moveaxis(widened(x), 1, -1),
        mx.moveaxis(widened(w), 1, -1),
        stride=per_axis(strides, count),
        padding=([a for a, _ in pairs], [b for _, b in pairs]),
        kernel_dilation=per_axis(dilation, count),
        groups=groups,
    )
    return mx.moveaxis(done, -1, 1).astype(x.dtype)


@native
def get_available_devices() -> list[str]:
    """The processor, and the GPU where there is one."""
    return ["cpu", "gpu"] if mx.is_available(mx.Device(mx.gpu)) else ["cpu"]


@native
def get_device(x: ArrayLike | None = None) -> str:  # noqa: ARG001
    """MLX arrays live in memory that all devices share: the device that computes."""
    return mx.default_device().type.name


@native
def memory_usage(device: str | None = None) -> dict[str, int]:  # noqa: ARG001
    """Bytes in use by MLX, and kept for later."""
    held = mx.get_active_memory()
    return {"allocated": max(held, 1), "reserved": held + mx.get_cache_memory()}


@native
def gradients(target: Callable[..., Array] | Array, xs: Any) -> Any:
    """Gradients of a function; MLX keeps no graph behind an array."""
    if isinstance(target, Array):
        raise UnsupportedOpError("gradients of an array", "mlx", "give the function instead")
    function = target
    single = isinstance(xs, Array)
    arrays = [xs] if single else [as_float(x) for x in xs]

    def total(*values: Array) -> Array:
        return mx.sum(function(*values))

    # MLX gives a bare array, not a tuple, for a single argument.
    try:
        found = mx.grad(total, argnums=list(range(len(arrays))))(*arrays)
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise UnsupportedOpError("the gradient of an operation", "mlx", f"MLX says {error}; use torch") from error
    parts = [found] if isinstance(found, Array) else list(found)
    return parts[0] if single else parts
