"""One training step: forward, backward, and the optimizer, perhaps compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

__all__ = ["Step", "apply_model"]


def apply_model(model: Any, inputs: Any) -> Any:
    """Call the model with a tensor, with the parts of a tuple, or with the entries of a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


class Step:
    """What is done with each training batch."""

    def __init__(
        self, model: Module, optimizer: Optimizer, loss_fn: Callable[..., Tensor], config: TrainerConfig
    ) -> None:
        self.model, self.optimizer, self.loss_fn, self.config = model, optimizer, loss_fn, config
        self.scaler = GradScaler() if config.precision == "float16" else None
        self.accumulate = config.accumulate_grad_batches
        self._samples, self._unit = 0, 0
        self._whole = self._compiled() if self._can_compile() else self._one_go

    def __call__(self, inputs: Any, targets: Any, *, last: bool, size: int = 1) -> tuple[Tensor, Any]:
        """The loss and outputs of a batch; parameters change at the last batch of an accumulation."""
        if self.scaler is None and self.accumulate == 1:
            return self._whole(inputs, targets)
        loss, outputs = self.forward(inputs, targets)
        self._unit = self._unit or max(size, 1)
        self._samples += max(size, 1)
        # A batch counts by its samples, as it would in one large batch.
        share = max(size, 1) / (self._unit * self.accumulate)
        part = loss if share == 1 else loss * share
        (part if self.scaler is None else self.scaler.scale(part)).backward()
        if last:
            self.finish()
        return loss.detach(), outputs

    def finish(self) -> bool:
        """Step with the gradients that have come together, however few; whether there were any."""
        if not self._samples:
            return False
        expected, there = self._unit * self.accumulate, self._samples
        if there != expected:
            with no_grad():
                for p in self._parameters():
                    if p.grad is not None:
                        p.grad = p.grad.detach() * (expected / there)
        self._samples = self._unit = 0
        self._update()
        return True

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

    def _can_compile(self) -> bool:
        return self.config.compile and self.scaler is None and self.accumulate == 1

    def _compiled(self) -> Callable[..., Any]:
        from pyflame.compiling.compiled import compile_function

        return compile_function(self._one_go)

    def _one_go(self, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        loss, outputs = self.forward(inputs, targets)
        loss.backward()
        self._update()
        return loss.detach(), outputs

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

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
