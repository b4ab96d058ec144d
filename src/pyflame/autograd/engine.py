"""Reverse-mode differentiation on lazy values: gradients are further values of the same graph."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from pyflame.autograd.saved import check_saved, saved_values
from pyflame.autograd.template import body_of, vjp_of
from pyflame.calls import Call, call_gradient, inline
from pyflame.dtypes import to_dtype
from pyflame.lazy import Expr, Val, apply, const, leaf, modes
from pyflame.module_scopes import mark_backward
from pyflame_rt.autodiff import walk_back
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.shape import Expand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Key = Val | tuple[Expr, int]  # a leaf, or what an expression gives

__all__ = ["gradients"]

_FLAT = leaf(np.zeros(()), to_dtype(np.float64))  # arrives where rules say that nothing changes


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
        self.values: dict[int, Val] = {}  # those that are no leaves
        self.made: dict[tuple[Expr, int], Val] | None = None
        self.release = release
        self.order = self._order(outputs)
        # What made each value, as of now: a hook that looks at a gradient may let evaluated values forget it.
        self.keys = {i: (made, v.index) for i, v in self.values.items() if (made := v.expr) is not None}

    def _order(self, outputs: Sequence[Val]) -> list[Expr]:
        """Expressions that gradients flow through, in running order; compositions without a rule are opened."""
        begun, done, order = set[Expr](), set[Expr](), list[Expr]()
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
            if expr in begun:
                done.add(expr)
                order.append(expr)
            else:
                begun.add(expr)
                stack += [s for s in _sources(expr) if s is not None and self._enter(s) and s.expr not in done]
        return order

    def _enter(self, v: Val) -> bool:
        """Note a value that a gradient reaches; whether to go on to what made it."""
        if not v.needs_grad:
            return False
        if v.expr is None and v.spent:
            raise RuntimeError(
                "this graph was already differentiated and released; "
                "call backward(retain_graph=True) the first time to differentiate it again"
            )
        if v.expr is None or (v.leaf is not None and v.leaf.requires_grad):
            return False
        self.values[id(v)] = v
        return True

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
        for sibling in {id(s): s for s in [*[ref() for ref in expr.outputs], v] if s is not None}.values():
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
        pairs = zip(outputs, seeds, strict=True)
        given = (self._to(v, _filled(v, 1) if seed is None else seed) for v, seed in pairs if v.needs_grad)
        arrived = walk_back(
            given, self.order, lambda expr: [(expr, i) for i in range(len(expr.rule.outs))], self._through, _sum
        )
        for key, grad in arrived.items():
            if isinstance(key, Val):
                self.found[id(key)] = (key, _filled(key, 0) if grad is _FLAT else grad)
        return self.found

    def _through(self, expr: Expr, come: list[Val | None]) -> Iterator[tuple[Key, Val]]:
        """What goes on to the sources of an expression; where nothing but zero came, it is not worked out."""
        outs, sources = self._outputs_of(expr), _sources(expr)
        flat = False
        if _FLAT in come:
            flat = {*come} <= {None, _FLAT}
            come = [(_filled(v, 0) if flat else None) if g is _FLAT else g for v, g in zip(outs, come, strict=True)]
        grads = [None if g is None else self._hooked(v, g) for v, g in zip(outs, come, strict=True)]
        results = [None] * len(sources) if flat else self._apply_rule(expr, grads, outs)
        for source, result in zip(sources, results, strict=True):
            if source is not None and source.needs_grad:
                if result is not None:
                    yield self._to(source, result)
                elif flat or expr.function is None:
                    yield self.keys.get(id(source), source), _FLAT

    def _apply_rule(self, expr: Expr, grads: list[Val | None], outs: list[Val]) -> Sequence[Val | None]:
        arrived = tuple([g is not None for g in grads])
        leave = None if modes.spans is None else mark_backward(expr, "/backward")
        try:
            if expr.function is not None:
                return expr.function.backward(grads)
            if isinstance(expr, Call):
                return _through_call(expr, grads, outs, arrived)
            template = vjp_of(expr.rule, arrived)
            saved = saved_values(expr, outs, template)
            if self.saved is not None:
                self.saved += saved
            check_saved(expr, saved)
            return template.instantiate([*grads, *outs, *expr.inputs])
        except Exception as error:
            if expr.note:
                error.add_note(f"called at:\n{expr.note}")
            raise
        finally:
            if leave is not None:
                leave()

    def _outputs_of(self, expr: Expr) -> list[Val]:
        """The values an expression makes; those the graph lost are made again, as further handles."""
        outs: list[Val] = []
        live = {v.index: v for v in [ref() for ref in expr.outputs] if v is not None}
        for i, spec in enumerate(expr.rule.outs):
            known = live.get(i)
            if known is None:
                if self.made is None:
                    self.made = {key: self.values[v] for v, key in self.keys.items()}
                known = self.made.get((expr, i))
            if known is None:
                known = Val(spec, expr, i)
                known.needs_grad = expr.rule.real[i]  # a rule may read it, and be differentiated in turn
            outs.append(known)
        return outs

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

    def _to(self, v: Val, grad: Val) -> tuple[Key, Val]:
        if grad.spec is not v.spec:
            if grad.spec.shape != v.spec.shape:
                raise RuntimeError(f"a gradient of shape {grad.spec.shape} arrived at a value of shape {v.spec.shape}")
            if grad.spec.dtype is not v.spec.dtype:
                grad = apply(Cast, (grad,), (("to", v.spec.dtype.rt.onnx),))
        return self.keys.get(id(v), v), grad


def _sum(have: Val, more: Val) -> Val:
    return more if have is _FLAT else have if more is _FLAT else apply(Add, (have, more))


def _through_call(
    expr: Call, grads: Sequence[Val | None], outs: Sequence[Val], arrived: tuple[bool, ...]
) -> list[Val | None]:
    """The gradients of a call's inputs, made by another call."""
    rule = expr.rule.derivatives.get(arrived)
    if rule is None:
        from pyflame.outline import gradient_of

        rule = gradient_of(expr.rule, arrived)
    if rule.saved:
        values = expr.inputs
        results = dict(zip(expr.rule.template.outputs, outs, strict=True))
        saved = [values[p] if p < len(values) else results[p] for p in rule.saved]
        check_saved(expr, [v for v in saved if v is not None])
    return call_gradient(rule, [g for g in grads if g is not None], expr)


def _sources(expr: Expr) -> Sequence[Val | None]:
    """What the gradient of an expression goes on to."""
    return expr.inputs if expr.function is None else expr.function.inputs


def _filled(v: Val, number: int) -> Val:
    """A gradient of a value that is the same number everywhere."""
    one = leaf(np.array(number, v.spec.dtype.numpy), v.spec.dtype)
    return one if v.spec.shape == () else apply(Expand, (one, const(tuple(v.spec.shape))))


def run_hooks(hooks: dict, grad: Val) -> Val:
    """Let hooks see, and replace, a gradient."""
    from pyflame.tensors import Tensor

    for hook in list(hooks.values()):
        result = hook(Tensor._wrap(grad))
        if result is not None:
            grad = result._value
    return grad
