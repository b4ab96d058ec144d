"""Custom operators: functions on tensors under a name, which models of the runtime can use too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.extend.bridge import TensorFunction, TensorGradient
from pyflame.extend.function import AutogradFunction
from pyflame.lazy import apply_many
from pyflame.ops.core import Handle, as_tensor, modes, wrap
from pyflame_rt.custom.operator import OpSchema
from pyflame_rt.custom.registry import CustomOpRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.custom.operator import CustomOp as RuntimeOp

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

    def __reduce__(self) -> tuple[Any, ...]:
        return CustomOp, (self.name, self.forward_fn, self.backward_fn, self.schema)

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


def register_custom_op(
    name: str,
    forward_fn: Callable[..., Any],
    backward_fn: Callable[..., Any] | None = None,
    schema: Any = None,
    *,
    domain: str = "custom",
    override: bool = False,
) -> CustomOp:
    """Register a function on tensors as an operator, for tensors and for models of ``pyflame_rt``.

    There is one registry: operators of :mod:`pyflame_rt.custom` are found here too. In models the operator has one
    input for each positional parameter and an attribute for each keyword-only one; it is traced for their shapes, and
    compiled with the rest of the model.

    Args:
        name: in models too; one of the same name and domain is replaced, with a warning.
        forward_fn: gets tensors and attributes, gives a tensor or a tuple of tensors.
        backward_fn: see :class:`CustomOp`; without it gradients flow through what ``forward_fn`` does.
        schema: a description, kept for you.
        domain: in models.
        override: with ``domain=""``: replace a built-in operator too.

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
    stated = OpSchema(name, domain, doc=forward_fn.__doc__ or "", function=TensorFunction(made))
    stated.gradient = None if backward_fn is None else TensorGradient(made)
    CustomOpRegistry.instance().register_op(stated, override=override)
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
    """The operator of a bare or full name, also one that was registered with :mod:`pyflame_rt.custom`."""
    registry = CustomOpRegistry.instance()
    if not registry.has(name):
        raise KeyError(f"there is no custom operator {name!r}. Registered: {', '.join(list_custom_ops()) or 'none'}")
    found = registry.get(name)
    if isinstance(found.schema.function, TensorFunction):
        return found.schema.function.op
    return CustomOp(found.full_name(), _on_tensors(found), None, found.schema)


def _on_tensors(op: RuntimeOp) -> Callable[..., Any]:
    """An operator of the runtime as a function on tensors."""

    def forward(*inputs: Any, **attributes: Any) -> Any:
        tensors = [None if x is None else x if isinstance(x, Handle) else as_tensor(x) for x in inputs]
        if modes.tracer is not None:
            modes.tracer.saw(tensors)
        frozen = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items())
        results = apply_many(op.ops[0], tuple(None if t is None else t._value for t in tensors), frozen)
        return wrap(results[0]) if len(results) == 1 else tuple(map(wrap, results))

    return forward


def list_custom_ops() -> list[str]:
    """Full names of all operators."""
    return CustomOpRegistry.instance().list()


def unregister_custom_op(name: str) -> None:
    """Forget an operator."""
    get_custom_op(name)
    CustomOpRegistry.instance().unregister(name)


def clear_custom_ops() -> None:
    """Forget all operators."""
    CustomOpRegistry.instance().clear()
