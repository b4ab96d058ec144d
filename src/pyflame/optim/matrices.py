"""Optimizers that see a weight as a matrix: by the sizes of its rows and columns, or by its directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.dtypes import DType, finfo
from pyflame.ops.arithmetic import clamp, maximum, minimum, square
from pyflame.ops.core import cast
from pyflame.ops.creation import full
from pyflame.ops.linalg import matmul
from pyflame.ops.pointwise import rsqrt, sqrt
from pyflame.optim.algorithms import check_not_negative
from pyflame.optim.optimizer import Optimizer, Slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyflame.tensors import Tensor

__all__ = ["Adafactor", "Muon"]

ADJUSTMENTS = (None, "original", "match_rms_adamw")
MOST_ITERATIONS = 100


def _root_mean_square(x: Tensor) -> Tensor:
    """In double precision from the norm on, as one number."""
    return cast(sqrt(square(x).sum()), DType.float64) / float(np.sqrt(max(x.numel, 1)))


class Adafactor(Optimizer):
    """Steps scaled by the average square of each row and of each column: little memory for large matrices.

    Args:
        params: What to optimize.
        lr: The largest relative step, and the rate of the weight decay.
        beta2_decay: The power by which the averages come to forget more slowly.
        eps: The smallest root of an average square (None: the type's own precision), and the smallest size of a
            parameter that a step is measured by.
        d: Steps of a larger root mean square are shortened to it.
        weight_decay: How much parameters shrink, times `lr`.
        maximize: Climb instead.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([2, 3]))
        >>> optimizer = pf.optim.Adafactor([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[w]), round(w[0, 0].item(), 4)
        (['col_var', 'row_var', 'step'], 0.9)
    """

    real_only = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, epsilon1=eps[0] or 0.0, epsilon2=eps[1], weight_decay=weight_decay)
        if not beta2_decay <= 0:
            raise ValueError(f"beta2_decay must not be positive. Received: {beta2_decay}")
        if not d >= 1:
            raise ValueError(f"The clipping threshold d must be at least 1. Received: {d}")
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": tuple(eps), "d": d, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize})

    def slots_of(self, p: Tensor, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The averages: of rows and columns, or of a vector's elements."""
        return ("row_var", "col_var") if p.ndim > 1 else ("variance",)

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Averages over the last dimension or the one before."""
        if slot == "variance":
            return super().start(slot, p, group)
        shape = list(p.shape)
        shape[-1 if slot == "row_var" else -2] = 1
        return adopt(np.zeros(shape, p.dtype.numpy))

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step in proportion to the parameter, along the gradient over its average size."""
        lr, step, (smallest, least) = s["exact_lr"], s["step"], group["eps"]
        smallest = float(finfo(p.dtype).eps) if smallest is None else smallest
        kept = self._averages(g, s, cast(step ** group["beta2_decay"], p.dtype))
        rate = minimum(lr, 1.0 / sqrt(step)) * clamp(_root_mean_square(p), least)
        if group["weight_decay"]:
            p = p * (1 - s["lr"] * group["weight_decay"])
        move = rsqrt(clamp(self._estimate(kept, smallest), smallest * smallest)) * g
        rate = rate / clamp(_root_mean_square(move) / group["d"], 1.0)
        return p - cast(rate, p.dtype) * move, kept

    @staticmethod
    def _averages(g: Tensor, s: Slots, weight: Tensor) -> Slots:
        squares = square(g)
        if g.ndim < 2:
            return {"variance": s["variance"] + weight * (squares - s["variance"])}
        rows, columns = (squares.mean(dim, keepdim=True) for dim in (-1, -2))
        return {
            "row_var": s["row_var"] + weight * (rows - s["row_var"]),
            "col_var": s["col_var"] + weight * (columns - s["col_var"]),
        }

    @staticmethod
    def _estimate(kept: Slots, smallest: float) -> Tensor:
        """The average square of each element."""
        if "variance" in kept:
            return kept["variance"]
        rows = kept["row_var"]
        return rows * kept["col_var"] / clamp(rows.mean(-2, keepdim=True), smallest)


class Muon(Optimizer):
    """Momentum for the matrices of hidden layers, with all directions of a step brought to like lengths.

    Args:
        params: Matrices; other parameters want another optimizer.
        lr: The learning rate.
        weight_decay: How much parameters shrink, times `lr`.
        momentum: The rate of the averaged gradient.
        nesterov: Look ahead along the average.
        ns_coefficients: The odd polynomial that is applied to a step's singular values, as x, x^3 and x^5.
        eps: The smallest norm to divide by.
        ns_steps: How often.
        adjust_lr_fn: How `lr` depends on the shape: "original" (also None) or "match_rms_adamw".

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.eye(2))
        >>> optimizer = pf.optim.Muon([w], lr=0.1, weight_decay=0.0)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> abs(w[0, 0].item() - 0.9) < 0.05
        True
    """

    real_only = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if adjust_lr_fn not in ADJUSTMENTS:
            raise ValueError(f"adjust_lr_fn must be one of {ADJUSTMENTS}. Received: {adjust_lr_fn!r}")
        if len(ns_coefficients) != 3 or not 0 <= ns_steps < MOST_ITERATIONS:
            raise ValueError(
                f"Muon wants three ns_coefficients and less than {MOST_ITERATIONS} ns_steps. "
                f"Received: {ns_coefficients} and {ns_steps}"
            )
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients),
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add matrices with settings of their own."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.ndim != 2:
                self.param_groups.pop()
                raise ValueError(f"Muon only supports 2D parameters. Received: one of shape {list(p.shape)}")

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The averaged gradient."""
        return ("momentum_buffer",)

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step whose singular values are near one."""
        momentum: Any = s.get("momentum", group["momentum"])
        average = s["momentum_buffer"] + (1 - momentum) * (g - s["momentum_buffer"])
        ahead = g + momentum * (average - g) if group["nesterov"] else average
        move = cast(_evened(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"]), p.dtype)
        rate = cast(s["exact_lr"] * _ratio(group["adjust_lr_fn"], p), p.dtype)
        smaller = p * cast(1.0 - s["exact_lr"] * group["weight_decay"], p.dtype)
        return smaller - rate * move, {"momentum_buffer": average}


def _ratio(how: str | None, p: Tensor) -> float:
    """The part of the learning rate that comes from a matrix's shape."""
    rows, columns = p.shape
    if how == "match_rms_adamw":
        return 0.2 * float(np.sqrt(max(rows, columns)))
    return float(np.sqrt(max(1, rows / columns)))


def _rounded(x: Tensor) -> Tensor:
    """To bfloat16's precision; sums of products keep all bits of float32, as those of bfloat16 matrices do."""
    return cast(cast(x, DType.bfloat16), DType.float32)


def _evened(g: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """A matrix with the same singular vectors, by repeated polynomials of its values (Newton and Schulz)."""
    first, third, fifth = coefficients
    upright = g.shape[0] > g.shape[1]
    x = _rounded(g.transpose(0, 1) if upright else g)
    length = maximum(_rounded(sqrt(square(x).sum())), _rounded(full([], eps)))
    x = _rounded(x / length)
    for _ in range(steps):
        gram = _rounded(matmul(x, x.transpose(0, 1)))
        factor = _rounded(third * gram + fifth * matmul(gram, gram))
        x = _rounded(first * x + matmul(factor, x))
    return x.transpose(0, 1) if upright else x
