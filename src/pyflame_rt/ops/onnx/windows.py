"""Where windows lie: padding, strides and output sizes that convolution and pooling share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import DimLike

__all__ = ["Windows", "output_size", "pad_pairs", "same_padding", "times", "window_shape", "windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial axes of a tensor.

    Attributes:
        kernel: taps per axis.
        strides: steps between windows.
        dilations: steps between taps.
        padding: (before, after) per axis as the model asks; ``after`` leaves out what ceil_mode adds.
        ceil_mode: a last window that is only partly inside also counts.
        partial: a first window that is larger than the data counts where the stride reaches beyond it, as in pools.
        beyond: by how much such a window reaches beyond the data per axis; ``padding`` has it as well.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    ceil_mode: bool = False
    partial: bool = False
    beyond: tuple[int, ...] = ()

    def output(self, spatial: Sequence[DimLike]) -> list[DimLike]:
        """Number of windows per axis."""
        return [
            output_size(n, k, s, d, p, ceil_mode=self.ceil_mode, partial=self.partial)
            for n, k, s, d, p in zip(spatial, self.kernel, self.strides, self.dilations, self.padding, strict=True)
        ]

    def reach(self, spatial: Sequence[int]) -> list[tuple[int, int]]:
        """Padding that gives exactly the windows of :meth:`output`: ``after`` may grow or be negative."""
        pairs: list[tuple[int, int]] = []
        for n, out, k, s, d, (before, _) in zip(
            spatial, self.output(spatial), self.kernel, self.strides, self.dilations, self.padding, strict=True
        ):
            assert isinstance(out, int)
            pairs.append((before, (out - 1) * s + (k - 1) * d + 1 - n - before))
        return pairs


def output_size(
    size: DimLike,
    kernel: int,
    stride: int,
    dilation: int,
    padding: tuple[int, int],
    *,
    ceil_mode: bool = False,
    partial: bool = False,
) -> DimLike:
    """How many windows fit; symbolic sizes give symbolic results where they can."""
    if size is None:
        return None
    span = size + padding[0] + padding[1] - (kernel - 1) * dilation - 1
    if isinstance(span, int) and span < 0 and not (partial and span > -2 * stride):
        raise ShapeMismatchError(
            f"a window of {(kernel - 1) * dilation + 1} does not fit into size {size} with padding {padding}"
        )
    if not ceil_mode:
        return span // stride + 1
    count = (span + stride - 1) // stride + 1
    if not isinstance(count, int):
        return None
    # A window that would start in the padding behind the data is left out.
    return count - 1 if (count - 1) * stride >= size + padding[0] else count


def same_padding(size: DimLike, kernel: int, stride: int, dilation: int, auto_pad: str) -> tuple[int, int]:
    """Padding for ``ceil(size / stride)`` windows; the odd one goes where ``auto_pad`` says."""
    if not isinstance(size, int):
        raise UndeterminedError(f"the padding for auto_pad={auto_pad} depends on the size {size}")
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    half = total // 2
    return (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)


def windows(
    spatial: Sequence[DimLike],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    partial: bool = False,
) -> Windows:
    """Windows from the attributes of an ONNX operator; ONNX lists all begins of pads, then all ends."""
    rank = len(spatial)
    taps = _per_axis("kernel_shape", kernel, rank)
    steps = _per_axis("strides", strides, rank)
    gaps = _per_axis("dilations", dilations, rank)
    padding: Sequence[tuple[int, int]]
    match auto_pad:
        case "SAME_UPPER" | "SAME_LOWER":
            padding = [
                same_padding(n, k, s, d, auto_pad) for n, k, s, d in zip(spatial, taps, steps, gaps, strict=True)
            ]
            ceil_mode = 0
        case "VALID":
            padding, ceil_mode = [(0, 0)] * rank, 0
        case "NOTSET" | "":
            padding = pad_pairs(pads, rank)
        case _:
            raise InputError(f"auto_pad {auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    beyond = (0,) * rank
    if partial:
        beyond = tuple(map(_beyond, spatial, taps, steps, gaps, padding))
        padding = [(low, high + more) for (low, high), more in zip(padding, beyond, strict=True)]
    return Windows(taps, steps, gaps, tuple(padding), bool(ceil_mode), partial, beyond)


def _beyond(size: DimLike, kernel: int, stride: int, dilation: int, padding: tuple[int, int]) -> int:
    """By how much one window reaches beyond the data, by less than a stride: onnxruntime takes it all the same."""
    if not isinstance(size, int):
        return 0
    span = size + padding[0] + padding[1] - (kernel - 1) * dilation - 1
    return -span if -stride < span < 0 else 0


def times(size: DimLike, factor: int) -> DimLike:
    """A multiple of a size that may be unknown."""
    return None if size is None else size * factor


def pad_pairs(pads: Sequence[int] | None, rank: int) -> list[tuple[int, int]]:
    """ONNX pads as (before, after) per axis."""
    flat = [0] * (2 * rank) if pads is None else [int(p) for p in pads]
    if len(flat) != 2 * rank:
        raise InputError(f"pads {flat} should have {2 * rank} entries for {rank} spatial axes")
    return list(zip(flat[:rank], flat[rank:], strict=True))


def _per_axis(name: str, values: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    result = (1,) * rank if values is None else tuple(int(v) for v in values)
    if len(result) != rank or any(v < 1 for v in result):
        raise InputError(f"{name} {list(result)} should be {rank} positive numbers")
    return result


def window_shape(
    spatial: Sequence[DimLike],
    kernel: Sequence[int | None],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    partial: bool = False,
) -> list[DimLike]:
    """Output sizes for inference: SAME needs no padding to be known, and unknown sizes stay so."""
    rank = len(spatial)
    steps = _per_axis("strides", strides, rank)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [None if n is None else (n + s - 1) // s for n, s in zip(spatial, steps, strict=True)]
    taps = _per_axis("kernel_shape", [1 if k is None else k for k in kernel], rank)
    sized = [None if k is None else n for n, k in zip(spatial, kernel, strict=True)]
    geometry = windows(
        sized,
        taps,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        partial=partial,
    )
    return geometry.output(sized)
