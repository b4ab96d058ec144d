"""How each optimizer turns a gradient into a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.ops.arithmetic import logical_and, maximum, where
from pyflame.ops.creation import ones_like
from pyflame.ops.pointwise import sign, sqrt
from pyflame.optim.optimizer import Optimizer, Slots, filled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame.tensors import Tensor

__all__ = ["LAMB", "SGD", "Adagrad", "Adam", "AdamW", "Lion", "RMSprop"]


def check_not_negative(**settings: float) -> None:
    """An error that names the setting that is."""
    for name, value in settings.items():
        if shape := getattr(value, "shape", None):
            raise ValueError(f"{name} must be one number. Received: a tensor of shape {list(shape)}")
        if not value >= 0:
            raise ValueError(f"{name} must not be negative. Received: {value}")


def check_betas(first: float, second: float) -> tuple[float, float]:
    """The rates of two running averages, if they can be that."""
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ValueError(f"betas must be at least 0 and below 1. Received: {(first, second)}")
    return float(first), float(second)


def check_way(foreach: bool | None, fused: bool | None) -> None:
    """Torch's two ways to update all parameters together, which exclude each other; here there is one for both."""
    if foreach and fused:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together")


def current_rates(s: Slots, group: dict[str, Any]) -> tuple[Any, Any, float]:
    """How slowly the averages change: the first rate, what it leaves, the second; tensors if a scheduler varies it."""
    beta1, beta2 = group["betas"]
    return s.get("beta1", beta1), s.get("rest1", 1 - beta1), beta2


class SGD(Optimizer):
    """Descent along the gradient, with momentum (plain, damped or Nesterov's) and weight decay.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([2]))
        >>> optimizer = pf.optim.SGD([w], lr=0.5)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> w.numpy().tolist()
        [0.0, 0.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        check_way(foreach, fused)
        check_not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The momentum, where there is one."""
        return ("momentum_buffer",) if group["momentum"] else ()

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step against the (averaged) gradient."""
        if group["weight_decay"]:
            g = g + group["weight_decay"] * p
        kept: Slots = {}
        if group["momentum"]:
            # The first gradient enters whole, later ones damped.
            damped = (1 - group["dampening"]) * g if group["dampening"] else g
            first = where(s["step"] == 1, g, damped) if group["dampening"] else g
            momentum = s.get("momentum", group["momentum"])
            average = momentum * s["momentum_buffer"] + first
            kept["momentum_buffer"] = average
            g = g + momentum * average if group["nesterov"] else average
        return p - s["lr"] * g, kept


class Adam(Optimizer):
    """Steps scaled by running averages of the gradient and of its square.

    The averages' rates are `beta1` and `beta2`, or both as `betas`. All parameters change in one native call, so
    torch's `foreach` and `fused` are met whichever is asked for; both at once are refused, as there.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([2]))
        >>> optimizer = pf.optim.Adam([w], lr=0.1, betas=(0.9, 0.99))
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> [round(x, 4) for x in w.numpy().tolist()]
        [0.9, 0.9]
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        beta1: float | tuple[float, float] = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        betas: tuple[float, float] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        check_way(foreach, fused)
        if isinstance(beta1, tuple | list):  # torch's positional order: lr, betas
            beta1, betas = 0.9, (beta1[0], beta1[1])
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "betas": check_betas(*(betas or (beta1, beta2))),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The averages, and the largest second one where amsgrad asks for it."""
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the averaged gradient, scaled by its spread."""
        _, rest1, beta2 = current_rates(s, group)
        decay, lr = group["weight_decay"], s["lr"]
        if decay and self.decoupled:
            p = p * (1 - lr * decay)
        elif decay:
            g = g + decay * p
        first = s["exp_avg"] + rest1 * (g - s["exp_avg"])
        second = beta2 * s["exp_avg_sq"] + (1 - beta2) * (g * g)
        kept: Slots = {"exp_avg": first, "exp_avg_sq": second}
        if group["amsgrad"]:
            second = kept["max_exp_avg_sq"] = maximum(s["max_exp_avg_sq"], second)
        spread = sqrt(second) * s["rsqrt_bias2"] + group["eps"]
        return p - (lr * s["inv_bias1"]) * (first / spread), kept


