"""AutogradFunction: forward and backward written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd.function import with_gradient
from pyflame.autograd.modes import no_grad
from pyflame.lazy import modes
from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AutogradFunction", "FunctionContext", "taken_gradients"]


class FunctionContext:
    """What forward leaves for backward; further attributes may be set freely.

    Attributes:
        needs_input_grad: for each argument, whether a gradient is asked for.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...] = ()) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Any, ...] = ()
        self._silent: set[int] = set()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for backward."""
        for t in tensors:
            if t is not None and not isinstance(t, Handle):
                raise TypeError(f"save_for_backward keeps tensors, got {type(t).__name__}; set an attribute instead")
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were kept."""
        return self._saved

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say that no gradient flows through these outputs."""
        self._silent |= {id(t) for t in tensors}


class AutogradFunction:
    """A function whose gradient is written by hand: subclass it, call it with :meth:`apply`.

    Example:
        >>> import pyflame as pf
        >>> class Double(pf.extend.AutogradFunction):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * 2
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         return grad_output * 2
        >>> x = pf.tensor([1.0], requires_grad=True)
        >>> Double.apply(x).backward()
        >>> x.grad.item()
        2.0
    """

    @staticmethod
    def forward(ctx: FunctionContext, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; ``ctx`` keeps what backward needs."""
        raise NotImplementedError("an AutogradFunction needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: FunctionContext, *grad_outputs: Any) -> Any:
        """The gradient of each argument of forward, None where there is none."""
        raise NotImplementedError("an AutogradFunction needs a static method backward(ctx, *grad_outputs)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        needs = tuple(isinstance(a, Handle) and a._value.needs_grad for a in args)
        ctx = FunctionContext(needs)
        with no_grad():
            result = cls.forward(ctx, *args, **kwargs)
        if not modes.grad or not any(needs):
            return result
        outs = list(result) if isinstance(result, (tuple, list)) else [result]
        places = [i for i, a in enumerate(args) if isinstance(a, Handle)]

        def rule(*grads: Any) -> list[Any]:
            full = [_zeros(o) if g is None else g for g, o in zip(grads, outs, strict=True)]
            given = cls.backward(ctx, *full)
            taken = taken_gradients(cls.__name__, given, places, len(args))
            return [g if needs[i] else None for i, g in zip(places, taken, strict=True)]

        made = with_gradient(cls.__name__, outs, [args[i] for i in places], rule)
        for t, old in zip(made, outs, strict=True):
            if id(old) in ctx._silent:
                t._value.needs_grad = False
        return made[0] if not isinstance(result, (tuple, list)) else type(result)(made)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`apply`."""
        return type(self).apply(*args, **kwargs)


def _zeros(t: Any) -> Any:
    from pyflame.ops.creation import zeros_like

    return zeros_like(t)


def taken_gradients(name: str, given: Any, places: Sequence[int], count: int) -> list[Any]:
    """The gradients of the tensors among some arguments, of what a backward function gave for all of them.

    Args:
        name: of the function.
        given: by it: a gradient, or several; those of arguments after the last tensor may be left out.
        places: numbers of the arguments that are tensors.
        count: how many arguments there are.
    """
    listed = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(listed) <= max(places) or any(extra is not None for extra in listed[count:]):
        raise RuntimeError(f"{name}.backward gave {len(listed)} gradients for {count} arguments")
    return [listed[i] for i in places]
