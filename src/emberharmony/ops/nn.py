"""Convolution and pooling over [batch, channels, *space], for any number of space axes."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from emberharmony.dtypes import compute_dtype, highest, lowest
from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import Array, ArrayLike, Pairs


def per_axis(value: int | Sequence[int], count: int, least: int = 1) -> list[int]:
    """One number for each space axis, at least `least`.

    >>> per_axis(2, 3)
    [2, 2, 2]
    """
    made = [value] * count if isinstance(value, int) else [int(v) for v in value]
    if len(made) != count or any(v < least for v in made):
        raise ValueError(f"{count} numbers of at least {least} are needed, received {value}")
    return made


def pad_pairs(padding: int | Pairs, count: int) -> list[tuple[int, int]]:
    """One (before, after) pair for each space axis.

    >>> pad_pairs(1, 2)
    [(1, 1), (1, 1)]
    """
    if isinstance(padding, int):
        return [(padding, padding)] * count
    return [(p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in padding]


def _pad_space(lib: Library, x: Array, pairs: Pairs, value: Any = 0) -> Array:
    """Padding of the space axes, where a negative width cuts."""
    if all(a == b == 0 for a, b in pairs):
        return x
    lead = len(x.shape) - len(pairs)
    grown = lib.pad(x, [(0, 0)] * lead + [(max(a, 0), max(b, 0)) for a, b in pairs], "constant", value)
    if all(a >= 0 and b >= 0 for a, b in pairs):
        return grown
    key = [slice(None)] * lead
    key += [slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, grown.shape[lead:], strict=True)]
    return grown[tuple(key)]


def fits(x: Array, window: Sequence[int], pairs: Pairs, dilation: Sequence[int]) -> bool:
    """Whether a window fits at least once along every space axis."""
    sizes = x.shape[len(x.shape) - len(window) :]
    parts = zip(sizes, window, pairs, dilation, strict=True)
    return all(size + before + after >= (width - 1) * apart + 1 for size, width, (before, after), apart in parts)


def _steps(size: int, window: int, stride: int, dilation: int) -> int:
    """How many windows fit."""
    return max((size - (window - 1) * dilation - 1) // stride + 1, 0)


def _tap(x: Array, axis: int, offset: int, stride: int, count: int) -> Array:
    """The elements that one place of a sliding window meets, along one axis."""
    key = [slice(None)] * len(x.shape)
    key[axis] = slice(offset, offset + (count - 1) * stride + 1 if count else offset, stride)
    return x[tuple(key)]


def _columns(lib: Library, x: Array, window: Sequence[int], strides: list[int], dilation: list[int]) -> Array:
    """All windows of `x` as [batch, channels, *window, *places]."""
    count = len(window)
    for i, width in enumerate(window):
        axis = len(x.shape) - count + i
        fit = _steps(x.shape[axis], width, strides[i], dilation[i])
        taps = [_tap(x, axis, t * dilation[i], strides[i], fit) for t in range(width)]
        x = lib.expand_dims(taps[0], 2 + i) if width == 1 else lib.stack(taps, axis=2 + i)
    return x


@op
def conv(  # noqa: D417
    lib: Library,
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Convolution (not flipped) of [N, C, *space] with [M, C / groups, *window].

    Args:
        x: The images.
        w: The weights.
        strides: Distance between windows, one for all axes or one each.
        padding: Zeros around: a number, or a (before, after) pair for each axis.
        dilation: Distance between the elements of a window.
        groups: Number of separate groups of channels.

    >>> ops.conv(np.ones((1, 1, 3)), np.ones((1, 1, 2)))
    array([[[2., 2.]]])
    """
    x, w = lib.promote(x, w)
    answer = lib.dtype(x)
    # NumPy is the oracle: BLAS rounds differently at the edges of its tiles, doubles hide that.
    wide = "float64" if lib.name == "numpy" and answer == "float32" else compute_dtype(answer)
    x, w = (lib.cast(v, wide) for v in (x, w))
    count = len(w.shape) - 2
    x = _pad_space(lib, x, pad_pairs(padding, count))
    columns = _columns(lib, x, w.shape[2:], per_axis(strides, count), per_axis(dilation, count))
    space = columns.shape[2 + count :]
    depth = w.shape[1] * math.prod(w.shape[2:])
    columns = lib.reshape(columns, (x.shape[0], groups, depth, math.prod(space)))
    weights = lib.reshape(w, (groups, w.shape[0] // groups, depth))
    result = lib.matmul(weights, columns)
    return lib.cast(lib.reshape(result, (x.shape[0], w.shape[0], *space)), answer)


def _spread(lib: Library, x: Array, axis: int, stride: int) -> Array:
    """Zeros between the elements along an axis."""
    if stride == 1 or x.shape[axis] == 0:
        return x
    shape = list(x.shape)
    wide = lib.pad(
        lib.expand_dims(x, axis + 1), [(0, stride - 1 if i == axis + 1 else 0) for i in range(len(shape) + 1)]
    )
    shape[axis] *= stride
    flat = lib.reshape(wide, shape)
    key = [slice(None)] * len(shape)
    key[axis] = slice(0, shape[axis] - stride + 1)
    return flat[tuple(key)]


def _scattered(lib: Library, x: Array, w: Array, strides: list[int], dilation: list[int], groups: int) -> Array:
    """Transposed convolution by its definition: what each place of the window makes of `x` is put where it belongs."""
    answer, window, space = lib.dtype(x), w.shape[2:], x.shape[2:]
    x, w = (lib.cast(v, compute_dtype(answer)) for v in (x, w))
    count, depth = len(window), w.shape[0] // groups
    columns = lib.reshape(x, (x.shape[0], groups, depth, math.prod(space)))
    weights = lib.swapaxes(lib.reshape(w, (groups, depth, w.shape[1], *window)), 1, 2)
    result = None
    for place in itertools.product(*map(range, window)):
        part = lib.matmul(weights[(..., *place)], columns)
        part = lib.reshape(part, (x.shape[0], groups * w.shape[1], *space))
        for i, stride in enumerate(strides):
            part = _spread(lib, part, 2 + i, stride)
        ends = zip(place, window, dilation, strict=True)
        part = _pad_space(lib, part, [(at * by, (size - 1 - at) * by) for at, size, by in ends])
        result = part if result is None else lib.add(result, part)
    assert result is not None, f"a window of {count} axes has a place"
    return lib.cast(result, answer)


@op
def conv_transpose(
    lib: Library,
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Transposed convolution of [N, C, *space] with [C, M / groups, *window].

    The gradient of `conv` towards its images: padding cuts the result, output padding adds at
    the end of it.

    >>> ops.conv_transpose(np.ones((1, 1, 2)), np.ones((1, 1, 2)))
    array([[[1., 2., 1.]]])
    """
    x, w = lib.promote(x, w)
    count = len(w.shape) - 2
    window, by = w.shape[2:], per_axis(dilation, count)
    if not bool(lib.all(lib.isfinite(w))):  # a zero between the elements is none to a weight that is not finite
        ends = zip(pad_pairs(padding, count), per_axis(output_padding, count, 0), strict=True)
        cut = [(-before, extra - after) for (before, after), extra in ends]
        return _pad_space(lib, _scattered(lib, x, w, per_axis(strides, count), by, groups), cut)
    for i, stride in enumerate(per_axis(strides, count)):
        x = _spread(lib, x, 2 + i, stride)
    # [C, M/g, *k] becomes [M, C/g, *k] with every window reversed.
    shape = (groups, w.shape[0] // groups, w.shape[1], *window)
    turned = lib.swapaxes(lib.reshape(w, shape), 1, 2)
    turned = lib.reshape(turned, (groups * w.shape[1], w.shape[0] // groups, *window))
    turned = lib.flip(turned, list(range(2, 2 + count))) if count else turned
    more = per_axis(output_padding, count, 0)
    pairs = [
        ((k - 1) * d - before, (k - 1) * d - after + extra)
        for k, d, (before, after), extra in zip(window, by, pad_pairs(padding, count), more, strict=True)
    ]
    x = _pad_space(lib, x, pairs)
    return lib.conv(x, turned, 1, 0, by, groups)


_FOLDS = {"max": "maximum", "min": "minimum", "sum": "add"}


@op
def reduce_window(  # noqa: D417
    lib: Library,
    x: ArrayLike,
    window: Sequence[int],
    strides: int | Sequence[int] = 1,
    dilations: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    kind: str = "max",
    init: Any = None,
) -> Array:
    """Fold every window over the last axes of `x` into one element.

    Args:
        x: The array; the axes before the window's are kept.
        window: Sizes of the window.
        strides: Distance between windows.
        dilations: Distance between the elements of a window.
        padding: A number, or a (before, after) pair for each window axis.
        kind: "max", "min" or "sum".
        init: The value of padding; by default the one that changes nothing.

    >>> ops.reduce_window(np.arange(4), [2], kind="sum")
    array([1, 3, 5])
    """
    if kind not in _FOLDS:
        raise ValueError(f"kind is one of {', '.join(_FOLDS)}, received {kind!r}")
    x = lib.as_array(x)
    answer, count = lib.dtype(x), len(window)
    neutral = {"max": lowest, "min": highest, "sum": lambda _: 0}[kind](answer)
    x = _pad_space(lib, x, pad_pairs(padding, count), neutral if init is None else init)
    if kind == "sum":
        x = lib.cast(x, compute_dtype(answer))
    fold = getattr(lib, _FOLDS[kind])
    # A box window folds one axis at a time: kh + kw steps instead of kh * kw.
    by, apart = per_axis(strides, count), per_axis(dilations, count)
    for i, width in enumerate(window):
        axis = len(x.shape) - count + i
        fit = _steps(x.shape[axis], width, by[i], apart[i])
        # A window that fits nowhere gives nothing, however wide it is.
        taps = [_tap(x, axis, t * apart[i], by[i], fit) for t in range(width if fit > 0 else 1)]
        x = taps[0]
        for other in taps[1:]:
            x = fold(x, other)
    return lib.cast(x, answer)


@op
def max_pool(
    lib: Library,
    x: ArrayLike,
    kernel: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: int | Pairs = 0,
    dilation: int | Sequence[int] = 1,
) -> Array:
    """Largest element of every window of [N, C, *space]; strides default to the window.

    >>> ops.max_pool(np.arange(4.0).reshape(1, 1, 4), [2])
    array([[[1., 3.]]])
    """
    return lib.reduce_window(x, kernel, list(kernel) if strides is None else strides, dilation, padding, "max")


@op
def average_pool(
    lib: Library,
    x: ArrayLike,
    kernel: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: int | Pairs = 0,
    count_include_pad: bool = False,
) -> Array:
    """Mean of every window of [N, C, *space]; strides default to the window.

    >>> ops.average_pool(np.arange(4.0).reshape(1, 1, 4), [2])
    array([[[0.5, 2.5]]])
    """
    (x,) = lib.promote_float(x)
    answer = lib.dtype(x)
    x = lib.cast(x, compute_dtype(answer))
    by = list(kernel) if strides is None else strides
    total = lib.reduce_window(x, kernel, by, 1, padding, "sum")
    if count_include_pad:
        return lib.cast(lib.divide(total, math.prod(kernel)), answer)
    ones = lib.ones(x.shape[-len(kernel) :], lib.dtype(x))
    return lib.cast(lib.divide(total, lib.reduce_window(ones, kernel, by, 1, padding, "sum")), answer)
