"""Learning rates that change while training goes on."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal

from pyflame.optim.cycles import CyclicLR, OneCycleLR
from pyflame.optim.scheduling import LRScheduler, one_for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.optim.optimizer import Optimizer

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


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
        self._lambdas = one_for_each(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The first rates, scaled."""
        return [base * scale(step) for base, scale in zip(self.base_lrs, self._lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Where it is; the functions are left out."""
        return {key: value for key, value in super().state_dict().items() if key != "_lambdas"}


class MultiplicativeLR(LRScheduler):
    """The learning rate there is times a function of the step, or of a function for each group.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> scheduler = pf.optim.MultiplicativeLR(sgd, lambda step: 0.5)
        >>> scheduler.step(); scheduler.step(); scheduler.get_lr()
        0.25
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self._lambdas = one_for_each(lr_lambda, optimizer, "lr_lambda")
        if not all(callable(scale) for scale in self._lambdas):
            raise TypeError(f"lr_lambda should be a function. Received: {lr_lambda!r}")
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The rates there are, scaled from the second step on."""
        groups = zip(self.optimizer.param_groups, self._lambdas, strict=True)
        return [group["lr"] * scale(step) if step > 0 else group["lr"] for group, scale in groups]

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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """A step down where one is due."""
        return lr * self.gamma if step and step % self.step_size == 0 else lr


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """A step down at a milestone."""
        return lr * self.gamma ** self.milestones.count(step)


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """One step further down."""
        return lr * self.gamma if step else lr


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """Reduced at the first step, and back where the time is over."""
        if step == 0:
            return lr * self.factor
        return lr * (1.0 / self.factor) if step == self.total_iters else lr


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """One step further along the line."""
        if step == 0:
            return lr * self.start_factor
        if step > self.total_iters:
            return lr
        rise = self.end_factor - self.start_factor
        return lr * (1.0 + rise / (self.total_iters * self.start_factor + (step - 1) * rise))


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """One step further down the curve."""
        if step == 0 or step > self.total_iters:
            return lr
        shrink = ((1.0 - step / self.total_iters) / (1.0 - (step - 1) / self.total_iters)) ** self.power
        return self.end_lr + (lr - self.end_lr) * shrink


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

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:
        """One step further along the cosine."""
        if step == 0:
            return lr
        if (step - 1 - self.T_max) % (2 * self.T_max) == 0:  # up again from the lowest point
            return lr + (base_lr - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        turned = (1 + math.cos(math.pi * step / self.T_max)) / (1 + math.cos(math.pi * (step - 1) / self.T_max))
        return turned * (lr - self.eta_min) + self.eta_min


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


class ChainedScheduler(LRScheduler):
    """Schedulers that all change the rates at every step, each what those before it left.

    Args:
        schedulers: Those of one optimizer, in the order in which they take their steps.
        optimizer: Theirs, if it is to be checked.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> halved, slow = pf.optim.ExponentialLR(sgd, gamma=0.5), pf.optim.ConstantLR(sgd, factor=0.25, total_iters=2)
        >>> scheduler = pf.optim.ChainedScheduler([halved, slow])
        >>> rates = []
        >>> for _ in range(4):
        ...     rates.append(scheduler.get_lr()); scheduler.step()
        >>> rates
        [0.25, 0.125, 0.25, 0.125]
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if len(schedulers) < 1:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        whose = schedulers[0].optimizer if optimizer is None else optimizer
        for place, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"the scheduler at index {place} has no optimizer: {type(scheduler).__name__}")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"ReduceLROnPlateau needs a measure at each step and cannot be chained (index {place})"
                )
            if scheduler.optimizer is not whose:
                raise ValueError(f"the scheduler at index {place} belongs to another optimizer than the others")
        self.optimizer, self.schedulers = whose, list(schedulers)

    def step(self, epoch: int | None = None) -> None:
        """Let every scheduler take its step."""
        if epoch is not None:
            raise ValueError("ChainedScheduler goes from step to step; leave epoch out")
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of its schedulers."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)


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
        self._least = [float(least) for least in one_for_each(min_lr, optimizer, "min_lr")]
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
