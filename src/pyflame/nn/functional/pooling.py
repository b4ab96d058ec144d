"""Windows made into one number each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.nn.functional.windows import batched, sizes, symmetric_pads, unbatched
from pyflame.ops.arithmetic import div
from pyflame.ops.core import call, call_many, cast, rounded_once
from pyflame.ops.creation import arange
from pyflame.ops.linalg import matmul
from pyflame.ops.shaping import cat, pad
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import AveragePool, GlobalAveragePool

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]

Sizes: TypeAlias = int | Sequence[int]


def _settings(rank: int, kernel: Sizes, stride: Sizes | None, padding: Sizes) -> dict[str, Any]:
    shape = sizes(kernel, rank, "kernel_size")
    pads = symmetric_pads(padding, rank)
    if any(2 * p > k for p, k in zip(pads, shape * 2, strict=True)):
        raise ValueError(
            f"pad should be at most half of kernel size. Received: padding={padding}, kernel_size={kernel}"
        )
    strides = shape if stride is None or stride == () else sizes(stride, rank, "stride")
    return {"kernel_shape": shape, "strides": strides, "pads": pads}


def _fits(x: Any, kernel: Sequence[int], pads: Sequence[int], dilations: Sequence[int] | None = None) -> None:
    """Refuse windows larger than the padded input, as torch does; the operator takes them, as onnxruntime does."""
    for n, k, p, d in zip(x.shape[2:], kernel, pads, dilations or (1,) * len(kernel), strict=False):
        if (k - 1) * d + 1 > n + 2 * p:
            raise ShapeMismatchError(
                f"a window of {(k - 1) * d + 1} does not fit into {n + 2 * p}, the size of the input with its padding. "
                f"Received: {list(x.shape)}"
            )


def _max_pool(
    rank: int,
    input: Any,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    x, had_batch = batched(input, rank + 2, f"max_pool{rank}d")
    settings = _settings(rank, kernel, stride, padding)
    settings |= {"dilations": sizes(dilation, rank, "dilation"), "ceil_mode": int(ceil_mode)}
    if not ceil_mode:
        _fits(x, settings["kernel_shape"], settings["pads"], settings["dilations"])
    if not return_indices:
        return unbatched(call(MaxPool, x, **settings), had_batch)
    y, places = call_many(MaxPool, x, **settings)
    # ONNX counts through the whole tensor, torch within each plane.
    return unbatched(y, had_batch), unbatched(places % math.prod(x.shape[2:]), had_batch)


@names_arguments
def max_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of [N, C, L]; with `return_indices` also where it was.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.max_pool1d(pf.tensor([[[1.0, 3.0, 2.0, 5.0]]]), 2).numpy().tolist()
        [[[3.0, 5.0]]]
    """
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of [N, C, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.max_pool2d(pf.arange(16.0).reshape([1, 1, 4, 4]), 2).numpy().ravel().tolist()
        [5.0, 7.0, 13.0, 15.0]
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@names_arguments
def max_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window of [N, C, D, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.max_pool3d(pf.ones([1, 1, 2, 2, 2]), 2).shape
        [1, 1, 1, 1, 1]
    """
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@rounded_once
def _avg_pool(
    rank: int,
    input: Any,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Tensor:
    x, had_batch = batched(input, rank + 2, f"avg_pool{rank}d")
    settings = _settings(rank, kernel, stride, padding)
    if not ceil_mode:
        _fits(x, settings["kernel_shape"], settings["pads"])
    if divisor is not None:
        if divisor == 0:
            raise ValueError("divisor_override must not be zero")
        if ceil_mode:
            settings["pads"] = _reached(x.shape[2:], **settings)
        if not x.dtype.is_floating_point:
            return unbatched(div(_window_sums(x, **settings), divisor, rounding_mode="trunc"), had_batch)
        means = call(AveragePool, x, **settings, count_include_pad=1)
        return unbatched(means * (math.prod(settings["kernel_shape"]) / divisor), had_batch)
    settings |= {"ceil_mode": int(ceil_mode), "count_include_pad": int(count_include_pad)}
    if x.dtype.is_floating_point:
        y = call(AveragePool, x, **settings)
    else:  # cut off after the point, wherever a mean that is a whole number was rounded to
        y = call(AveragePool, cast(x, DType.float64), **settings)
        y = cast(y + y.sign() * (0.25 / math.prod(settings["kernel_shape"])), x.dtype)
    if x.numel == 0:
        y = x.reshape(list(y.shape))  # no windows of no images: nothing to add up, nor gradients to spread
    return unbatched(y, had_batch)


def _window_sums(x: Tensor, kernel_shape: Any, strides: Any, pads: Any) -> Tensor:
    """Sums of windows, tap by tap: exact for integers."""
    rank = len(kernel_shape)
    wide = pad(x, [p for axis in reversed(range(rank)) for p in (pads[axis], pads[rank + axis])])
    counts = [(n - k) // s + 1 for n, k, s in zip(wide.shape[2:], kernel_shape, strides, strict=True)]
    total = None
    for taps in itertools.product(*map(range, kernel_shape)):
        ends = [t + s * (c - 1) + 1 for t, s, c in zip(taps, strides, counts, strict=True)]
        place = tuple(slice(t, e, s) for t, e, s in zip(taps, ends, strides, strict=True))
        piece = wide[(slice(None), slice(None), *place)]
        total = piece if total is None else total + piece
    assert total is not None
    return total


def _reached(spatial: Sequence[int], kernel_shape: Any, strides: Any, pads: Any) -> tuple[int, ...]:
    """Pads as far as windows go when the last may begin anywhere in the input or the padding before it."""
    rank = len(spatial)
    ends = []
    for n, k, s, p in zip(spatial, kernel_shape, strides, pads[:rank], strict=True):
        count = -(-(n + 2 * p - k) // s) + 1
        if (count - 1) * s >= n + p:
            count -= 1
        ends.append(max((count - 1) * s + k - n - p, 0))
    return (*pads[:rank], *ends)


@names_arguments
def avg_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of [N, C, L].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.avg_pool1d(pf.tensor([[[1.0, 3.0, 2.0, 4.0]]]), 2).numpy().tolist()
        [[[2.0, 3.0]]]
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of [N, C, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.avg_pool2d(pf.ones([1, 1, 2, 2]), 2).numpy().item()
        1.0
    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@names_arguments
def avg_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of [N, C, D, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.avg_pool3d(pf.ones([1, 1, 2, 2, 2]), 2).numpy().item()
        1.0
    """
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@rounded_once
def _lp_pool(rank: int, input: Any, norm_type: float, kernel: Sizes, stride: Sizes | None, ceil_mode: bool) -> Tensor:
    powers = _avg_pool(rank, input**norm_type, kernel, stride, 0, ceil_mode, True)
    count = math.prod(sizes(kernel, rank, "kernel_size"))
    return (powers.sign() * powers.abs().relu() * count) ** (1.0 / norm_type)


@names_arguments
def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of [N, C, L].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.lp_pool1d(pf.tensor([[[3.0, 4.0]]]), 2, 2).numpy().tolist()
        [[[5.0]]]
    """
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@names_arguments
def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of [N, C, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.lp_pool2d(pf.ones([1, 1, 2, 2]), 2, 2).numpy().item()
        2.0
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@names_arguments
def lp_pool3d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window of [N, C, D, H, W].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.lp_pool3d(pf.ones([1, 1, 2, 2, 2]), 3, 2).numpy().item()
        2.0
    """
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of `count` windows over `size` elements begins and ends."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _targets(x: Tensor, output_size: Any, rank: int) -> tuple[int, ...]:
    listed = (output_size,) * rank if isinstance(output_size, int) or output_size is None else tuple(output_size)
    if len(listed) != rank:
        raise ValueError(f"output_size must be one number or {rank}. Received: {output_size!r}")
    return tuple(int(have) if want is None else int(want) for have, want in zip(x.shape[2:], listed, strict=True))


@rounded_once
def _adaptive_avg(rank: int, input: Any, output_size: Any) -> Tensor:
    x, had_batch = batched(input, rank + 2, f"adaptive_avg_pool{rank}d")
    want, have = _targets(x, output_size, rank), tuple(x.shape[2:])
    if all(w == 1 for w in want):
        return unbatched(call(GlobalAveragePool, x), had_batch)
    if all(w and h % w == 0 for h, w in zip(have, want, strict=True)):
        kernel = tuple(h // w for h, w in zip(have, want, strict=True))
        return unbatched(call(AveragePool, x, kernel_shape=kernel, strides=kernel), had_batch)
    for axis, (h, w) in enumerate(zip(have, want, strict=True), start=2):
        if h != w:
            table = np.zeros((h, w), x.dtype.numpy)
            for i, (a, b) in enumerate(_bins(h, w)):
                table[a:b, i] = 1 / (b - a)
            x = matmul(x.movedim(axis, -1), adopt(table)).movedim(-1, axis)
    return unbatched(x, had_batch)


@names_arguments
def adaptive_avg_pool1d(input: Any, output_size: Any) -> Tensor:
    """Means over windows chosen so that the result has the wanted size.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_avg_pool1d(pf.arange(6.0).reshape([1, 1, 6]), 2).numpy().tolist()
        [[[1.0, 4.0]]]
    """
    return _adaptive_avg(1, input, output_size)


@names_arguments
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Tensor:
    """Means over windows chosen so that the result has the wanted size; None keeps a size.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_avg_pool2d(pf.ones([1, 2, 7, 5]), (3, None)).shape
        [1, 2, 3, 5]
    """
    return _adaptive_avg(2, input, output_size)


@names_arguments
def adaptive_avg_pool3d(input: Any, output_size: Any) -> Tensor:
    """Means over windows chosen so that the result has the wanted size.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_avg_pool3d(pf.ones([1, 2, 4, 4, 4]), 2).shape
        [1, 2, 2, 2, 2]
    """
    return _adaptive_avg(3, input, output_size)


def _adaptive_max(rank: int, input: Any, output_size: Any, return_indices: bool) -> Any:
    x, had_batch = batched(input, rank + 2, f"adaptive_max_pool{rank}d")
    want, have = _targets(x, output_size, rank), tuple(x.shape[2:])
    if all(w and h % w == 0 for h, w in zip(have, want, strict=True)):
        kernel = tuple(h // w for h, w in zip(have, want, strict=True))
        return _max_pool(rank, input, kernel, kernel, 0, 1, False, return_indices)
    if not all(want):
        empty = x.reshape([-1])[:0].reshape([*x.shape[:2], *want])
        return (
            (unbatched(empty, had_batch), unbatched(empty.long(), had_batch))
            if return_indices
            else (unbatched(empty, had_batch))
        )
    places = _first_maxima(x, want)
    lead = list(x.shape[:2])
    y = x.reshape([*lead, -1]).gather(-1, places.reshape([*lead, -1])).reshape([*lead, *want])
    return (unbatched(y, had_batch), unbatched(places, had_batch)) if return_indices else unbatched(y, had_batch)


def _first_maxima(x: Tensor, want: Sequence[int]) -> Tensor:
    """Where in its plane each window has its first maximum; the last axis goes first, so that ties go row by row."""
    have = x.shape[2:]
    with no_grad():
        values = x.detach()
        places = arange(math.prod(have), dtype=DType.int64).reshape([1, 1, *have]).expand(list(x.shape))
        for axis in range(len(have) + 1, 1, -1):
            tops, found = [], []
            for a, b in _bins(values.shape[axis], want[axis - 2]):
                piece, part = values.narrow(axis, a, b - a), places.narrow(axis, a, b - a)
                best = piece.argmax(dim=axis, keepdim=True)
                tops.append(piece.gather(axis, best))
                found.append(part.gather(axis, best))
            values, places = cat(tops, dim=axis), cat(found, dim=axis)
    return places


@names_arguments
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Largest values of windows chosen so that the result has the wanted size; with `return_indices` also where.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_max_pool1d(pf.arange(6.0).reshape([1, 1, 6]), 2).numpy().tolist()
        [[[2.0, 5.0]]]
    """
    return _adaptive_max(1, input, output_size, return_indices)


@names_arguments
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Largest values of windows chosen so that the result has the wanted size; with `return_indices` also where.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_max_pool2d(pf.ones([1, 2, 7, 5]), 3).shape
        [1, 2, 3, 3]
    """
    return _adaptive_max(2, input, output_size, return_indices)


@names_arguments
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Largest values of windows chosen so that the result has the wanted size; with `return_indices` also where.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.adaptive_max_pool3d(pf.ones([1, 2, 4, 4, 4]), 2).shape
        [1, 2, 2, 2, 2]
    """
    return _adaptive_max(3, input, output_size, return_indices)
