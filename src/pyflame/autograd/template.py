"""Pieces of graph that are traced once and instantiated often: gradients and bodies of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import to_dtype
from pyflame.lazy import Rule, Spec, Val, apply_rule_many, const, rule_for
from pyflame_rt.autodiff import pull_back
from pyflame_rt.graph.errors import PyFlameRTError, UndeterminedError, UnsupportedOperatorError
from pyflame_rt.ops.core.value import Value, scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.registry import Op

__all__ = ["GradientTemplate", "Recorder", "body_of", "vjp_of"]


class GradientTemplate:
    """Rules on numbered slots: inputs first, then constants, then what the rules give."""

    __slots__ = ("_reads", "constants", "inputs", "outputs", "steps")

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self._reads: list[frozenset[int]] | None = None
        self.constants: list[Val] = []
        self.steps: list[tuple[Rule, tuple[int | None, ...]]] = []
        self.outputs: list[int | None] = []

    def instantiate(self, values: Sequence[Val | None]) -> list[Val | None]:
        """The outputs for these inputs, as new expressions."""
        slots = self.fill(values)
        return [None if p is None else slots[p] for p in self.outputs]

    def fill(self, values: Sequence[Val | None]) -> list[Val | None]:
        """All slots for these inputs, as new expressions."""
        slots: list[Val | None] = [*values, *self.constants]
        for rule, places in self.steps:
            slots.extend(apply_rule_many(rule, tuple([None if p is None else slots[p] for p in places])))
        return slots

    def reads(self) -> list[frozenset[int]]:
        """For each output, the inputs whose contents it needs."""
        if self._reads is None:
            nothing: frozenset[int] = frozenset()
            needs = [*[frozenset([i]) for i in range(self.inputs)], *[nothing for _ in self.constants]]
            for rule, places in self.steps:
                found = nothing.union(*[needs[p] for p in places if p is not None])
                needs += [found] * len(rule.outs)
            self._reads = [nothing if p is None else needs[p] for p in self.outputs]
        return self._reads


class Recorder:
    """A scope of operator calls that writes a template."""

    def __init__(self, specs: Sequence[Spec | None]) -> None:
        self.specs: list[Spec | None] = list(specs)
        self.constants: dict[int, Val] = {}
        self.steps: list[tuple[Rule, tuple[int | None, ...], int]] = []
        self.inputs = len(specs)

    def value(self, slot: int) -> Value | None:
        """The value in a slot, as bodies see it."""
        spec = self.specs[slot]
        return None if spec is None else Value(slot, spec.type, spec.known)

    def _slot(self, spec: Spec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A value with known contents."""
        if array.dtype == object:
            array = array.astype(np.int64)
        made = const(array, to_dtype(array.dtype))
        slot = self._slot(made.spec)
        self.constants[slot] = made
        return Value(slot, made.spec.type, made.spec.known)

    def apply(self, op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Any:
        """Write one step; what is known without running becomes a constant."""
        frozen = tuple((name, _freeze(value)) for name, value in attributes.items())
        places = tuple(None if v is None else v.ref for v in inputs)
        rule = rule_for(op, frozen, tuple(None if p is None else self.specs[p] for p in places))
        if all(spec.known is not None for spec in rule.outs):
            values = [self.constant(spec.known) for spec in rule.outs]  # type: ignore[arg-type]
        else:
            first = len(self.specs)
            self.specs.extend(rule.outs)
            self.steps.append((rule, places, first))
            values = [Value(first + i, spec.type, spec.known) for i, spec in enumerate(rule.outs)]
        return values[0] if len(values) == 1 else tuple(values)

    def finish(self, outputs: Sequence[Value | None]) -> GradientTemplate:
        """The template that gives these outputs, without what none of them needs."""
        needed = {v.ref for v in outputs if v is not None}
        kept = []
        for rule, places, first in reversed(self.steps):
            if any(first + i in needed for i in range(len(rule.outs))):
                needed.update(p for p in places if p is not None)
                kept.append((rule, places, first))
        template = GradientTemplate(self.inputs)
        where: dict[int, int] = {i: i for i in range(self.inputs)}
        for slot, value in self.constants.items():
            if slot in needed:
                where[slot] = self.inputs + len(template.constants)
                template.constants.append(value)
        count = self.inputs + len(template.constants)
        for rule, places, first in reversed(kept):
            template.steps.append((rule, tuple(None if p is None else where[p] for p in places)))
            for i in range(len(rule.outs)):
                where[first + i] = count + i
            count += len(rule.outs)
        template.outputs = [None if v is None else where[v.ref] for v in outputs]
        return template


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def body_of(rule: Rule) -> GradientTemplate:
    """The body of a composition, for the rule's types."""
    if rule.body is None:
        recorder = Recorder(rule.ins)
        with scope(recorder):
            results = rule.op.body(*[recorder.value(i) for i in range(len(rule.ins))], **rule.bound)
        rule.body = recorder.finish(list(results) if isinstance(results, tuple) else [results])
    return rule.body


def vjp_of(rule: Rule, arrived: tuple[bool, ...]) -> GradientTemplate:
    """The gradient of a rule: inputs are the gradients that arrived, the outputs, the inputs."""
    found = rule.vjps.get(arrived)
    if found is None:
        found = rule.vjps[arrived] = _trace_vjp(rule, arrived)
    return found


def _trace_vjp(rule: Rule, arrived: tuple[bool, ...]) -> GradientTemplate:
    op = rule.op
    if op.vjp is None:
        raise UnsupportedOperatorError(
            f"operator {op.full_name} has no gradient. Give its declaration a rule with vjp=, "
            f"or cut the path to it with detach()."
        )
    gradients = [spec if come else None for spec, come in zip(rule.outs, arrived, strict=True)]
    recorder = Recorder([*gradients, *rule.outs, *rule.ins])
    count = len(rule.outs)
    values = [recorder.value(i) for i in range(len(recorder.specs))]
    grads, outs, ins = values[:count], values[count : 2 * count], values[2 * count :]
    try:
        with scope(recorder):
            results = pull_back(op, grads, outs, ins, rule.bound)  # type: ignore[arg-type]
    except UndeterminedError as error:
        raise UndeterminedError(f"the gradient of {op.full_name}: {error}") from error
    except PyFlameRTError as error:
        raise type(error)(f"the gradient of {op.full_name}: {error}") from error
    given = [*results, *[None] * len(rule.ins)][: len(rule.ins)]  # inputs left out at the end have no place
    return recorder.finish(given)
