"""Reverse-mode differentiation on lazy values: gradients are further values of the same graph."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from pyflame.autograd.saved import check_saved, saved_values
from pyflame.autograd.template import body_of, vjp_of
from pyflame.calls import Call, call_gradient, inline
from pyflame.lazy import Expr, Val, apply, const, leaf, modes
from pyflame.module_scopes import mark_backward
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.shape import Expand

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["gradients"]


def gradients(
    outputs: Sequence[Val],
    seeds: Sequence[Val | None],
    wrt: Sequence[Val] | None,
    *,
    create_graph: bool,
    release: bool,
    saved: list[Val] | None = None,
) -> dict[int, tuple[Val, Val]]:
    """Each leaf (or each value in ``wrt``) with its gradient, by the id of the value.

    Args:
        outputs: values to differentiate.
        seeds: the gradient of each; ones for None.
        wrt: values to differentiate for; None for all leaves that require it.
        create_graph: let the gradients be differentiated in turn.
        release: the graph may be given up once its values are known.
        saved: gets the values that gradients read.
    """
    before = modes.grad
    modes.grad = create_graph
    try:
        return _Pass(outputs, wrt, release, saved).run(outputs, seeds)
    finally:
        modes.grad = before


class _Pass:
    def __init__(
        self, outputs: Sequence[Val], wrt: Sequence[Val] | None, release: bool, saved: list[Val] | None
    ) -> None:
        self.saved = saved
        self.wrt = None if wrt is None else {id(v) for v in wrt}
        self.found: dict[int, tuple[Val, Val]] = {}
        self.values: dict[int, Val] = {}
        self.arrived: dict[tuple[Expr, int], Val] = {}
        self.flat: set[tuple[Expr | None, int]] = set()  # where rules said that nothing changes
        self.made: dict[tuple[Expr, int], Val] | None = None
        self.release = release
        self.order = self._order(outputs)
        # What made each value, as of now: a hook that looks at a gradient may let evaluated values forget it.
        made = [(i, v) for i, v in self.values.items() if v.expr is not None and not self._is_leaf(v)]
        self.keys: dict[int, tuple[Expr, int]] = {i: (v.expr, v.index) for i, v in made}  # type: ignore[misc]

    def _flows(self, v: Val | None) -> bool:
        return v is not None and v.needs_grad

    def _is_leaf(self, v: Val) -> bool:
        return (v.leaf is not None and v.leaf.requires_grad) or v.expr is None

    def _order(self, outputs: Sequence[Val]) -> list[Expr]:
        """Expressions that gradients flow through, in running order; compositions without a rule are opened."""
        done: set[Expr] = set()
        order: list[Expr] = []
        stack = [v for v in reversed(outputs) if self._enter(v)]
        while stack:
            v = stack[-1]
            expr = v.expr
            if expr is None or expr in done:
                stack.pop()
                continue
            if modes.grad and isinstance(expr, Call):
                inline(v)  # gradients of gradients are those of what a call stands for
                continue
            if expr.function is None and expr.rule.op.composite and expr.rule.op.vjp is None:
                self._open(v, expr)
                continue
            before = len(stack)
            stack += [s for s in _sources(expr) if s is not None and self._enter(s) and s.expr not in done]
            if len(stack) == before:
                done.add(expr)
                order.append(expr)
                stack.pop()
        return order

    def _enter(self, v: Val) -> bool:
        """Note a value that a gradient reaches; whether to go on to what made it."""
        if not v.needs_grad:
            return False
        self.values[id(v)] = v
        if v.spent and v.expr is None:
            raise RuntimeError(
                "this graph was already differentiated and released; "
                "call backward(retain_graph=True) the first time to differentiate it again"
            )
        return not self._is_leaf(v)

    def _open(self, v: Val, expr: Expr) -> None:
        """Replace a composition by its body, in the forward graph too, so that nothing runs twice."""
        grad, modes.grad = modes.grad, True
        leave = None if modes.spans is None else mark_backward(expr, "")
        try:
            results = body_of(expr.rule).instantiate(expr.inputs)
        finally:
            modes.grad = grad
            if leave is not None:
                leave()
        siblings = [ref() for ref in expr.outputs] or [v]
        for sibling in {id(s): s for s in [*siblings, v] if s is not None}.values():
            made = results[sibling.index]
            if made is None:
                continue
            if made.expr is None or any(made is source for source in expr.inputs):
                grad, modes.grad = modes.grad, True
                made = apply(Identity, (made,))
                modes.grad = grad
            sibling.expr, sibling.index = made.expr, made.index
            assert made.expr is not None
            if made.expr.outputs:
                made.expr.outputs = (*made.expr.outputs, weakref.ref(sibling))

    # ------------------------------------------------------------------ backwards

    def run(self, outputs: Sequence[Val], seeds: Sequence[Val | None]) -> dict[int, tuple[Val, Val]]:
        for v, seed in zip(outputs, seeds, strict=True):
            if v.needs_grad:
                self._arrive(v, ones_like(v) if seed is None else seed)
        for expr in reversed(self.order):
            self._through(expr)
        for v in self.values.values() if self.flat else ():
            if (None, id(v)) in self.flat and id(v) not in self.found:
                self.found[id(v)] = (v, zeros_like(v))
        return self.found

    def _through(self, expr: Expr) -> None:
        rule = expr.rule
        outs = self._outputs_of(expr)
        arrived = tuple((expr, i) in self.arrived for i in range(len(rule.outs)))
        if not any(arrived):
            if self.flat and any((expr, i) in self.flat for i in range(len(rule.outs))):
                self._stay_flat(expr, outs)
            return
        grads = [self._hooked(outs[i], self.arrived.pop((expr, i))) if come else None for i, come in enumerate(arrived)]
        leave = None if modes.spans is None else mark_backward(expr, "/backward")
        try:
            if expr.function is not None:
                results = expr.function.backward(grads)
            elif isinstance(expr, Call):
                results = _through_call(expr, grads, outs, arrived)
            else:
                template = vjp_of(rule, arrived)
                saved = saved_values(expr, outs, template)
                if self.saved is not None:
                    self.saved += saved
                check_saved(expr, saved)
                results = template.instantiate([*grads, *outs, *expr.inputs])
        except Exception as error:
            if expr.note:
                error.add_note(f"called at:\n{expr.note}")
            raise
        finally:
            if leave is not None:
                leave()
        for source, result in zip(_sources(expr), results, strict=True):
            if source is None or not source.needs_grad:
                continue
            if result is not None:
                self._arrive(source, result)
            elif expr.function is None:
                self.flat.add(self.keys.get(id(source), (None, id(source))))

    def _stay_flat(self, expr: Expr, outs: list[Val]) -> None:
        """Nothing but zero comes to an expression: it is not worked out, what is asked for gets zeros."""
        for v in outs:
            if (expr, v.index) in self.flat:
                self._hooked(v, zeros_like(v))
        for source in _sources(expr):
            if source is not None and source.needs_grad:
                self.flat.add(self.keys.get(id(source), (None, id(source))))

    def _outputs_of(self, expr: Expr) -> list[Val]:
        """The values an expression makes; those the graph lost are made again, as further handles."""
        outs: list[Val] = []
        live = {}
        for ref in expr.outputs:
            v = ref()
            if v is not None:
                live[v.index] = v
        for i, spec in enumerate(expr.rule.outs):
            known = live.get(i) or self._maker(expr, i)
            if known is None:
                known = Val(spec, expr, i)
                known.needs_grad = expr.rule.real[i]  # a rule may read it, and be differentiated in turn
            outs.append(known)
        return outs

    def _maker(self, expr: Expr, index: int) -> Val | None:
        if self.made is None:
            self.made = {key: self.values[i] for i, key in self.keys.items()}
        return self.made.get((expr, index))

    def _hooked(self, v: Val, grad: Val) -> Val:
        """The gradient of a computed value: hooks may change it, and it may be asked for."""
        if v.leaf is not None and v.leaf.hooks:
            grad = run_hooks(v.leaf.hooks, grad)
        if (self.wrt is not None and id(v) in self.wrt) or (v.leaf is not None and v.leaf.retains):
            self.found[id(v)] = (v, grad)
        if self.release:
            v.spent = True
            if v.array is not None:
                v.expr = None
        return grad

    def _arrive(self, v: Val, grad: Val) -> None:
        if grad.spec.shape != v.spec.shape:
            raise RuntimeError(f"a gradient of shape {grad.spec.shape} arrived at a value of shape {v.spec.shape}")
        if grad.spec.dtype is not v.spec.dtype:
            grad = apply(Cast, (grad,), (("to", v.spec.dtype.rt.onnx),))
        key = self.keys.get(id(v))
        if key is None:
            have = self.found.get(id(v))
            self.found[id(v)] = (v, grad if have is None else apply(Add, (have[1], grad)))
            return
        have = self.arrived.get(key)
        self.arrived[key] = grad if have is None else apply(Add, (have, grad))


def _through_call(
    expr: Call, grads: Sequence[Val | None], outs: Sequence[Val], arrived: tuple[bool, ...]
) -> list[Val | None]:
    """The gradients of a call's inputs, made by another call."""
    rule = expr.rule.derivatives.get(arrived)
    if rule is None:
        from pyflame.outline import gradient_of

        rule = gradient_of(expr.rule, arrived)
    values = expr.inputs
    if rule.saved:
        results = dict(zip(expr.rule.template.outputs, outs, strict=True))
        saved = [values[p] if p < len(values) else results[p] for p in rule.saved]
        check_saved(expr, [v for v in saved if v is not None])
    return call_gradient(rule, [g for g in grads if g is not None], expr)


def _sources(expr: Expr) -> Sequence[Val | None]:
    """What the gradient of an expression goes on to."""
    return expr.inputs if expr.function is None else expr.function.inputs


def ones_like(v: Val) -> Val:
    """The gradient of a value with respect to itself."""
    one = leaf(np.ones((), v.spec.dtype.numpy), v.spec.dtype)
    return one if v.spec.shape == () else apply(Expand, (one, const(tuple(v.spec.shape))))


def zeros_like(v: Val) -> Val:
    """The gradient of a value that makes no difference."""
    zero = leaf(np.zeros((), v.spec.dtype.numpy), v.spec.dtype)
    return zero if v.spec.shape == () else apply(Expand, (zero, const(tuple(v.spec.shape))))


def run_hooks(hooks: dict, grad: Val) -> Val:
    """Let hooks see, and replace, a gradient."""
    from pyflame.tensors import Tensor

    for hook in list(hooks.values()):
        result = hook(Tensor._wrap(grad))
        if result is not None:
            grad = result._value
    return grad
