"""Dynamic loss scaling, with torch's methods."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.ops.arithmetic import isfinite
from pyflame.ops.core import cast, scalar
from pyflame.ops.shaping import stack
from pyflame.tensors import Tensor

__all__ = ["GradScaler"]


class GradScaler:
    """Scales the loss up so that float16 gradients do not vanish, and steps only when they are finite.

    Args:
        device: "cpu"; names of GPUs warn and switch it off, as in torch without one.
        init_scale: The first factor.
        growth_factor: Times this after `growth_interval` steps that were finite.
        backoff_factor: Times this after one that was not.
        growth_interval: How many finite steps it takes to grow.
        enabled: False makes every method do nothing but what it would do without scaling.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([1]))
        >>> optimizer, scaler = pf.optim.SGD([w], lr=0.5), pf.amp.GradScaler("cpu")
        >>> scaler.scale((w * w).sum()).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> w.tolist(), scaler.get_scale()
        ([0.0], 65536.0)
    """

    def __init__(
        self,
        device: Any = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and str(device) != "cpu":
            warnings.warn(f"GradScaler: there is no {device} device here; switched off", stacklevel=2)
            enabled = False
        if growth_factor <= 1 or not 0 < backoff_factor < 1 or growth_interval < 1:
            raise ValueError(
                "GradScaler: growth_factor is above 1, backoff_factor between 0 and 1, growth_interval > 0"
            )
        self.value, self.growth_factor, self.backoff_factor = float(init_scale), growth_factor, backoff_factor
        self.growth_interval, self._enabled = growth_interval, enabled
        self._finite_steps = 0
        # By optimizer, until `update`: whether all its gradients are finite, and whether it has stepped.
        self._finite: dict[int, bool] = {}
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The factor; 1 when it is switched off."""
        return self.value if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """The loss times the factor, or each of several."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * adopt(np.array(self.value, outputs.dtype.numpy))
        return type(outputs)(self.scale(loss) for loss in outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients by the factor, for clipping before the step."""
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            raise RuntimeError("unscale_() was called on this optimizer before, since the last update()")
        gradients = []
        with no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = cast(p.grad.detach() * scalar(1 / self.value, p.grad.dtype), p.grad.dtype)
                        gradients.append(p.grad)
        self._finite[id(optimizer)] = not gradients or bool(stack([isfinite(g).all() for g in gradients]).all())

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step if all gradients are finite; what the optimizer's step gives, or None."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() was called on this optimizer before, since the last update()")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None

    def update(self, new_scale: float | None = None) -> None:
        """Choose the next factor: the one given, or by what the gradients were like."""
        if not self._enabled:
            return
        if not self._finite and new_scale is None:
            raise RuntimeError("update() comes after step() or unscale_()")
        finite = all(self._finite.values())
        self._finite.clear()
        self._stepped.clear()
        if new_scale is not None:
            self.value = float(new_scale)
        elif not finite:
            self.value, self._finite_steps = self.value * self.backoff_factor, 0
        else:
            self._finite_steps += 1
            if self._finite_steps >= self.growth_interval:
                self.value, self._finite_steps = self.value * self.growth_factor, 0

    def get_growth_factor(self) -> float:
        """What the factor grows by."""
        return self.growth_factor

    def get_backoff_factor(self) -> float:
        """What the factor shrinks by."""
        return self.backoff_factor

    def get_growth_interval(self) -> int:
        """How many finite steps it takes to grow."""
        return self.growth_interval

    def state_dict(self) -> dict[str, Any]:
        """The factor, how long it has held, and the settings; empty when it is switched off."""
        if not self._enabled:
            return {}
        return {
            "scale": self.value,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._finite_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if not self._enabled:
            return
        self.value, self._finite_steps = float(state_dict["scale"]), int(state_dict["_growth_tracker"])
        self.growth_factor, self.backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self.growth_interval = state_dict["growth_interval"]
