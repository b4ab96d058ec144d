"""What all schedulers of learning rates share."""

from __future__ import annotations

from typing import Any

from pyflame.optim.optimizer import Optimizer
from pyflame_rt.graph.arguments import expect_whole
from pyflame_rt.graph.named_arguments import NamedArguments

__all__ = ["LRScheduler", "one_for_each"]


class LRScheduler(NamedArguments):
    """A learning rate as a function of the step: write `rate(base_lr, step)`, call `step()` after the optimizer's.

    A scheduler that can work along with others on one optimizer also writes `next_rate`, from the rate there is.

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
        last_epoch = expect_whole(last_epoch, "last_epoch")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step(None if last_epoch == -1 else last_epoch + 1)

    def rate(self, base_lr: float, step: int) -> float:
        """The learning rate at a step, of a group that began with `base_lr`."""
        raise NotImplementedError(f"{type(self).__name__} must write rate(base_lr, step)")

    def rates(self, step: int) -> list[float]:
        """The learning rates of all groups at a step."""
        return [self.rate(base, step) for base in self.base_lrs]

    def next_rate(self, lr: float, base_lr: float, step: int) -> float:  # noqa: ARG002
        """The learning rate at a step, of a group that has `lr` now: what others have made of it may be kept."""
        return self.rate(base_lr, step)

    def next_rates(self, step: int) -> list[float]:
        """The learning rates of all groups at a step, from those they have now."""
        if type(self).rates is not LRScheduler.rates:
            return self.rates(step)
        groups = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        return [self.next_rate(group["lr"], base, step) for group, base in groups]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step from the rates there are, or to the one given from the first ones."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        rates = self.next_rates(self.last_epoch) if epoch is None else self.rates(self.last_epoch)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
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


def one_for_each(setting: Any, optimizer: Optimizer, name: str) -> list[Any]:
    """A setting for each group of parameters."""
    groups = len(optimizer.param_groups)
    if not isinstance(setting, list | tuple):
        return [setting] * groups
    if len(setting) != groups:
        raise ValueError(f"{name} has {len(setting)} entries, the optimizer {groups} groups of parameters")
    return list(setting)
