"""Products, linear algebra, convolution and Fourier transforms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from emberharmony.backends.torch.base import NATIVE, as_float, meet, native, widened
from emberharmony.cotangents import pulled_back
from emberharmony.errors import UnsupportedOpError
from emberharmony.typing import ArrayLike, Pairs

Tensor = torch.Tensor


def _as_given(found: Any, wide: torch.dtype, answer: torch.dtype) -> Any:
    """Results computed in float32 back in half precision."""
    if isinstance(found, tuple):
        return tuple(_as_given(part, wide, answer) for part in found)
    return found.to(answer) if found.dtype is wide and wide is not answer else found


def _solver(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one float matrix, through float32 for half precision."""

    def call(x: ArrayLike) -> Any:
        x = as_float(x)
        wide = widened(x)
        return _as_given(function(wide), wide.dtype, x.dtype)

    return call


NATIVE.update({n: _solver(getattr(torch.linalg, n)) for n in ("inv", "eigvals", "eigvalsh")})
NATIVE["slogdet"] = _solver(lambda x: tuple(torch.linalg.slogdet(x)))
NATIVE["eig"] = _solver(lambda x: tuple(torch.linalg.eig(x)))
NATIVE["eigh"] = _solver(lambda x: tuple(torch.linalg.eigh(x)))


class _Det(torch.autograd.Function):
    """The determinant with the common rule: torch's own is 0 for matrices without an inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = torch.linalg.det(x)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        from emberharmony.library import library

        x, found = ctx.saved_tensors
        return pulled_back(library("torch"), "det", gradient, found, (x,), {})[0]


def _det(x: Tensor) -> Tensor:
    return _Det.apply(x) if x.requires_grad and not x.is_complex() else torch.linalg.det(x)


NATIVE["det"] = _solver(_det)


@native
def matmul(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Matrix product."""
    if not (isinstance(x1, Tensor) and isinstance(x2, Tensor) and x1.dtype is x2.dtype):
        x1, x2 = meet(x1, x2)
    if x1.dtype is torch.bool:
        return torch.matmul(x1.to(torch.int64), x2.to(torch.int64)) != 0
    if not x1.is_floating_point() and not x1.is_complex() and _exact_in_float64(x1, x2):
        # By way of int64: float64 to a narrower integer does not wrap.
        return torch.matmul(x1.to(torch.float64), x2.to(torch.float64)).to(torch.int64).to(x1.dtype)
    return torch.matmul(x1, x2)


def _exact_in_float64(x1: Tensor, x2: Tensor) -> bool:
    """Whether a product of integers fits into float64, whose matrix product is far quicker."""
    if x1.numel() * x2.numel() < 4096 and x1.device.type == "cpu":
        return False
    bound = 1.0
    for x in (x1, x2):
        bound *= float(x.to(torch.float64).abs().max()) + 1.0 if x.numel() else 1.0
    return bound * x1.shape[-1] < 2.0**53


@native
def einsum(subscripts: str, *operands: ArrayLike) -> Tensor:
    """Sums of products."""
    tensors = meet(*operands)
    return torch.einsum(subscripts, *tensors).to(tensors[0].dtype)


