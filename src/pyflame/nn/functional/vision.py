"""Images at other sizes, and their pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.nn.functional.windows import batched, sizes, unbatched
from pyflame.ops.core import call, const, rounded_once
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.resize import Resize
from pyflame_rt.ops.onnx.vision import AffineGrid, Col2Im, GridSample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = ["affine_grid", "fold", "grid_sample", "interpolate", "unfold", "upsample"]

MODES = {"nearest": "nearest", "nearest-exact": "nearest", "linear": "linear", "bilinear": "linear"}
MODES |= {"trilinear": "linear", "bicubic": "cubic"}


@rounded_once
@names_arguments
def interpolate(
    input: Any,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """[N, C, ...] at another size, given as sizes or factors.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.interpolate(pf.tensor([[[1.0, 2.0]]]), scale_factor=2).numpy().tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}. Received: {mode!r}")
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined")
    have = tuple(int(d) for d in input.shape[2:])
    settings: dict[str, Any] = {"mode": MODES[mode], "antialias": int(antialias)}
    if mode == "nearest":
        settings |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif mode == "nearest-exact":
        settings |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    else:
        kind = "align_corners" if align_corners else "half_pixel"
        settings |= {"coordinate_transformation_mode": kind, "cubic_coeff_a": -0.75 if not antialias else -0.5}
    if size is None:
        factors = (scale_factor,) * len(have) if isinstance(scale_factor, int | float) else tuple(scale_factor or ())
        target = tuple(int(h * f) for h, f in zip(have, factors, strict=True))
        _are_positive(have, target)
        if not recompute_scale_factor:
            scales = (1.0, 1.0, *map(float, factors))
            return call(Resize, input, None, const(scales, DType.float32), None, **settings)
    else:
        target = sizes(size, len(have), "size")
    _are_positive(have, target)
    return call(Resize, input, None, None, (*map(int, input.shape[:2]), *target), **settings)


def _are_positive(have: Sequence[int], want: Sequence[int]) -> None:
    if min(*have, *want, 1) < 1:
        raise ShapeMismatchError(f"images must have pixels, before and after. Received: {list(have)} to {list(want)}")


upsample = interpolate


@rounded_once
@names_arguments
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The places that an affine map [N, 2, 3] (or [N, 3, 4]) sends each pixel to.

    Example:
        >>> import pyflame as pf
        >>> theta = pf.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> pf.nn.functional.affine_grid(theta, [1, 1, 2, 2]).shape
        [1, 2, 2, 2]
    """
    return call(AffineGrid, theta, tuple(int(s) for s in size), align_corners=int(align_corners))


@rounded_once
@names_arguments
def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Tensor:
    """Values of [N, C, H, W] at places between -1 and 1.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.grid_sample(pf.ones([1, 1, 2, 2]), pf.zeros([1, 1, 1, 2])).numpy().item()
        1.0
    """
    known = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    if mode not in known:
        raise ValueError(f"mode must be one of {', '.join(known)}. Received: {mode!r}")
    settings = {"mode": known[mode], "padding_mode": padding_mode, "align_corners": int(align_corners)}
    return call(GridSample, input, grid, **settings)


@names_arguments
def unfold(
    input: Any,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The windows of [N, C, H, W], or [C, H, W], as columns: [N, C * kh * kw, windows].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.functional.unfold(pf.ones([1, 2, 3, 3]), 2).shape
        [1, 8, 4]
    """
    from pyflame.ops.shaping import pad, stack

    (kh, kw), (dh, dw) = sizes(kernel_size, 2, "kernel_size"), sizes(dilation, 2, "dilation")
    (ph, pw), (sh, sw) = sizes(padding, 2, "padding"), sizes(stride, 2, "stride")
    x, had_batch = batched(input, 4, "unfold")
    x = pad(x, [pw, pw, ph, ph]) if ph or pw else x
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    if rows <= 0 or columns <= 0:
        raise ValueError(f"The window {kernel_size} does not fit in {list(input.shape)}")
    taps = [
        x[:, :, i * dh : i * dh + sh * (rows - 1) + 1 : sh, j * dw : j * dw + sw * (columns - 1) + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    return unbatched(stack(taps, dim=2).reshape([x.shape[0], x.shape[1] * kh * kw, rows * columns]), had_batch)


@rounded_once
@names_arguments
def fold(
    input: Any,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """Columns [N, C * kh * kw, windows], or without N, summed up into images [N, C, H, W]: what `unfold` took apart.

    Args:
        input: The windows as columns.
        output_size: The size of the images.
        kernel_size: The size of a window.
        dilation: The distance of the pixels of a window.
        padding: Zeros that `unfold` was to put around the images.
        stride: The distance of the windows.

    Example:
        >>> import pyflame as pf
        >>> columns = pf.nn.functional.unfold(pf.ones([1, 1, 2, 3]), 2)
        >>> pf.nn.functional.fold(columns, (2, 3), 2).numpy().tolist()
        [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
    x, had_batch = batched(input, 3, "fold")
    image, kernel = sizes(output_size, 2, "output_size"), sizes(kernel_size, 2, "kernel_size")
    steps, apart, pads = sizes(stride, 2, "stride"), sizes(dilation, 2, "dilation"), sizes(padding, 2, "padding")
    if min((*image, *kernel, *steps, *apart)) <= 0 or min(pads) < 0:
        raise ValueError(
            f"sizes must be positive and padding not negative. Received: output_size={image}, kernel_size={kernel}, "
            f"stride={steps}, dilation={apart}, padding={pads}"
        )
    if x.shape[1] % (kernel[0] * kernel[1]):
        raise ShapeMismatchError(
            f"Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={x.shape[1]} and kernel_size={kernel}"
        )
    each = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(image, pads, apart, kernel, steps, strict=True)
    ]
    if min(each) <= 0 or x.shape[2] != each[0] * each[1]:
        raise ShapeMismatchError(
            f"Given output_size={image}, kernel_size={kernel}, dilation={apart}, padding={pads}, stride={steps}, "
            f"expected {each[0]} x {each[1]} windows in input's last dimension, but got {x.shape[2]}"
        )
    settings = {"dilations": apart, "pads": (*pads, *pads), "strides": steps}
    return unbatched(call(Col2Im, x, image, kernel, **settings), had_batch)
