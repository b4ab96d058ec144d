"""Largest values put back where they came from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame.nn.functional.windows import batched, sizes, unbatched
from pyflame.ops.creation import zeros
from pyflame.ops.gathering import scatter
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

    Sizes: TypeAlias = int | Sequence[int]

__all__ = ["max_unpool1d", "max_unpool2d", "max_unpool3d"]


def _wanted(rank: int, have: Sequence[int], kernel: Any, stride: Any, padding: Any, output_size: Any) -> list[int]:
    """Sizes of the result: those that pooling most likely had, or the given ones where they are possible."""
    shape = sizes(kernel, rank, "kernel_size")
    steps = shape if stride is None or stride == () else sizes(stride, rank, "stride")
    pads = sizes(padding, rank, "padding")
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(have, steps, pads, shape, strict=True)]
    if output_size is None:
        return usual
    given = [int(n) for n in output_size][-rank:]
    if len(given) != rank:
        raise ValueError(f"output_size must hold {rank} sizes. Received: {output_size!r}")
    for got, size, step in zip(given, usual, steps, strict=True):
        if not size - step < got < size + step:
            raise ValueError(
                f"output_size {given} is impossible: each size lies less than a stride from {usual}, strides {steps}"
            )
    return given


def _unpool(
    rank: int, input: Any, indices: Any, kernel: Sizes, stride: Sizes | None, padding: Sizes, output_size: Any
) -> Tensor:
    name = f"max_unpool{rank}d"
    x, had_batch = batched(input, rank + 2, name)
    places, _ = batched(indices, rank + 2, name)
    if list(places.shape) != list(x.shape):
        raise ShapeMismatchError(f"{name}: input of shape {list(x.shape)}, indices of shape {list(places.shape)}")
    wanted = _wanted(rank, x.shape[2:], kernel, stride, padding, output_size)
    lead = list(x.shape[:2])
    empty = zeros([*lead, math.prod(wanted)], dtype=x.dtype)
    flat = scatter(empty, -1, places.reshape([*lead, -1]), x.reshape([*lead, -1]))
    return unbatched(flat.reshape([*lead, *wanted]), had_batch)


@names_arguments
def max_unpool1d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The largest values of windows of [N, C, L] where `max_pool1d` found them, zeros elsewhere.

    Example:
        >>> import pyflame as pf
        >>> y, places = pf.nn.functional.max_pool1d(pf.tensor([[[1.0, 3.0, 2.0, 5.0]]]), 2, return_indices=True)
        >>> pf.nn.functional.max_unpool1d(y, places, 2).numpy().tolist()
        [[[0.0, 3.0, 0.0, 5.0]]]
    """
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


@names_arguments
def max_unpool2d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The largest values of windows of [N, C, H, W] where `max_pool2d` found them, zeros elsewhere.

    Example:
        >>> import pyflame as pf
        >>> x = pf.arange(4.0).reshape([1, 1, 2, 2])
        >>> y, places = pf.nn.functional.max_pool2d(x, 2, return_indices=True)
        >>> pf.nn.functional.max_unpool2d(y, places, 2).numpy().tolist()
        [[[[0.0, 0.0], [0.0, 3.0]]]]
    """
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


@names_arguments
def max_unpool3d(
    input: Any,
    indices: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The largest values of windows of [N, C, D, H, W] where `max_pool3d` found them, zeros elsewhere.

    Example:
        >>> import pyflame as pf
        >>> y, places = pf.nn.functional.max_pool3d(pf.ones([1, 1, 2, 2, 2]), 2, return_indices=True)
        >>> pf.nn.functional.max_unpool3d(y, places, 2).sum().item()
        1.0
    """
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)
