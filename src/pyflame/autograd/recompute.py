"""Recomputation: a function's intermediate values are made again for its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd.engine import gradients
from pyflame.autograd.function import Function, with_gradient
from pyflame.autograd.modes import enable_grad, no_grad
from pyflame.calls import inline_all
from pyflame.lazy import Expr, Val, apply, apply_rule_many, modes
from pyflame.ops.core import Handle, wrap
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.pyflame.markers import After

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["run"]


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function so that its gradient is taken through a copy of its graph."""
    if not modes.grad:
        return function(*args, **kwargs)
    with enable_grad():
        result = function(*args, **kwargs)
    outs = list(result) if isinstance(result, (tuple, list)) else [result]
    if not all(isinstance(t, Handle) for t in outs):
        raise TypeError("checkpoint takes functions that return a tensor, or a tuple or list of tensors")
    roots = [t._value for t in outs]
    given = [t._value for t in (*args, *kwargs.values()) if isinstance(t, Handle)]
    inline_all(roots, given)
    exprs = _between(roots, given)
    leaves = _sources(exprs, roots)
    with no_grad():
        plain = _copy(exprs, roots, {id(v): v for v in leaves})

    def rule(*grads: Any) -> list[Any]:
        return gradients_of_copy(exprs, roots, leaves, leaves, grads)

    made = with_gradient("checkpoint", [wrap(v) for v in plain], [wrap(v) for v in leaves], rule)
    return made[0] if isinstance(result, Handle) else type(result)(made)


def gradients_of_copy(
    exprs: Sequence[Expr], roots: Sequence[Val], leaves: Sequence[Val], current: Sequence[Val], grads: Sequence[Any]
) -> list[Any]:
    """Gradients through a copy of expressions that starts only when the gradients of its outputs are there.

    Args:
        exprs: what to copy, in running order.
        roots: the outputs.
        leaves: the values they read.
        current: the values to read instead.
        grads: the gradient of each output, or None.

    Returns:
        A gradient for each leaf, or None.
    """
    signal = next(g for g in grads if g is not None)
    again: dict[int, Val] = {id(v): now for v, now in zip(leaves, current, strict=True)}
    for v, now in zip(leaves, current, strict=True):
        if not now.needs_grad:
            continue
        if modes.grad:  # the gradients will be differentiated: they depend on these values, not on copies
            again[id(v)] = apply(Identity, (now,))
        else:
            later = wrap(apply(After, (now, signal._value)))
            with enable_grad():
                again[id(v)] = later.requires_grad_()._value
    with enable_grad():
        outs = _copy(exprs, roots, again)
    chosen = [(o, g._value) for o, g in zip(outs, grads, strict=True) if g is not None and o.needs_grad]
    found = gradients(
        [o for o, _ in chosen], [g for _, g in chosen], list(again.values()), create_graph=modes.grad, release=False
    )
    return [wrap(found[id(again[id(v)])][1]) if id(again[id(v)]) in found else None for v in leaves]


def _between(roots: Sequence[Val], given: Sequence[Val]) -> list[Expr]:
    """The expressions of the function: those from its outputs back to its arguments, or to what is known."""
    stops = {id(v) for v in given}
    done: set[Expr] = set()
    order: list[Expr] = []
    stack = [v.expr for v in reversed(roots) if v.expr is not None and id(v) not in stops]
    while stack:
        expr = stack[-1]
        if expr in done:
            stack.pop()
            continue
        more = [
            v.expr
            for v in expr.inputs
            if v is not None and v.expr is not None and not _stops(v, stops) and v.expr not in done
        ]
        if more:
            stack += more
        else:
            done.add(expr)
            order.append(expr)
            stack.pop()
    return order


def _stops(v: Val, stops: set[int]) -> bool:
    return id(v) in stops or v.array is not None or (v.leaf is not None and v.leaf.requires_grad)


def _sources(exprs: Sequence[Expr], roots: Sequence[Val]) -> list[Val]:
    """The values that the expressions read and do not make."""
    inside = set(exprs)
    found: dict[int, Val] = {}
    for expr in exprs:
        for v in expr.inputs:
            if v is not None and v.spec.known is None and (v.expr is None or v.expr not in inside):
                found[id(v)] = v
    for v in roots:
        if v.expr is None or v.expr not in inside:
            found[id(v)] = v
    return list(found.values())


def _copy(exprs: Sequence[Expr], roots: Sequence[Val], values: dict[int, Val]) -> list[Val]:
    """The outputs of new expressions like these, on other values; gradients flow where they flowed."""
    made: dict[tuple[Expr, int], Val] = {}
    flowed = _flowed(exprs, roots)
    recording = modes.grad
    try:
        for expr in exprs:
            inputs = tuple(None if v is None else _placed(v, made, values) for v in expr.inputs)
            modes.grad = recording and expr in flowed
            outs = apply_rule_many(expr.rule, inputs)
            for i, v in enumerate(outs):
                made[expr, i] = v
            if expr.function is not None and modes.grad:
                _take_function(expr.function, outs, lambda v: _placed(v, made, values))
    finally:
        modes.grad = recording
    return [_placed(v, made, values) for v in roots]


def _flowed(exprs: Sequence[Expr], roots: Sequence[Val]) -> set[Expr]:
    """The expressions that gradients flow through: not those of detached values, or of leaves made on the way."""
    read = [v for expr in exprs for v in expr.inputs if v is not None]
    return {v.expr for v in (*read, *roots) if v.expr is not None and v.needs_grad and not _is_leaf(v)}


def _is_leaf(v: Val) -> bool:
    return v.leaf is not None and v.leaf.requires_grad


def _take_function(function: Function, outs: Sequence[Val], placed: Callable[[Val], Val]) -> None:
    """Let new values have the gradient that the user gave the old ones."""
    sources = tuple(map(placed, function.inputs))
    expr = outs[0].expr
    if expr is None or not any(v.needs_grad for v in sources):
        return
    expr.function = Function(function.name, sources, function.rule, movable=function.movable)
    for v in outs:
        v.needs_grad = v.spec.dtype.is_inexact


def _placed(v: Val, made: dict[tuple[Expr, int], Val], values: dict[int, Val]) -> Val:
    if id(v) in values:
        return values[id(v)]
    return made.get((v.expr, v.index), v)  # type: ignore[arg-type]
