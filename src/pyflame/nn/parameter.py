"""Tensors that belong to a module and are trained."""

from __future__ import annotations

from typing import Any

from pyflame.ops.core import as_tensor
from pyflame.tensors import Tensor

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A tensor that a module counts among its parameters when it is assigned to an attribute.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.ones([2, 3]))
        >>> w.requires_grad, w.shape
        (True, [2, 3])
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(as_tensor(data).detach())
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
