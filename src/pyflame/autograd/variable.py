"""Variable: what torch called a tensor with gradients before tensors had them."""

from __future__ import annotations

from typing import Any

from pyflame.tensors import Tensor

__all__ = ["Variable"]


class _AnyTensor(type):
    """Makes `isinstance(x, Variable)` true for tensors."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_AnyTensor):
    """The tensor itself, without its history; with ``requires_grad`` a leaf that gradients are computed for.

    Example:
        >>> import pyflame as pf
        >>> pf.autograd.Variable(pf.ones(2), requires_grad=True).requires_grad
        True
    """

    def __new__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Any:
        """A tensor on the same storage."""
        if volatile:
            raise TypeError("Variable(volatile=True) is gone from torch too; use pf.no_grad()")
        made = data.detach() if data.requires_grad or requires_grad else data
        return made.requires_grad_() if requires_grad else made
