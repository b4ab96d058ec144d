"""Operators written as steps that have a rule of their own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.plan.primitives import PrimitiveCall
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from pyflame_rt.backends.wse.plan.primitives import Flat

__all__ = ["Opening", "open_steps"]


class Opening:
    """The steps that stand for one step, as they are added."""

    def __init__(self, flat: Flat, step: PrimitiveCall) -> None:
        self.flat = flat
        self.step = step
        self.steps: list[PrimitiveCall] = []
        self.shape = flat.shape(step.output)
        self.dtype = flat.dtype(step.output)
        self.numbers = itertools.count()

    def add(
        self,
        op: str,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        output: str = "",
        dtype: DType | None = None,
        **attributes: Any,
    ) -> str:
        """One more step; its result's name."""
        name = output or f"{self.step.output}.{next(self.numbers)}"
        self.flat.types[name] = (dtype or self.dtype, tuple(shape))
        self.steps.append(PrimitiveCall(op, inputs, name, attributes, self.step.origin))
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """The name of an array known now."""
        name = f"{self.step.output}.{next(self.numbers)}"
        self.flat.constants[name] = array
        self.flat.types[name] = (DType.of(array.dtype), tuple(array.shape))
        return name


def open_steps(flat: Flat, rules: Mapping[str, Callable[[Flat, PrimitiveCall], list[PrimitiveCall]]]) -> Flat:
    """Replace every step that has a rule by what the rule gives, until none is left."""
    pending = list(reversed(flat.steps))
    steps: list[PrimitiveCall] = []
    while pending:
        step = pending.pop()
        rule = rules.get(step.op)
        if rule is None:
            steps.append(step)
        else:
            pending.extend(reversed(rule(flat, step)))
    flat.steps = steps
    return flat
