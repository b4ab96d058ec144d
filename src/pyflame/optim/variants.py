"""Optimizers beside the usual ones: other ways to scale a step by the gradients so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType
from pyflame.ops.arithmetic import abs as absolute
from pyflame.ops.arithmetic import clamp, maximum, where
from pyflame.ops.core import cast
from pyflame.ops.creation import full, ones_like, zeros_like
from pyflame.ops.pointwise import sign, sqrt
from pyflame.optim.algorithms import check_betas, check_not_negative, current_rates
from pyflame.optim.optimizer import Optimizer, Slots, filled, power

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame.tensors import Tensor

__all__ = ["ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop"]


def _decayed(p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Parameter and gradient with weight decay in the one that the settings say."""
    decay = group["weight_decay"]
    if not decay:
        return p, g
    if group.get("decoupled_weight_decay"):
        return p * (1 - s["lr"] * decay), g
    return p, g + decay * p


def _averages(g: Tensor, s: Slots, group: dict[str, Any]) -> Slots:
    """Running averages of the gradient and of its square."""
    _, rest1, beta2 = current_rates(s, group)
    return {
        "exp_avg": s["exp_avg"] + rest1 * (g - s["exp_avg"]),
        "exp_avg_sq": beta2 * s["exp_avg_sq"] + (1 - beta2) * (g * g),
    }


class ASGD(Optimizer):
    """Descent whose rate falls slowly, and the average of where it went (`ax`, from step `t0` on).

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.ASGD([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 5)
        0.79999
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        defaults = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize})

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The rate, the weight of a step in the average, and the average."""
        return ("eta", "mu", "ax")

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:
        """The rate begins with the learning rate, the weight with one."""
        if slot == "ax":
            return super().start(slot, p, group)
        return full(
            [],
            group["lr"] if slot == "eta" else 1.0,
            dtype=DType.float64 if p.dtype is DType.float64 else DType.float32,
        )

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step by the present rate, and the rate of the next."""
        p, g = _decayed(p, g, s, group)
        step, lr, eta, mu = s["step"], s["exact_lr"], s["eta"], cast(s["mu"], p.dtype)
        new = p * cast(1.0 - group["lambd"] * cast(eta, DType.float64), p.dtype) - cast(eta, p.dtype) * g
        average = where(mu == 1, new, s["ax"] + (new - s["ax"]) * mu)
        slower = lr / (1.0 + group["lambd"] * lr * step) ** group["alpha"]
        weight = 1.0 / maximum(step - group["t0"], full([], 1.0, dtype=step.dtype))
        return new, {"eta": cast(slower, eta.dtype), "mu": cast(weight, eta.dtype), "ax": average}


class Adadelta(Optimizer):
    """Steps as long as earlier ones were, for gradients as long as earlier ones were.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.Adadelta([w])
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.9968
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0 <= rho <= 1:
            raise ValueError(f"rho must be from 0 to 1. Received: {rho}")
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Average squares of gradients and of steps."""
        return ("square_avg", "acc_delta")

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step by the ratio of the two."""
        p, g = _decayed(p, g, s, group)
        rho, eps = group["rho"], group["eps"]
        square = rho * s["square_avg"] + (1 - rho) * (g * g)
        move = sqrt(s["acc_delta"] + eps) / sqrt(square + eps) * g
        kept = {"square_avg": square, "acc_delta": rho * s["acc_delta"] + (1 - rho) * (move * move)}
        return p - s["lr"] * move, kept


