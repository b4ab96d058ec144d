"""One training step: forward, backward, and the optimizer, perhaps compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.nn.utils import clip_grad_norm_, clip_grad_value_
from pyflame.ops.core import cast
from pyflame.training.precision import GradScaler, in_precision, lowered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.nn import Module
    from pyflame.optim import Optimizer
    from pyflame.tensors import Tensor
    from pyflame.training.config import TrainerConfig

__all__ = ["TrainingStep", "apply_model"]


def apply_model(model: Any, inputs: Any) -> Any:
    """Call the model with a tensor, with the parts of a tuple, or with the entries of a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


class TrainingStep:
    """What is done with each training batch."""

    def __init__(
        self, model: Module, optimizer: Optimizer, loss_fn: Callable[..., Tensor], config: TrainerConfig
    ) -> None:
        self.model, self.optimizer, self.loss_fn, self.config = model, optimizer, loss_fn, config
        self.scaler = GradScaler() if config.precision == "float16" else None
        self.accumulate = config.accumulate_grad_batches
        self._samples, self._unit = 0, 0
        self._whole, self._gather = self._perhaps(self._one_go), self._perhaps(self._add)
        self._last, self._apply = self._perhaps(self._add_and_apply), self._perhaps(self._scale_and_update)

    def __call__(self, inputs: Any, targets: Any, *, last: bool, size: int = 1) -> tuple[Tensor, Any]:
        """The loss and outputs of a batch; parameters change at the last batch of an accumulation."""
        if self.scaler is None and self.accumulate == 1:
            return self._whole(inputs, targets)
        size = max(size, 1)
        unit, there = self._unit or size, self._samples + size
        # A batch counts by its samples, as it would in one large batch.
        share = _number(size / (unit * self.accumulate))
        if last and self.scaler is None:
            loss, outputs = self._last(inputs, targets, share, self._missing(unit, there))
            self._samples = self._unit = 0
            return loss, outputs
        loss, outputs = self._gather(
            inputs, targets, share, None if self.scaler is None else _number(self.scaler.value)
        )
        self._unit, self._samples = unit, there
        if last:
            self.finish()
        return loss, outputs

    def finish(self) -> bool:
        """Step with the gradients that have come together, however few; whether there were any."""
        if not self._samples:
            return False
        factor = self._missing(self._unit, self._samples)
        self._samples = self._unit = 0
        if self.scaler is None:
            self._apply(factor)
        else:
            self._scale_and_update(factor)
        return True

    def _missing(self, unit: int, there: int) -> Any:
        """What makes gradients of fewer samples than expected those of a whole step; None where none are missing."""
        expected = unit * self.accumulate
        return None if there == expected else _number(expected / there)

    def pending(self) -> dict[str, Any] | None:
        """The gradients of a step whose batches have not all come."""
        if not self._samples:
            return None
        gradients = [None if p.grad is None else p.grad.detach() for p in self._parameters()]
        return {"samples": self._samples, "unit": self._unit, "gradients": gradients}

    def load_pending(self, state: dict[str, Any] | None) -> None:
        """Go on from such gradients."""
        self.optimizer.zero_grad()
        self._samples, self._unit = (0, 0) if state is None else (state["samples"], state["unit"])
        if state is not None:
            for p, gradient in zip(self._parameters(), state["gradients"], strict=True):
                p.grad = gradient

    def forward(self, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        """The loss (in float32) and the outputs."""
        if self.config.precision == "float32":
            outputs = apply_model(self.model, inputs)
        else:
            dtype = DType[self.config.precision]
            with in_precision(self.model, dtype):
                outputs = lowered(apply_model(self.model, lowered(inputs, dtype)), DType.float32)
        loss = self.loss_fn(outputs, targets) if targets is not None else self.loss_fn(outputs)
        return (loss if loss.dtype.is_floating_point else cast(loss, DType.float32)), outputs

    def _perhaps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled, unless the settings say otherwise."""
        from pyflame.compiling.compiled import compile_function

        return compile_function(function) if self.config.compile else function

    def _one_go(self, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        loss, outputs = self.forward(inputs, targets)
        loss.backward()
        self._update()
        return loss.detach(), outputs

    def _add(self, inputs: Any, targets: Any, share: Any, scale: Any) -> tuple[Tensor, Any]:
        """Add a batch's share to the gradients."""
        loss, outputs = self.forward(inputs, targets)
        part = loss * cast(share, loss.dtype)
        (part if scale is None else part * cast(scale, loss.dtype)).backward()
        return loss.detach(), outputs

    def _add_and_apply(self, inputs: Any, targets: Any, share: Any, factor: Any) -> tuple[Tensor, Any]:
        loss, outputs = self._add(inputs, targets, share, None)
        self._scale_and_update(factor)
        return loss, outputs

    def _scale_and_update(self, factor: Any) -> None:
        if factor is not None:
            with no_grad():
                for p in self._parameters():
                    if p.grad is not None:
                        p.grad = p.grad.detach() * cast(factor, p.grad.dtype)
        self._update()

    def _parameters(self) -> list[Tensor]:
        return self.optimizer.parameters()

    def _update(self) -> None:
        config = self.config
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = self._parameters()
        if config.grad_clip_value is not None:
            clip_grad_value_(parameters, config.grad_clip_value)
        if config.grad_clip_norm is not None:
            clip_grad_norm_(parameters, config.grad_clip_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


def _number(value: float) -> Tensor:
    """A number that compiled steps read anew each time."""
    return adopt(np.array(value, np.float64))
