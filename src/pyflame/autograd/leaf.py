"""What belongs to a leaf of differentiation, whatever value it has at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.lazy import Spec, Val, next_serial
from pyflame.storage import Versioned, state_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pyflame.tensors import Tensor

__all__ = ["Leaf"]


class Leaf(Versioned):
    """Gradient and hooks of a tensor; it moves along when the tensor is given a new value.

    Attributes:
        requires_grad: gradients stop here and are kept.
        retains: keep the gradient although the value was computed.
        lent: the array that stands for the gradient while a compiled function has it to itself.
        hooks: called with the gradient; may return another.
        serial: counts up with each operation and leaf: what a trace made has a number after its first.
    """

    __slots__ = ("_grad", "_spec", "hooks", "lent", "requires_grad", "retains", "serial")

    def __init__(self, requires_grad: bool = False) -> None:
        super().__init__()
        self.requires_grad = requires_grad
        self.serial = next_serial()
        self.retains = False
        self._grad: Tensor | None = None
        self._spec: Spec | None = None
        self.lent: np.ndarray[Any, Any] | None = None
        self.hooks: dict[int, Callable[[Any], Any]] = {}

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the last backward pass."""
        if self.lent is not None:
            with state_lock:
                self._take_back()
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self.lent is not None or value is not self._grad:
            self.lent, self._grad = None, value
            self.changed()

    @property
    def has_grad(self) -> bool:
        """Whether there is a gradient."""
        return self.lent is not None or self._grad is not None

    def lend(self, array: np.ndarray[Any, Any], spec: Spec) -> None:
        """Let an array that nobody else refers to be the gradient; who reads it takes it back."""
        self._grad, self.lent, self._spec = None, array, spec
        self.changed()

    def _take_back(self) -> None:
        from pyflame.ops.core import wrap

        array, self.lent = self.lent, None
        if array is not None:
            assert self._spec is not None
            self._grad = wrap(Val(self._spec, array=array))
            self.changed()
