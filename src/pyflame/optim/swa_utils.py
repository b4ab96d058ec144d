"""Averages of models over training: stochastic weight averaging and exponential moving averages, as in torch."""

from __future__ import annotations

import itertools
import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.nn.module import Module
from pyflame.nn.norm import _Tracked
from pyflame.optim.lr_scheduler import LRScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "update_bn"]


def get_ema_avg_fn(decay: float = 0.999) -> Callable[..., Any]:
    """The average that forgets by a factor at each update.

    Example:
        >>> import pyflame as pf
        >>> get_ema_avg_fn(0.75)(pf.tensor(0.0), pf.tensor(4.0), 1).item()
        1.0
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"a decay is between 0 and 1, got {decay}")

    def average(averaged: Any, current: Any, count: Any) -> Any:
        del count
        return decay * averaged + (1 - decay) * current

    return average


def get_swa_avg_fn() -> Callable[..., Any]:
    """The plain mean of all that was seen."""

    def average(averaged: Any, current: Any, count: Any) -> Any:
        return averaged + (current - averaged) / (count + 1)

    return average


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[..., Any]:
    """`get_ema_avg_fn` for lists of tensors, which are changed in place."""
    average = get_ema_avg_fn(decay)

    def update(averaged: Iterable[Any], current: Iterable[Any], count: Any) -> None:
        for mine, new in zip(averaged, current, strict=True):
            mine.copy_(average(mine, new.to(mine.dtype), count))

    return update


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the original's.

    Args:
        model: the original.
        device: "cpu".
        avg_fn: `(average, new value, number of updates) -> average`; the plain mean unless given.
        multi_avg_fn: the same for lists of tensors, in place.
        use_buffers: average buffers too; else they are copied.

    Example:
        >>> import pyflame as pf
        >>> model = pf.nn.Linear(1, 1)
        >>> averaged = pf.optim.swa_utils.AveragedModel(model)
        >>> averaged.update_parameters(model)
        >>> averaged.n_averaged.item()
        1
    """

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[..., Any] | None = None,
        multi_avg_fn: Callable[..., Any] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("give avg_fn or multi_avg_fn, not both")
        self.module = deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", adopt(np.array(0, np.int64)))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model gives."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the original's values of now into the averages; the first time they are copied."""
        count = int(self.n_averaged.item())
        with no_grad():
            mine, theirs = list(self._averaged(self.module)), list(self._averaged(model))
            if count == 0:
                for ours, new in zip(mine, theirs, strict=True):
                    ours.copy_(new.detach())
            elif self.multi_avg_fn is not None:
                self.multi_avg_fn([m.detach() for m in mine], [t.detach() for t in theirs], count)
            else:
                average = self.avg_fn or get_swa_avg_fn()
                for ours, new in zip(mine, theirs, strict=True):
                    ours.copy_(average(ours.detach(), new.detach(), count))
            if not self.use_buffers:
                for ours, new in zip(self.module.buffers(), model.buffers(), strict=True):
                    ours.copy_(new.detach())
            self.n_averaged.add_(1)

    def _averaged(self, model: Module) -> Iterable[Any]:
        return itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters()


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Count the statistics of batch normalisation anew, over all batches of a loader."""
    layers = [m for m in model.modules() if isinstance(m, _Tracked)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    before = model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        with no_grad():
            for batch in loader:
                first = batch[0] if isinstance(batch, tuple | list) else batch
                model(first if device is None else first.to(device))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(before)


class SWALR(LRScheduler):
    """The learning rate that goes to a fixed one over some epochs and stays there.

    Args:
        optimizer: whose rate it is.
        swa_lr: the rate it goes to, one for all groups or a list.
        anneal_epochs: how many epochs it takes.
        anneal_strategy: "cos" or "linear".
        last_epoch: where to go on from.

    Example:
        >>> import pyflame as pf
        >>> optimizer = pf.optim.SGD([pf.nn.Parameter(pf.ones(1))], lr=1.0)
        >>> scheduler = pf.optim.swa_utils.SWALR(optimizer, swa_lr=0.5, anneal_epochs=2, anneal_strategy="linear")
        >>> for _ in range(2):
        ...     optimizer.step(); scheduler.step()
        >>> scheduler.get_last_lr()
        [0.5]
    """

    def __init__(
        self,
        optimizer: Any,
        swa_lr: Any,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs is a whole number, got {anneal_epochs!r}")
        groups = optimizer.param_groups
        rates = list(swa_lr) if isinstance(swa_lr, tuple | list) else [swa_lr] * len(groups)
        if len(rates) != len(groups):
            raise ValueError(f"{len(groups)} groups but {len(rates)} rates")
        for group, rate in zip(groups, rates, strict=True):
            group["swa_lr"] = float(rate)
        self.anneal_epochs, self._cosine = anneal_epochs, anneal_strategy == "cos"
        super().__init__(optimizer, last_epoch)

    def _share(self, t: float) -> float:
        return (1 - math.cos(math.pi * t)) / 2 if self._cosine else t

    def rates(self, step: int) -> list[float]:
        """The rates of an epoch."""
        length = max(1, self.anneal_epochs)
        step = step if self.anneal_epochs else max(1, step)
        before, now = (self._share(max(0.0, min(1.0, s / length))) for s in (step - 1, step))
        made = []
        for group in self.optimizer.param_groups:
            goal, rate = group["swa_lr"], group["lr"]
            first = rate if before == 1 else (rate - before * goal) / (1 - before)
            made.append(goal * now + first * (1 - now))
        return made
