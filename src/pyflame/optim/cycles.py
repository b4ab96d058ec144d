"""Learning rates and momentum that go up and down in cycles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pyflame.optim.scheduling import LRScheduler, one_for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.optim.optimizer import Optimizer

__all__ = ["CyclicLR", "OneCycleLR"]


class _Cycle(LRScheduler):
    """Rates along a cycle, and momentum (or Adam's first beta) the other way round."""

    cycle_momentum: bool

    def _begin_momentum(self, base: float | Sequence[float], top: float | Sequence[float], last_epoch: int) -> None:
        """Check that there is a momentum, and let it begin at the top."""
        optimizer = self.optimizer
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self._lowest = [float(m) for m in one_for_each(base, optimizer, "base_momentum")]
        self._highest = [float(m) for m in one_for_each(top, optimizer, "max_momentum")]
        for group, low, high in zip(optimizer.param_groups, self._lowest, self._highest, strict=True):
            group.vary("betas" if "betas" in group else "momentum")
            if last_epoch == -1:
                _set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low

    def momenta(self, step: int) -> list[float]:
        """The momentum of all groups at a step."""
        raise NotImplementedError(f"{type(self).__name__} must write momenta(step)")

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step, or to the one given."""
        super().step(epoch)
        if self.cycle_momentum:
            for group, momentum in zip(self.optimizer.param_groups, self.momenta(self.last_epoch), strict=True):
                _set_momentum(group, momentum)


def _set_momentum(group: Any, momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


class OneCycleLR(_Cycle):
    """Up to `max_lr` in the first part of training, then down to almost nothing; momentum goes the other way.

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
        cycle_momentum: Lower the momentum (or Adam's first beta) while the rate is high.
        base_momentum: The lowest momentum, or one for each group.
        max_momentum: The highest momentum, or one for each group; the cycle begins and ends with it.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=0.1, momentum=0.9)
        >>> scheduler = pf.optim.OneCycleLR(sgd, max_lr=1.0, total_steps=10, pct_start=0.5)
        >>> for _ in range(4):
        ...     scheduler.step()
        >>> round(scheduler.get_lr(), 6), round(sgd.param_groups[0]["momentum"], 6)
        (1.0, 0.85)
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
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
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
        self.three_phase, self.cycle_momentum = three_phase, cycle_momentum
        self._peaks = [float(peak) for peak in one_for_each(max_lr, optimizer, "max_lr")]
        self.optimizer = optimizer
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        """The rates on the way up or down."""
        if step > self.total_steps:  # one step() after the last update is usual, and as in torch its rate is unused
            raise ValueError(f"The cycle has {self.total_steps} steps; step {step} is beyond its end")
        found = []
        for peak in self._peaks:
            first = peak / self.div_factor
            last = first / self.final_div_factor
            found.append(self._on_cycle([first, peak, first, last] if self.three_phase else [first, peak, last], step))
        return found

    def momenta(self, step: int) -> list[float]:
        """The momentum on the way down or up."""
        pairs = zip(self._lowest, self._highest, strict=True)
        rest = 1 if self.three_phase else 0
        return [self._on_cycle([high, low, high] + [high] * rest, step) for low, high in pairs]

    def _on_cycle(self, points: list[float], step: int) -> float:
        """The value at a step on the way from point to point."""
        ends = [self.pct_start * self.total_steps - 1, float(self.total_steps - 1)]
        if self.three_phase:
            ends.insert(1, 2 * self.pct_start * self.total_steps - 2)
        start = 0.0
        for until, low, high in zip(ends, points, points[1:], strict=False):
            if step <= until or until == ends[-1]:
                return self._between(low, high, (step - start) / (until - start) if until != start else 1.0)
            start = until
        return points[-1]

    def _between(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * done
        return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


class CyclicLR(_Cycle):
    """Up from `base_lr` to `max_lr` and down again, over and over; momentum goes the other way.

    Args:
        optimizer: Whose rates these are.
        base_lr: The lowest rate, or one for each group.
        max_lr: The highest rate, or one for each group.
        step_size_up: Steps on the way up.
        step_size_down: Steps on the way down; as many as up if not given.
        mode: "triangular" keeps the height, "triangular2" halves it after each cycle, "exp_range" scales it by
            `gamma` to the power of the step.
        gamma: See `mode`.
        scale_fn: The height as a function, instead of `mode`.
        scale_mode: Whether that function is given the number of the cycle ("cycle") or of the step ("iterations").
        cycle_momentum: Lower the momentum (or Adam's first beta) while the rate is high.
        base_momentum: The lowest momentum, or one for each group.
        max_momentum: The highest momentum, or one for each group.
        last_epoch: The step to go on from.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=0.1, momentum=0.9)
        >>> scheduler = pf.optim.CyclicLR(sgd, base_lr=0.1, max_lr=0.5, step_size_up=2)
        >>> rates = []
        >>> for _ in range(5):
        ...     rates.append(round(scheduler.get_lr(), 6)); scheduler.step()
        >>> rates
        [0.1, 0.3, 0.5, 0.3, 0.1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode is invalid and scale_fn is None. Received: {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"scale_mode must be cycle or iterations. Received: {scale_mode!r}")
        down = step_size_up if step_size_down is None else step_size_down
        if step_size_up <= 0 or down < 0:
            raise ValueError(f"step sizes must be positive. Received: {step_size_up}, {step_size_down}")
        lowest = [float(rate) for rate in one_for_each(base_lr, optimizer, "base_lr")]
        self.max_lrs = [float(rate) for rate in one_for_each(max_lr, optimizer, "max_lr")]
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn, self.cycle_momentum = mode, gamma, scale_fn, cycle_momentum
        if scale_fn is None:
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.scale_mode = scale_mode
        self.optimizer = optimizer
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, lowest, strict=True):
                group["lr"] = rate
                group["initial_lr"] = rate
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        self._lowest_lrs = lowest
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, number: float) -> float:
        """How high the cycles are, at the number of a cycle or of a step."""
        if self._scale_fn is not None:
            return self._scale_fn(number)
        if self.mode == "triangular2":
            return 1 / (2.0 ** (number - 1))
        return self.gamma**number if self.mode == "exp_range" else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Where it is; the function is left out."""
        return {key: value for key, value in super().state_dict().items() if key != "_scale_fn"}

    def _height(self, step: int) -> float:
        """Where a step is between the lowest point, 0, and the highest, 1."""
        cycle = math.floor(1 + step / self.total_size)
        done = 1.0 + step / self.total_size - cycle
        along = done / self.step_ratio if done <= self.step_ratio else (done - 1) / (self.step_ratio - 1)
        return along * self.scale_fn(cycle if self.scale_mode == "cycle" else step)

    def rates(self, step: int) -> list[float]:
        """The rates on the way up or down."""
        height = self._height(step)
        return [low + (high - low) * height for low, high in zip(self._lowest_lrs, self.max_lrs, strict=True)]

    def momenta(self, step: int) -> list[float]:
        """The momentum on the way down or up."""
        height = self._height(step)
        return [high - (high - low) * height for low, high in zip(self._lowest, self._highest, strict=True)]
