"""Functions with a gradient of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.lazy import Expr, Val, apply_many, modes
from pyflame.ops.core import Handle, wrap
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.pyflame.markers import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Function", "with_gradient"]


class Function:
    """The gradient of a piece of graph: the values it was called with, and how to go back to them."""

    __slots__ = ("inputs", "movable", "name", "rule")

    def __init__(
        self, name: str, inputs: tuple[Val, ...], rule: Callable[..., Sequence[Any]], *, movable: bool = False
    ) -> None:
        self.name = name
        self.movable = movable  # the rule is the same for other inputs
        self.inputs = inputs
        self.rule = rule

    def backward(self, grads: Sequence[Val | None]) -> list[Val | None]:
        """The gradients of the inputs."""
        given = self.rule(*[None if g is None else wrap(g) for g in grads])
        if len(given) != len(self.inputs):
            raise RuntimeError(f"{self.name}.backward gave {len(given)} gradients for {len(self.inputs)} tensor inputs")
        results: list[Val | None] = []
        for g, v in zip(given, self.inputs, strict=True):
            if g is not None and not isinstance(g, Handle):
                raise TypeError(f"{self.name}.backward gave {type(g).__name__}, a tensor or None is needed")
            if g is not None and tuple(g._value.spec.shape) != tuple(v.spec.shape):
                raise ShapeMismatchError(
                    f"{self.name}.backward gave a gradient of {g._value.spec.shape} for an input of {v.spec.shape}"
                )
            results.append(None if g is None else g._value)
        return results


def with_gradient(
    name: str, outputs: Sequence[Any], inputs: Sequence[Any], rule: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Tensors equal to ``outputs`` whose gradient for ``inputs`` is what ``rule(*gradients)`` gives.

    Args:
        name: for messages.
        outputs: what the function computed, without history.
        inputs: the tensors it was called with.
        rule: gets the gradient of each output (None where none came), gives one for each input or None.
    """
    sources = tuple(t._value for t in inputs)
    if not modes.grad or not any(v.needs_grad for v in sources):
        return list(outputs)
    made = apply_many(Bundle, tuple(t._value for t in outputs))
    expr = made[0].expr
    assert isinstance(expr, Expr)
    expr.function = Function(name, sources, rule)
    for v in made:
        v.needs_grad = v.spec.dtype.is_inexact
    return [wrap(v) for v in made]
