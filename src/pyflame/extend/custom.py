"""Custom operators: functions on tensors, or on NumPy arrays, under a name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pyflame.extend.function import AutogradFunction

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CustomOp",
    "clear_custom_ops",
    "custom_op",
    "get_custom_op",
    "list_custom_ops",
    "register_custom_op",
    "unregister_custom_op",
]


class CustomOp:
    """A registered operator; call it with tensors.

    Attributes:
        name: under which it is registered.
        forward_fn: gets the arguments, gives a tensor or a tuple of tensors.
        backward_fn: gets ``(ctx, *gradients)`` with ``ctx.saved_tensors`` the tensor arguments and
            ``ctx.outputs`` the results, gives a gradient for each tensor argument.
        schema: whatever description it was registered with.
    """

    def __init__(
        self, name: str, forward_fn: Callable[..., Any], backward_fn: Callable[..., Any] | None, schema: Any
    ) -> None:
        self.name = name
        self.forward_fn = forward_fn
        self.backward_fn = backward_fn
        self.schema = schema
        self._function = None if backward_fn is None else _make_function(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record the operator; without a backward function gradients flow through what forward does."""
        if self._function is None:
            return self.forward_fn(*args, **kwargs)
        return self._function.apply(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<custom operator {self.name}{'' if self.backward_fn is None else ' with gradient'}>"


def _make_function(op: CustomOp) -> type[AutogradFunction]:
    forward_fn, backward_fn = op.forward_fn, op.backward_fn
    assert backward_fn is not None

    class Custom(AutogradFunction):
        @staticmethod
        def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            result = forward_fn(*args, **kwargs)
            ctx.save_for_backward(*[a for a in args if hasattr(a, "_value")])
            ctx.outputs = result
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward_fn(ctx, *grads)

    Custom.__name__ = op.name
    return Custom


_ops: dict[str, CustomOp] = {}
_lock = threading.Lock()


def register_custom_op(
    name: str, forward_fn: Callable[..., Any], backward_fn: Callable[..., Any] | None = None, schema: Any = None
) -> CustomOp:
    """Register an operator; a later one of the same name replaces the earlier.

    Example:
        >>> import pyflame as pf
        >>> cube = pf.extend.register_custom_op(
        ...     "cube", lambda x: x * x * x, lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2
        ... )
        >>> x = pf.tensor([2.0], requires_grad=True)
        >>> cube(x).backward()
        >>> x.grad.item()
        12.0
        >>> pf.extend.unregister_custom_op("cube")
    """
    if not name or not isinstance(name, str):
        raise ValueError(f"a custom operator needs a name, got {name!r}")
    if not callable(forward_fn) or (backward_fn is not None and not callable(backward_fn)):
        raise TypeError(f"custom operator {name!r}: forward and backward must be callable")
    made = CustomOp(name, forward_fn, backward_fn, schema)
    with _lock:
        _ops[name] = made
    return made


def custom_op(
    name: str | None = None, backward: Callable[..., Any] | None = None, schema: Any = None
) -> Callable[[Callable[..., Any]], CustomOp]:
    """Register the decorated function as an operator.

    Example:
        >>> import pyflame as pf
        >>> @pf.extend.custom_op(name="twice")
        ... def twice(x):
        ...     return x + x
        >>> twice(pf.tensor([1.0])).item(), pf.extend.list_custom_ops()
        (2.0, ['twice'])
        >>> pf.extend.clear_custom_ops()
    """

    def declare(fn: Callable[..., Any]) -> CustomOp:
        return register_custom_op(name or fn.__name__, fn, backward, schema)

    return declare


def get_custom_op(name: str) -> CustomOp:
    """The operator of a name."""
    try:
        return _ops[name]
    except KeyError:
        raise KeyError(
            f"there is no custom operator {name!r}. Registered: {', '.join(sorted(_ops)) or 'none'}"
        ) from None


def list_custom_ops() -> list[str]:
    """Names of all operators."""
    return sorted(_ops)


def unregister_custom_op(name: str) -> None:
    """Forget an operator."""
    get_custom_op(name)
    with _lock:
        _ops.pop(name, None)


def clear_custom_ops() -> None:
    """Forget all operators."""
    with _lock:
        _ops.clear()