class AdamW(Adam):
    """Adam with weight decay apart from the gradient.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.AdamW([w], lr=0.1, weight_decay=0.5)
        >>> (0.0 * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.95
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        beta1: float | tuple[float, float] = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        betas: tuple[float, float] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        check_way(foreach, fused)
        super().__init__(params, lr, beta1, beta2, eps, weight_decay, amsgrad, betas=betas, maximize=maximize)


class RMSprop(Optimizer):
    """Steps scaled by a running average of the squared gradient, centred on request.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.RMSprop([w], lr=0.01)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.9
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The average square, and what momentum and centring need."""
        wanted = {"square_avg": True, "momentum_buffer": group["momentum"], "grad_avg": group["centered"]}
        return tuple(name for name, on in wanted.items() if on)

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the gradient, scaled by its average size."""
        alpha = group["alpha"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * p
        square = alpha * s["square_avg"] + (1 - alpha) * (g * g)
        kept: Slots = {"square_avg": square}
        spread = square
        if group["centered"]:
            mean = kept["grad_avg"] = s["grad_avg"] + (1 - alpha) * (g - s["grad_avg"])
            spread = square - mean * mean
        move = g / (sqrt(spread) + group["eps"])
        if group["momentum"]:
            move = kept["momentum_buffer"] = s.get("momentum", group["momentum"]) * s["momentum_buffer"] + move
        return p - s["lr"] * move, kept


class Adagrad(Optimizer):
    """Steps scaled by the sum of all squared gradients so far.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.Adagrad([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> round(w.numpy().item(), 4)
        0.9
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(
            lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, initial=initial_accumulator_value
        )
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The sum of squares."""
        return ("sum",)

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """The sum begins where the settings say."""
        return filled(p, group["initial_accumulator_value"])

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the gradient, scaled by all gradients so far."""
        if group["weight_decay"]:
            g = g + group["weight_decay"] * p
        rate = s["lr"] / (1 + (s["step"] - 1) * group["lr_decay"]) if group["lr_decay"] else s["lr"]
        total = s["sum"] + g * g
        return p - rate * (g / (sqrt(total) + group["eps"])), {"sum": total}


class Lion(Optimizer):
    """Steps of one size along the sign of an averaged gradient.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer = pf.optim.Lion([w], lr=0.25)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> w.numpy().item()
        0.75
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": check_betas(*betas), "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The averaged gradient."""
        return ("exp_avg",)

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step along the sign."""
        (beta1, rest1, beta2), lr = current_rates(s, group), s["lr"]
        if group["weight_decay"]:
            p = p * (1 - lr * group["weight_decay"])
        average = s["exp_avg"]
        direction = sign(beta1 * average + rest1 * g)
        return p - lr * direction, {"exp_avg": beta2 * average + (1 - beta2) * g}


class LAMB(Optimizer):
    """Adam's direction, as long as the weights of the layer are.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([4]))
        >>> optimizer = pf.optim.LAMB([w], lr=0.1)
        >>> (w * w).sum().backward()
        >>> optimizer.step()
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [0.9, 0.9, 0.9, 0.9]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": check_betas(*betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize})

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The two averages."""
        return ("exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """One step whose length is the layer's own."""
        _, rest1, beta2 = current_rates(s, group)
        first = s["exp_avg"] + rest1 * (g - s["exp_avg"])
        second = beta2 * s["exp_avg_sq"] + (1 - beta2) * (g * g)
        spread = sqrt(second) * s["rsqrt_bias2"] + group["eps"]
        move = (first * s["inv_bias1"]) / spread
        if group["weight_decay"]:
            move = move + group["weight_decay"] * p
        weight, length = sqrt((p * p).sum()), sqrt((move * move).sum())
        known = logical_and(weight > 0, length > 0)
        trust = where(known, weight / where(known, length, ones_like(length)), ones_like(length))
        return p - (s["lr"] * trust) * move, {"exp_avg": first, "exp_avg_sq": second}
