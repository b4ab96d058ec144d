"""Functions on tensors as bodies of the runtime's operators: traced for given types, then written out as nodes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.exporting import model_graph
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.core.value import active_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.extend.custom import CustomOp
    from pyflame_rt.ops.core.value import Value

__all__ = ["TensorFunction", "TensorGradient"]


class TensorFunction:
    """What an operator computes, over values of the runtime; its parameters are those of the function on tensors."""

    def __init__(self, op: CustomOp) -> None:
        self.op = op
        self.__signature__ = _as_operator(op)

    def __call__(self, *values: Value | None, **attributes: Any) -> Any:
        """The results, recorded where an operator is being traced."""
        forward = self.op.forward_fn
        made = _written(lambda *tensors: forward(*tensors, **attributes), values)
        return made[0] if len(made) == 1 else tuple(made)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorFunction, (self.op,)


class TensorGradient:
    """Gradients of the inputs by the function that was given for them."""

    def __init__(self, op: CustomOp) -> None:
        self.op = op

    def __call__(self, gradients: Any, outputs: Any, *inputs: Value | None, **attributes: Any) -> list[Any]:
        """The gradients, recorded where an operator is being traced."""
        arrived = list(gradients) if isinstance(gradients, tuple) else [gradients]
        results = list(outputs) if isinstance(outputs, tuple) else [outputs]
        places = [i for i, v in enumerate(inputs) if v is not None]

        def backward(*tensors: Any) -> tuple[Any, ...]:
            from pyflame.extend.function import FunctionContext, taken_gradients

            own = iter(tensors)
            given = [next(own) for _ in places]
            grads = [next(own) for _ in arrived]
            made = [next(own) for _ in results]
            ctx: Any = FunctionContext(tuple(True for _ in given))
            ctx.save_for_backward(*given)
            ctx.outputs = made[0] if len(made) == 1 else tuple(made)
            assert self.op.backward_fn is not None
            return tuple(taken_gradients(self.op.name, self.op.backward_fn(ctx, *grads), places, len(inputs)))

        del attributes  # a backward function sees none of them in pyflame either
        found: list[Any] = [None] * len(inputs)
        values = [*(inputs[i] for i in places), *arrived, *results]
        for i, g in zip(places, _written(backward, values), strict=True):
            found[i] = g
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorGradient, (self.op,)


def _as_operator(op: CustomOp) -> inspect.Signature:
    """Parameters without a default are inputs, also those that may be None; others are attributes.

    A model gives no ``**others``.
    """
    try:
        parameters = inspect.signature(op.forward_fn).parameters.values()
    except ValueError:  # written in C, without a text signature
        return inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])
    taken = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            taken.append(p)
        elif p.kind is not p.VAR_KEYWORD:
            attribute = p.kind is p.KEYWORD_ONLY or p.default not in (p.empty, None)
            nullable = not attribute and p.default is None
            kind = p.KEYWORD_ONLY if attribute else p.POSITIONAL_ONLY
            taken.append(p.replace(kind=kind, annotation="Any | None" if nullable else p.annotation))
    return inspect.Signature(sorted(taken, key=lambda p: p.kind))


def _written(fn: Callable[..., Any], values: Sequence[Value | None]) -> list[Any]:
    """The nodes that a function on tensors stands for, in the scope that is being traced; None for None."""
    present = [v for v in values if v is not None]
    absent: list[bool] = []

    def traced(*tensors: Any) -> tuple[Any, ...]:
        own = iter(tensors)
        made = fn(*[None if v is None else next(own) for v in values])
        results = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        absent[:] = [r is None for r in results]
        return tuple(r for r in results if r is not None)

    graph = model_graph(traced, *[_example(v) for v in present])
    scope = active_scope()
    here: dict[str, Any] = {info.name: v for info, v in zip(graph.inputs, present, strict=True)}
    here |= {name: scope.constant(np.asarray(tensor.numpy())) for name, tensor in graph.initializers.items()}
    for node in graph.topological_sort():
        inputs = [here[name] if name else None for name in node.inputs]
        made = scope.apply(get_op(node.op_type, node.domain), inputs, dict(node.attributes))
        here |= zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False)
    results = iter([here[info.name] for info in graph.outputs])
    return [None if missing else next(results) for missing in absent]


def _example(value: Value) -> Any:
    """An array of the type and shape, without memory."""
    kind = value.tensor_type
    if kind.shape is None or not kind.shape.is_static:
        raise UndeterminedError("a function on tensors is traced when all sizes are known")
    return np.broadcast_to(np.zeros((), kind.dtype.numpy), tuple(int(n) for n in kind.shape))  # type: ignore[arg-type]
