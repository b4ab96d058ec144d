"""autocast: a context in which products are computed in half of the bits."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

from pyflame.dtypes import DType, to_dtype
from pyflame.lazy import mode_changes, modes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["autocast", "is_autocast_available"]

_ABSENT = ("cuda", "mps", "xpu", "hpu", "mtia")


def is_autocast_available(device_type: str) -> bool:
    """Whether `autocast` does something for a kind of device: on "cpu" it does.

    Example:
        >>> is_autocast_available("cpu"), is_autocast_available("cuda")
        (True, False)
    """
    return device_type == "cpu"


class autocast:
    """While it lasts, products (linear, matmul, convolutions, attention) take float32 operands in half of the bits.

    Losses take theirs in float32; everything else keeps the type of its operands. Weights stay as they are, and so do
    their gradients. Also a decorator.

    Args:
        device_type: "cpu". Names of GPUs warn and switch it off, as in torch without one.
        dtype: bfloat16 unless told otherwise, or float16.
        enabled: False leaves all as it is.
        cache_enabled: torch keeps cast weights for the next use; here a graph casts each of them once in any case.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.Linear(4, 2)
        >>> with pf.autocast("cpu"):
        ...     y = layer(pf.ones([3, 4]))
        ...     loss = pf.nn.functional.mse_loss(y, pf.zeros([3, 2]))
        >>> y.dtype, loss.dtype, layer.weight.dtype
        (DType.bfloat16, DType.float32, DType.float32)
    """

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        del cache_enabled
        if device_type not in ("cpu", *_ABSENT):
            raise RuntimeError(f"autocast: there is no device type {device_type!r} here; use 'cpu'")
        if enabled and device_type != "cpu":
            warnings.warn(f"autocast: there is no {device_type} device here; switched off", stacklevel=3)
            enabled = False
        kind = DType.bfloat16 if dtype is None else to_dtype(dtype)
        if enabled and kind not in (DType.bfloat16, DType.float16):
            raise RuntimeError(f"autocast computes in bfloat16 or float16, got {kind.name}")
        self.device_type, self.fast_dtype, self.enabled = device_type, kind, enabled
        self._before: list[DType | None] = []

    def _switch(self, kind: DType | None) -> None:
        if modes.autocast is not kind:
            modes.switch(autocast=kind)
            mode_changes[0] += 1

    def __enter__(self) -> Self:
        self._before.append(modes.autocast)
        if self.device_type == "cpu":
            self._switch(self.fast_dtype if self.enabled else None)
        return self

    def __exit__(self, *_: object) -> None:
        self._switch(self._before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run in such a context."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run
