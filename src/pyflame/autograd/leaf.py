"""What belongs to a leaf of differentiation, whatever value it has at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = ["Leaf"]


class Leaf:
    """Gradient and hooks of a tensor; it moves along when the tensor is given a new value.

    Attributes:
        requires_grad: gradients stop here and are kept.
        retains: keep the gradient although the value was computed.
        grad: the gradient of the last backward pass.
        hooks: called with the gradient; may return another.
    """

    __slots__ = ("__weakref__", "grad", "hooks", "requires_grad", "retains")

    def __init__(self, requires_grad: bool = False) -> None:
        self.requires_grad = requires_grad
        self.retains = False
        self.grad: Tensor | None = None
        self.hooks: dict[int, Callable[[Any], Any]] = {}