@native
def solve(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Linear equations; `b` is a vector only if it has one axis."""
    a, b = (as_float(v) for v in meet(a, b))
    wide_a, wide_b = widened(a), widened(b)
    if 1 < b.ndim < a.ndim:
        wide_b = wide_b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
    return torch.linalg.solve(wide_a, wide_b).to(a.dtype)


@native
def pinv(x: ArrayLike, rcond: float | None = None) -> Tensor:
    """Pseudo-inverse."""
    return _solver(lambda m: torch.linalg.pinv(m, rtol=rcond))(x)


@native
def qr(x: ArrayLike, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Orthogonal and triangular factor."""
    return _solver(lambda m: tuple(torch.linalg.qr(m, mode)))(x)


@native
def svd(x: ArrayLike, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Singular value decomposition."""
    if not compute_uv:
        return _solver(torch.linalg.svdvals)(x)
    found = _solver(lambda m: tuple(torch.linalg.svd(m, full_matrices)))(x)
    least = min(as_float(x).shape[-2:])
    for vectors, axis in ((found[0], -1), (found[2], -2)):
        if vectors.requires_grad and vectors.shape[axis] > least:
            vectors.register_hook(_refusing(axis, least))
    return found


def _refusing(axis: int, known: int) -> Callable[[Tensor], None]:
    """A look at the gradient of singular vectors beyond the singular values, which torch would leave out."""

    def look(gradient: Tensor) -> None:
        if bool(gradient.narrow(axis, known, gradient.shape[axis] - known).any()):
            raise UnsupportedOpError("the gradient of svd with full matrices", "torch", "give full_matrices=False")

    return look


@native
def cholesky(x: ArrayLike, upper: bool = False) -> Tensor:
    """Triangular factor."""
    return _solver(lambda m: torch.linalg.cholesky(m, upper=upper))(x)


@native
def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None) -> Tensor:
    """Least squares; on the processor with the driver that takes matrices of any rank."""
    a, b = (as_float(v) for v in meet(a, b))
    wide_a, wide_b = widened(a), widened(b)
    right = wide_b.unsqueeze(-1) if b.ndim == 1 else wide_b
    driver = "gelsd" if a.device.type == "cpu" else None
    found = torch.linalg.lstsq(wide_a, right, rcond, driver=driver).solution
    return (found.squeeze(-1) if b.ndim == 1 else found).to(a.dtype)


def _fourier(function: Callable[..., Tensor], x: ArrayLike, *options: Any) -> Tensor:
    return function(widened(as_float(x)), *options)


@native
def fft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Tensor:
    """Fourier transform."""
    return _fourier(torch.fft.fft, x, n, axis)


@native
def ifft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Tensor:
    """Inverse Fourier transform."""
    return _fourier(torch.fft.ifft, x, n, axis)


@native
def rfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Tensor:
    """Fourier transform of real numbers."""
    return _fourier(torch.fft.rfft, x, n, axis)


@native
def irfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Tensor:
    """Inverse of rfft."""
    return _fourier(torch.fft.irfft, x, n, axis)


@native
def fft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Tensor:
    """Fourier transform over two axes."""
    return _fourier(torch.fft.fft2, x, s, axes)


@native
def ifft2(x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1)) -> Tensor:
    """Inverse of fft2."""
    return _fourier(torch.fft.ifft2, x, s, axes)


_CONV = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


@native
def conv(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution: torch's own up to three space axes of floats, else by the default body."""
    from emberharmony.declared import DECLARED
    from emberharmony.library import library
    from emberharmony.ops.nn import fits, pad_pairs, per_axis

    x, w = meet(x, w)
    count = x.ndim - 2
    pairs = pad_pairs(padding, count)
    known = x.is_floating_point() and x.ndim in _CONV and w.ndim == x.ndim
    if not known or not fits(x, w.shape[2:], pairs, per_axis(dilation, count)):
        return DECLARED["conv"](library("torch"), x, w, strides, padding, dilation, groups)
    wide, same = widened(x), [a for a, _ in pairs]
    if any(a != b or a < 0 for a, b in pairs):
        wide = functional.pad(wide, [n for pair in reversed(pairs) for n in pair])
        same = [0] * count
    steps, apart = per_axis(strides, count), per_axis(dilation, count)
    return _CONV[x.ndim](wide, widened(w), None, steps, same, apart, groups).to(x.dtype)


_TRANSPOSED = {
    3: functional.conv_transpose1d,
    4: functional.conv_transpose2d,
    5: functional.conv_transpose3d,
}


@native
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: int | Pairs = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Transposed convolution: the whole result by torch, then cut or filled by the padding."""
    from emberharmony.declared import DECLARED
    from emberharmony.library import library
    from emberharmony.ops.nn import pad_pairs, per_axis

    x, w = meet(x, w)
    if not x.is_floating_point() or x.ndim not in _TRANSPOSED:
        options = (strides, padding, output_padding, dilation, groups)
        return DECLARED["conv_transpose"](library("torch"), x, w, *options)
    count = x.ndim - 2
    steps, apart = per_axis(strides, count), per_axis(dilation, count)
    whole = _TRANSPOSED[x.ndim](widened(x), widened(w), None, steps, 0, 0, groups, apart)
    pairs = zip(pad_pairs(padding, count), per_axis(output_padding, count, 0), strict=True)
    edges = [(-before, extra - after) for (before, after), extra in pairs]
    widths = [n for pair in reversed(edges) for n in pair]
    if any(n + before + after < 0 for n, (before, after) in zip(whole.shape[2:], edges, strict=True)):
        options = (strides, padding, output_padding, dilation, groups)
        return DECLARED["conv_transpose"](library("torch"), x, w, *options)
    return (functional.pad(whole, widths) if any(widths) else whole).to(x.dtype)
