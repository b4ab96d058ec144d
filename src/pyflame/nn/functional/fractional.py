"""Pooling by windows at places that chance chooses, for outputs of any size below the input's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.nn.functional.windows import batched, sizes, unbatched
from pyflame.ops.core import cast
from pyflame.ops.creation import arange, full
from pyflame.ops.gathering import gather
from pyflame.ops.pointwise import floor
from pyflame.ops.reduction import argmax
from pyflame.ops.shaping import cat
from pyflame.random import rand
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

    Sizes: TypeAlias = int | Sequence[int]
    Ratios: TypeAlias = float | Sequence[float]

__all__ = ["check_output", "fractional_max_pool2d", "fractional_max_pool3d", "ratios"]


def ratios(value: Ratios, count: int) -> tuple[float, ...]:
    """`count` numbers between 0 and 1, from one for all or one for each."""
    listed = (float(value),) * count if isinstance(value, int | float) else tuple(float(v) for v in value)
    if len(listed) != count or not all(0 < v < 1 for v in listed):
        raise ValueError(f"output_ratio must be one number between 0 and 1, or {count}. Received: {value!r}")
    return listed


def check_output(name: str, output_size: Any, output_ratio: Any) -> None:
    """Just one of the two says how large the output is."""
    if (output_size is None) is (output_ratio is None):
        both = "only one of them" if output_size is not None else "one of them"
        raise ValueError(f"{name} takes output_size or output_ratio: give {both}")


def _wanted(rank: int, have: Sequence[int], kernel: Sequence[int], output_size: Any, output_ratio: Any) -> list[int]:
    """The sizes of the output, if windows of that size fit."""
    name = f"fractional_max_pool{rank}d"
    check_output(name, output_size, output_ratio)
    if output_size is None:
        wanted = [int(size * ratio) for size, ratio in zip(have, ratios(output_ratio, rank), strict=True)]
    else:
        wanted = list(sizes(output_size, rank, "output_size"))
    for size, k, out in zip(have, kernel, wanted, strict=True):
        if k < 1 or out < 1 or out + k - 1 > size:
            raise ShapeMismatchError(
                f"{name}: {out} windows of {k} do not fit into {size}: it takes at least one window of at least one "
                f"element, and kernel + output - 1 at most {size}. Received: input {list(have)}"
            )
    return wanted


def _starts(sample: Tensor, size: int, kernel: int, count: int) -> Tensor:
    """Where the windows of each plane begin: in steps of two lengths that chance mixes, the last at the end."""
    last = full([*sample.shape, 1], size - kernel, dtype=DType.int64)
    if count == 1:
        return last
    step = (size - kernel) / (count - 1)
    places = arange(count - 1, dtype=sample.dtype) + sample.unsqueeze(-1)
    moved = floor(places * step) - floor(sample.unsqueeze(-1) * step)
    return cat([cast(moved, DType.int64), last], dim=-1)


def _places(samples: Tensor, have: Sequence[int], kernel: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """For each window of each plane the places of its elements, as [N, C, windows, elements]."""
    rank = len(have)
    # torch draws for the width first where there are two dimensions, for the depth where there are three.
    order = (1, 0) if rank == 2 else (0, 1, 2)
    total: Any = 0
    for dim, (size, k, count) in enumerate(zip(have, kernel, wanted, strict=True)):
        starts = _starts(samples[:, :, order[dim]], size, k, count)
        inside = starts.unsqueeze(-1) + arange(k, dtype=DType.int64)
        shape = [*starts.shape[:2], *[1] * (2 * rank)]
        shape[2 + dim], shape[2 + rank + dim] = count, k
        total = total + inside.reshape(shape) * math.prod(have[dim + 1 :])
    return total.reshape([*samples.shape[:2], math.prod(wanted), math.prod(kernel)])


def _fractional_max_pool(
    rank: int, input: Any, kernel_size: Sizes, output_size: Any, output_ratio: Any, return_indices: bool, samples: Any
) -> Any:
    x, had_batch = batched(input, rank + 2, f"fractional_max_pool{rank}d")
    lead, have = list(x.shape[:2]), list(x.shape[2:])
    kernel = sizes(kernel_size, rank, "kernel_size")
    wanted = _wanted(rank, have, kernel, output_size, output_ratio)
    if samples is None:
        samples = rand([*lead, rank], dtype=x.dtype)
    elif not had_batch:
        samples = samples[:1]  # torch takes samples of a batch for one image, too
    if list(samples.shape) != [*lead, rank]:
        raise ShapeMismatchError(f"_random_samples must have shape {[*lead, rank]}. Received: {list(samples.shape)}")
    flat = x.reshape([*lead, -1])
    with no_grad():
        places = _places(samples, have, kernel, wanted)
        values = gather(flat.detach(), -1, places.reshape([*lead, -1])).reshape(list(places.shape))
        chosen = gather(places, -1, argmax(values, dim=-1, keepdim=True)).squeeze(-1)
    y = gather(flat, -1, chosen).reshape([*lead, *wanted])
    if not return_indices:
        return unbatched(y, had_batch)
    return unbatched(y, had_batch), unbatched(chosen.reshape([*lead, *wanted]), had_batch)


@names_arguments
def fractional_max_pool2d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Ratios | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The largest value of each window of [N, C, H, W]; chance chooses where the windows are, anew at each call.

    Args:
        input: [N, C, H, W] or [C, H, W].
        kernel_size: The size of the windows.
        output_size: How many there are in each dimension,
        output_ratio: or that as a part of the input's size.
        return_indices: Also where in its plane each value was.
        _random_samples: What to choose by instead: [N, C, 2] numbers from 0 to 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.fractional_max_pool2d(pf.ones([1, 1, 7, 9]), 2, output_ratio=0.5).shape
        [1, 1, 3, 4]
    """
    return _fractional_max_pool(2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)


@names_arguments
def fractional_max_pool3d(
    input: Any,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Ratios | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Any:
    """The largest value of each window of [N, C, D, H, W]; chance chooses where the windows are, anew at each call.

    Args:
        input: [N, C, D, H, W] or [C, D, H, W].
        kernel_size: The size of the windows.
        output_size: How many there are in each dimension,
        output_ratio: or that as a part of the input's size.
        return_indices: Also where in its volume each value was.
        _random_samples: What to choose by instead: [N, C, 3] numbers from 0 to 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.fractional_max_pool3d(pf.ones([1, 1, 5, 5, 5]), 2, output_size=(2, 3, 4)).shape
        [1, 1, 2, 3, 4]
    """
    return _fractional_max_pool(3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)