class Adamax(Optimizer):
    """Adam with the largest gradient, which fades, in place of the average square.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.Adamax([w], lr=0.25)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.75
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": check_betas(*betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize})

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The averaged gradient and the largest."""
        return ("exp_avg", "exp_inf")

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the averaged gradient, over the largest."""
        p, g = _decayed(p, g, s, group)
        _, rest1, beta2 = current_rates(s, group)
        first = s["exp_avg"] + rest1 * (g - s["exp_avg"])
        largest = maximum(beta2 * s["exp_inf"], absolute(g) + group["eps"])
        return p - (s["lr"] * s["inv_bias1"]) * (first / largest), {"exp_avg": first, "exp_inf": largest}


class NAdam(Optimizer):
    """Adam that looks ahead as Nesterov's momentum does.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.NAdam([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.8944
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        defaults = {
            "lr": lr,
            "betas": check_betas(*betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The averages, and the product of all momenta so far."""
        return ("mu_product", "exp_avg", "exp_avg_sq")

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:
        """The product begins with one."""
        return full([], 1.0, dtype=p.dtype.to_real()) if slot == "mu_product" else super().start(slot, p, group)

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the gradient and along where its average will be."""
        p, g = _decayed(p, g, s, group)
        kept = _averages(g, s, group)
        now, then = (current_rates(s, group)[0] * cast(self._warm(s, ahead, group), p.dtype) for ahead in (0.0, 1.0))
        product = kept["mu_product"] = s["mu_product"] * now
        spread = sqrt(kept["exp_avg_sq"]) * s["rsqrt_bias2"] + group["eps"]
        move = (1 - now) / (1 - product) * (g / spread) + then / (1 - product * then) * (kept["exp_avg"] / spread)
        return p - s["lr"] * move, kept

    @staticmethod
    def _warm(s: Slots, ahead: float, group: dict[str, Any]) -> Tensor:
        """The part of the first rate that is the momentum of this step, or of one ahead."""
        return 1.0 - 0.5 * power(0.96, (s["step"] + ahead) * group["momentum_decay"])


class RAdam(Optimizer):
    """Adam that goes by the averaged gradient alone until the average square is known well enough.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.RAdam([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.8
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "betas": check_betas(*betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The two averages."""
        return ("exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the averaged gradient, scaled by its spread as far as that is known."""
        p, g = _decayed(p, g, s, group)
        kept = _averages(g, s, group)
        known, rectified = self._rectification(s["step"], group["betas"][1])
        spread = (sqrt(kept["exp_avg_sq"]) + group["eps"]) * s["rsqrt_bias2"]
        scale = where(known, cast(rectified, p.dtype) / spread, ones_like(spread))
        return p - (s["lr"] * s["inv_bias1"]) * (kept["exp_avg"] * scale), kept

    @staticmethod
    def _rectification(step: Tensor, beta2: float) -> tuple[Tensor, Tensor]:
        """Whether the average square is known well enough, and how far to trust it."""
        faded = power(beta2, step)
        longest = 2 / (1 - beta2) - 1
        length = longest - 2.0 * step * faded / (1.0 - faded)
        known = length > 5.0
        safe = where(known, length, full([], 6.0, dtype=length.dtype))
        trust = (safe - 4.0) * (safe - 2.0) * longest / ((longest - 4) * (longest - 2) * safe)
        return known, sqrt(trust)


class Rprop(Optimizer):
    """A step length of its own for each weight: longer while the gradient keeps its sign, shorter when it turns.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.Rprop([w], lr=0.25)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> w.numpy().item()
        0.75
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"etas must be one factor between 0 and 1 and one above 1. Received: {etas}")
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize})

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The last gradient and the step lengths."""
        return ("prev", "step_size")

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:
        """Lengths begin with the learning rate."""
        if slot == "step_size":
            return filled(p, group["lr"])
        return super().start(slot, p, group)

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step by the sign; weights whose gradient turned stay."""
        shorter, longer = group["etas"]
        agreement = g * s["prev"]
        turned = agreement < 0
        factor = where(turned, ones_like(g) * shorter, where(agreement > 0, ones_like(g) * longer, ones_like(g)))
        length = clamp(s["step_size"] * factor, *group["step_sizes"])
        g = where(turned, zeros_like(g), g)
        return p - sign(g) * length, {"prev": g, "step_size": length}
