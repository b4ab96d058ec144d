"""Mixed precision on GPUs, of which there are none: contexts and scalers that warn and do nothing, as in torch."""

from __future__ import annotations

from typing import Any

from pyflame.amp.context import autocast as _autocast
from pyflame.amp.scaling import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast"]


class autocast(_autocast):
    """`pf.amp.autocast("cuda", ...)`.

    Example:
        >>> import pyflame as pf
        >>> with pf.cuda.amp.autocast(enabled=False):
        ...     print(pf.ones([2, 2]).matmul(pf.ones([2, 2])).dtype)
        DType.float32
    """

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """`pf.amp.GradScaler("cuda", ...)`.

    Example:
        >>> import pyflame as pf
        >>> pf.cuda.amp.GradScaler(enabled=False).is_enabled()
        False
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
