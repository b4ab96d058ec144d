"""Mixed precision: a forward pass in half of the bits, weights and steps in all of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyflame.amp.scaling import GradScaler as _Scaler
from pyflame.dtypes import DType
from pyflame.nn.norm import GroupNorm, LayerNorm, RMSNorm, _Tracked
from pyflame.ops.core import cast
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


class GradScaler(_Scaler):
    """`pf.amp.GradScaler` for the CPU, whose `step` updates the factor too and says whether it stepped.

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
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> bool:
        """Step if all gradients are finite, and choose the next factor; whether it stepped."""
        super().step(optimizer, *args, **kwargs)
        finite = self._finite[id(optimizer)]
        self.update()
        self.value = max(self.value, 2.0**-14)
        return finite
