"""Mixed precision: a forward pass in half of the bits, weights and steps in all of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.dtypes import DType
from pyflame.nn.norm import GroupNorm, LayerNorm, RMSNorm, _Tracked
from pyflame.ops.arithmetic import isfinite
from pyflame.ops.core import cast
from pyflame.ops.shaping import stack
from pyflame.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame.nn import Module

__all__ = ["GradScaler", "in_precision", "lowered"]

# Their statistics need all the bits.
EXACT = (_Tracked, LayerNorm, GroupNorm, RMSNorm)


def lowered(batch: Any, dtype: DType) -> Any:
    """Floating tensors of a nest in another type."""
    if isinstance(batch, Tensor):
        return cast(batch, dtype) if batch.dtype.is_floating_point else batch
    if isinstance(batch, dict):
        return {key: lowered(value, dtype) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(lowered(part, dtype) for part in batch)
    return batch


@contextmanager
def in_precision(model: Module, dtype: DType) -> Iterator[None]:
    """While it lasts, the model computes with its float32 parameters cast to another type; gradients flow to them."""
    swapped, hooks = [], []
    for module in model.modules():
        if isinstance(module, EXACT):
            hooks.append(module.register_forward_hook(lambda _module, _args, y: lowered(y, dtype)))
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype is DType.float32:
                swapped.append((module, name, parameter))
    try:
        for module, name, parameter in swapped:
            module._parameters[name] = cast(parameter, dtype)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, name, parameter in swapped:
            module._parameters[name] = parameter


class GradScaler:
    """Scales the loss up so that float16 gradients do not vanish, and steps only when they are finite.

    Args:
        init_scale: The first factor.
        growth_factor: Times this after `growth_interval` steps that were finite.
        backoff_factor: Times this after one that was not.
        growth_interval: How many finite steps it takes to grow.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer, scaler = pf.optim.SGD([w], lr=0.5), pf.training.GradScaler()
        >>> scaler.scale((w * w).sum()).backward()
        >>> scaler.step(optimizer)
        True
        >>> w.numpy().tolist()
        [0.0]
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.value, self.growth_factor, self.backoff_factor = float(init_scale), growth_factor, backoff_factor
        self.growth_interval, self._finite_steps, self._unscaled = growth_interval, 0, False

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the factor."""
        return loss * adopt(np.array(self.value, loss.dtype.numpy))

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients by the factor, for clipping before the step."""
        with no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = p.grad.detach() * adopt(np.array(1 / self.value, p.grad.dtype.numpy))
        self._unscaled = True

    def step(self, optimizer: Any) -> bool:
        """Step if all gradients are finite, and choose the next factor; whether it stepped."""
        if not self._unscaled:
            self.unscale_(optimizer)
        self._unscaled = False
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = not gradients or bool(stack([isfinite(g).all() for g in gradients]).all())
        if finite:
            optimizer.step()
            self._finite_steps += 1
            if self._finite_steps >= self.growth_interval:
                self.value, self._finite_steps = self.value * self.growth_factor, 0
        else:
            self.value, self._finite_steps = max(self.value * self.backoff_factor, 2.0**-14), 0
        return finite

    def state_dict(self) -> dict[str, Any]:
        """The factor and how long it has held."""
        return {"scale": self.value, "finite_steps": self._finite_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.value, self._finite_steps = float(state["scale"]), int(state["finite_steps"])
