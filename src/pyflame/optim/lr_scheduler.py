"""Learning rates that change while training goes on."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal

from pyflame.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LRScheduler:
    """A learning rate as a function of the step: write `rate(base_lr, step)`, call `step()` after the optimizer's.

    Example:
        >>> import pyflame as pf
        >>> class Halved(pf.optim.LRScheduler):
        ...     def rate(self, base_lr, step):
        ...         return base_lr * 0.5**step
        >>> scheduler = Halved(pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=0.4))
        >>> scheduler.step()
        >>> scheduler.get_lr()
        0.2
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"A scheduler needs an optimizer. Received: {type(optimizer).__name__}")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def rate(self, base_lr: float, step: int) -> float:
        """The learning rate at a step, of a group that began with `base_lr`."""
        raise NotImplementedError(f"{type(self).__name__} must write rate(base_lr, step)")

    def rates(self, step: int) -> list[float]:
        """The learning rates of all groups at a step."""
        return [self.rate(base, step) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step, or to the one given."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for group, rate in zip(self.optimizer.param_groups, self.rates(self.last_epoch), strict=True):
            group["lr"] = rate

    def get_lr(self) -> float:
        """The learning rate now, of the first group."""
        return self.optimizer.param_groups[0]["lr"]

    def get_last_lr(self) -> list[float]:
        """The learning rate now, of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on from here; functions and the optimizer are left out."""
        return {key: value for key, value in vars(self).items() if key != "optimizer" and not callable(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        vars(self).update(state_dict)


class LambdaLR(LRScheduler):
    """The first learning rate times a function of the step, or of a function for each group.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.LambdaLR(sgd, lambda step: 1 / (step + 1))
        >>> scheduler.step(); scheduler.get_lr()
        0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self._lambdas = _each(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The first rates, scaled."""
        return [base * scale(step) for base, scale in zip(self.base_lrs, self._lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Where it is; the functions are left out."""
        return {key: value for key, value in super().state_dict().items() if key != "_lambdas"}


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.StepLR(sgd, step_size=2, gamma=0.5)
        >>> rates = []
        >>> for _ in range(4):
        ...     rates.append(scheduler.get_lr()); scheduler.step()
        >>> rates
        [1.0, 1.0, 0.5, 0.5]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size <= 0:
            raise ValueError(f"step_size must be positive. Received: {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate after the steps down so far."""
        return base_lr * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """Times `gamma` at each milestone.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.MultiStepLR(sgd, milestones=[1, 3], gamma=0.5)
        >>> scheduler.step(); scheduler.step(); scheduler.step(); scheduler.get_lr()
        0.25
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate after the milestones passed."""
        return base_lr * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """Times `gamma` at every step.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.ExponentialLR(sgd, gamma=0.5)
        >>> scheduler.step(); scheduler.get_lr()
        0.5
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate after so many steps."""
        return base_lr * self.gamma**step


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` steps.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> pf.optim.ConstantLR(sgd, factor=0.5).get_lr()
        0.5
    """

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The reduced rate at first, then the full one."""
        return base_lr * self.factor if step < self.total_iters else base_lr


class LinearLR(LRScheduler):
    """From `start_factor` to `end_factor` of the rate in `total_iters` steps.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.LinearLR(sgd, start_factor=0.5, total_iters=2)
        >>> scheduler.step(); scheduler.get_lr()
        0.75
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"start_factor must be above 0 and at most 1. Received: {start_factor}")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"end_factor must be from 0 to 1. Received: {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate on the line."""
        done = min(step, self.total_iters) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * done)


class PolynomialLR(LRScheduler):
    """Down to `end_lr` in `total_iters` steps along a power of the rest of the way.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.PolynomialLR(sgd, total_iters=4, power=2.0)
        >>> scheduler.step(); scheduler.step(); scheduler.get_lr()
        0.25
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        end_lr: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters, self.power, self.end_lr = total_iters, power, end_lr
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate on the curve."""
        left = 1 - min(step, self.total_iters) / self.total_iters
        return self.end_lr + (base_lr - self.end_lr) * left**self.power


class CosineAnnealingLR(LRScheduler):
    """Down to `eta_min` along half a cosine in `T_max` steps, and up again after.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.CosineAnnealingLR(sgd, T_max=2)
        >>> scheduler.step(); round(scheduler.get_lr(), 6)
        0.5
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max <= 0:
            raise ValueError(f"T_max must be positive. Received: {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate on the cosine."""
        return self.eta_min + (base_lr - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines down from the full rate, each `T_mult` times as long as the one before.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.CosineAnnealingWarmRestarts(sgd, T_0=2)
        >>> scheduler.step(2); scheduler.get_lr()
        1.0
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or T_mult < 1:
            raise ValueError(f"T_0 must be positive and T_mult at least 1. Received: {T_0}, {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base_lr: float, step: int) -> float:
        """The rate on the cosine of this round."""
        length, since = self.T_0, step
        while since >= length:
            since -= length
            length *= self.T_mult
        return self.eta_min + (base_lr - self.eta_min) * (1 + math.cos(math.pi * since / length)) / 2


class OneCycleLR(LRScheduler):
    """Up to `max_lr` in the first part of training, then down to almost nothing; momentum stays as it is.

    Args:
        optimizer: Whose rates these are.
        max_lr: The highest rate, or one for each group.
        total_steps: The cycle's length; or `epochs` times `steps_per_epoch`.
        pct_start: The part of the cycle that goes up.
        anneal_strategy: Along a cosine or a line.
        div_factor: The first rate is `max_lr` divided by this.
        final_div_factor: The last rate is the first divided by this.
        last_epoch: The step to go on from.
        epochs: See `total_steps`.
        steps_per_epoch: See `total_steps`.
        three_phase: Down to the first rate as fast as up, then on to the last one.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=0.1)
        >>> scheduler = pf.optim.OneCycleLR(sgd, max_lr=1.0, total_steps=10, pct_start=0.5)
        >>> for _ in range(4):
        ...     scheduler.step()
        >>> round(scheduler.get_lr(), 6)
        1.0
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
        *,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        three_phase: bool = False,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("a cycle needs total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 1:
            raise ValueError(f"total_steps must be above 1. Received: {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start must be from 0 to 1. Received: {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be cos or linear. Received: {anneal_strategy!r}")
        self.max_lr, self.total_steps, self.pct_start = max_lr, total_steps, pct_start
        self.anneal_strategy, self.div_factor, self.final_div_factor = anneal_strategy, div_factor, final_div_factor
        self.three_phase = three_phase
        self._peaks = [float(peak) for peak in _each(max_lr, optimizer, "max_lr")]
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The rates on the way up or down."""
        if step >= self.total_steps:
            raise ValueError(f"The cycle has {self.total_steps} steps; step {step} is beyond its end")
        return [self._on_cycle(peak, step) for peak in self._peaks]

    def _on_cycle(self, peak: float, step: int) -> float:
        first, end = peak / self.div_factor, self.total_steps - 1
        turn = self.pct_start * self.total_steps - 1
        legs = [(turn, first, peak), (end, peak, first / self.final_div_factor)]
        if self.three_phase:
            back = 2 * self.pct_start * self.total_steps - 2
            legs = [(turn, first, peak), (back, peak, first), (end, first, first / self.final_div_factor)]
        start = 0.0
        for until, low, high in legs[:-1]:
            if step <= until:
                return self._between(low, high, (step - start) / (until - start) if until != start else 1.0)
            start = until
        until, low, high = legs[-1]
        return self._between(low, high, (step - start) / (until - start))

    def _between(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * done
        return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


class SequentialLR(LRScheduler):
    """Schedulers one after the other, each counting from its own milestone.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> warm = pf.optim.ConstantLR(sgd, factor=0.1, total_iters=2)
        >>> scheduler = pf.optim.SequentialLR(sgd, [warm, pf.optim.ExponentialLR(sgd, gamma=0.5)], milestones=[2])
        >>> rates = []
        >>> for _ in range(4):
        ...     rates.append(scheduler.get_lr()); scheduler.step()
        >>> rates
        [0.1, 0.1, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones. Received: {milestones}"
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The rates of the scheduler whose turn it is."""
        which = bisect_right(self.milestones, step)
        start = self.milestones[which - 1] if which else 0
        return self.schedulers[which].rates(step - start)

    def state_dict(self) -> dict[str, Any]:
        """Where it is, and the states of its schedulers."""
        state = super().state_dict()
        return {**state, "schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        own = dict(state_dict)
        for scheduler, state in zip(self.schedulers, own.pop("schedulers"), strict=True):
            scheduler.load_state_dict(state)
        super().load_state_dict(own)


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when a measure has not become better for more than `patience` steps.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.ReduceLROnPlateau(sgd, factor=0.5, patience=1)
        >>> for loss in (1.0, 1.0, 1.0):
        ...     scheduler.step(loss)
        >>> scheduler.get_lr()
        0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor must be between 0 and 1. Received: {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"mode must be min or max, threshold_mode rel or abs. Received: {mode!r}, {threshold_mode!r}"
            )
        self.mode, self.factor, self.patience, self.threshold = mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.min_lr, self.eps = threshold_mode, cooldown, min_lr, eps
        self._least = [float(least) for least in _each(min_lr, optimizer, "min_lr")]
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs, self.cooldown_counter = 0, 0
        self.optimizer, self.last_epoch = optimizer, 0
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take in a measure; lower the rate if it has stood still for too long."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return sign * value > sign * self.best + self.threshold
        if math.isinf(self.best):
            return sign * value > sign * self.best
        return value > self.best * (1 + self.threshold) if sign > 0 else value < self.best * (1 - self.threshold)

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self._least, strict=True):
            lower = max(group["lr"] * self.factor, least)
            if group["lr"] - lower > self.eps:
                group["lr"] = lower


def _each(setting: Any, optimizer: Optimizer, name: str) -> list[Any]:
    """A setting for each group of parameters."""
    groups = len(optimizer.param_groups)
    if not isinstance(setting, list | tuple):
        return [setting] * groups
    if len(setting) != groups:
        raise ValueError(f"{name} has {len(setting)} entries, the optimizer {groups} groups of parameters")
    return list(setting)
