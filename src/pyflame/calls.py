"""Calls of outlined functions: one expression that stands for a piece of graph, and how it is replaced by that.

An `Outline` is what a function recorded for inputs of given types; a `Call` applies it. The gradient of a call is a
call too: its outline works on the gradients that arrive and on all slots of the function's own, so that nothing is
computed twice where both are compiled together. `pyflame.outline` makes outlines; `pyflame.runtime_graph` writes out
what calls stand for when a structure is compiled; `inline` puts it into the graph itself, for whoever looks at that.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pyflame.lazy import Expr, Rule, Spec, Val, apply, modes
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.autograd.template import GradientTemplate

__all__ = ["Call", "Outline", "call", "call_gradient", "inline", "inline_all"]


class _Name:
    """What stands in the place of an operator."""

    composite, vjp, partial, domain = False, None, False, "pyflame"

    def __init__(self, name: str) -> None:
        self.name = self.full_name = name


class Outline(Rule):
    """What a function records for inputs of given types.

    Attributes:
        template: the operators on slots: inputs, constants, results. Of a gradient, the inputs are the gradients that
            arrive and all slots of the function.
        wants: for each input, whether a gradient is asked for.
        flows: for each output, whether a gradient flows through it.
        derivatives: gradients, by which outputs' arrive.
        targets: of a gradient, the inputs of the function that its outputs are for.
        passes: of a gradient, inputs of the function that get one of the arriving gradients as it is, and which.
        saved: of a gradient, slots of the function's inputs and outputs that must not have been changed since.
    """

    __slots__ = ("derivatives", "flows", "passes", "saved", "targets", "template", "wants")

    def __init__(
        self, name: str, ins: tuple[Spec | None, ...], outs: Sequence[Spec], template: GradientTemplate
    ) -> None:
        self._set_types(ins, tuple(outs))
        self.op: Any = _Name(name)
        self.attributes, self.bound = {}, {}
        self.template = template
        self.wants: tuple[bool, ...] = ()
        self.flows: tuple[bool, ...] = (False,) * len(self.outs)
        self.derivatives: dict[tuple[bool, ...], Outline] = {}
        self.targets: tuple[int, ...] = ()
        self.passes: tuple[tuple[int, int], ...] = ()
        self.saved: tuple[int, ...] = ()


class Call(Expr):
    """An outlined function applied to values.

    Attributes:
        forward: of a gradient, the call it belongs to.
        slots: what it was replaced by, once it was.
    """

    __slots__ = ("forward", "slots")

    rule: Outline

    def __init__(self, rule: Outline, inputs: tuple[Val | None, ...], forward: Call | None = None) -> None:
        Expr.__init__(self, rule, inputs)
        self.forward = forward
        self.slots: list[Val | None] | None = None


def call(rule: Outline, inputs: tuple[Val, ...]) -> list[Val]:
    """Record a call."""
    expr = Call(rule, inputs)
    if rule.single:
        out = Val(rule.outs[0], expr)
        out.needs_grad = rule.flows[0]
        return [out]
    outs = []
    for i, spec in enumerate(rule.outs):
        out = Val(spec, expr, i)
        out.needs_grad = rule.flows[i]
        outs.append(out)
    expr.outputs = tuple([weakref.ref(out) for out in outs])
    return outs


def call_gradient(rule: Outline, grads: Sequence[Val], forward: Call) -> list[Val | None]:
    """Record the gradient of a call: a value for each of its inputs, None where none flows."""
    results: list[Val | None] = [None] * len(forward.inputs)
    for target, which in rule.passes:
        results[target] = grads[which]
    if rule.targets:
        expr = Call(rule, (*grads, *forward.inputs), forward)
        outs = [Val(spec, expr, i) for i, spec in enumerate(rule.outs)]
        if not rule.single:
            expr.outputs = tuple([weakref.ref(out) for out in outs])
        for target, out in zip(rule.targets, outs, strict=True):
            results[target] = out
    return results


def inline_all(roots: Sequence[Val], given: Sequence[Val] = ()) -> None:
    """Replace all calls that values depend on by what they stand for, as far back as given values."""
    seen: set[Expr] = set()
    stops = {id(v) for v in given}
    stack: list[Val | None] = list(roots)
    while stack:
        v = stack.pop()
        if v is None or v.expr is None or id(v) in stops:
            continue
        if isinstance(v.expr, Call):
            inline(v)
        if v.expr not in seen:
            seen.add(v.expr)
            stack += v.expr.inputs


def inline(v: Val) -> None:
    """Let a value that a call makes be made by what the call stands for."""
    made_by = v.expr
    assert isinstance(made_by, Call)
    grad, modes.grad = modes.grad, v.needs_grad
    try:
        slots = _slots_of(made_by)
        place = made_by.rule.template.outputs[v.index]
        assert place is not None
        made = slots[place]
        if made is None or made.expr is None or place < made_by.rule.template.inputs:
            made = apply(Identity, (made,))
    finally:
        modes.grad = grad
    assert made.expr is not None
    v.expr, v.index = made.expr, made.index
    if made.expr.outputs:
        made.expr.outputs = (*made.expr.outputs, weakref.ref(v))


def _slots_of(expr: Call) -> list[Val | None]:
    """The values of a call's slots, as expressions that count as recorded when it was."""
    if expr.slots is None:
        given = expr.inputs
        if expr.forward is not None:
            arriving = len(given) - len(expr.forward.inputs)
            given = (*given[:arriving], *_slots_of(expr.forward))
        template = expr.rule.template
        expr.slots = template.fill(given)
        for v in expr.slots[template.inputs + len(template.constants) :]:
            if v is not None and v.expr is not None:
                v.expr.serial = expr.serial
    return expr.slots
