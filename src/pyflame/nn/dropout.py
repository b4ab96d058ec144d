"""Dropout as layers."""

from __future__ import annotations

from typing import Any

from pyflame.nn import functional as F
from pyflame.nn.simple import FunctionLayer

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"]


class _Dropout(FunctionLayer):
    """Dropout while training; the input itself otherwise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= self.p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1. Received: {self.p}")

    def forward(self, input: Any) -> Any:
        """The input, with values left out in training."""
        return self.call(input, training=self.training, inplace=self.inplace)


class Dropout(_Dropout):
    """Each value left out with chance `p` in training.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Dropout(0.5).eval()(pf.ones([4])).numpy().min().item()
        1.0
    """

    function = F.dropout


class Dropout1d(_Dropout):
    """Whole channels of [N, C, L] left out with chance `p` in training.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Dropout1d(0.5).eval()(pf.ones([1, 2, 3])).numpy().min().item()
        1.0
    """

    function = F.dropout1d


class Dropout2d(_Dropout):
    """Whole channels of [N, C, H, W] left out with chance `p` in training.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Dropout2d(0.5).eval()(pf.ones([1, 2, 3, 3])).numpy().min().item()
        1.0
    """

    function = F.dropout2d


class Dropout3d(_Dropout):
    """Whole channels of [N, C, D, H, W] left out with chance `p` in training.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Dropout3d(0.5).eval()(pf.ones([1, 2, 3, 3, 3])).numpy().min().item()
        1.0
    """

    function = F.dropout3d


class AlphaDropout(_Dropout):
    """Dropout that keeps the mean and spread that SELU works with.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.AlphaDropout(0.5).eval()(pf.ones([4])).numpy().min().item()
        1.0
    """

    function = F.alpha_dropout
