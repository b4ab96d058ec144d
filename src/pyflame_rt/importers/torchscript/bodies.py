"""Bodies of If and Loop: a tracer that takes what it reads from outside as captured inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, TensorInfo, ValueType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.graph.types import AnyType
from pyflame_rt.importers.aten.symbols import SymbolicTracer
from pyflame_rt.ops.core.value import Value, active_scope, scope
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from pyflame_rt.ops import Op

__all__ = ["Body", "with_captures"]


class Body(SymbolicTracer):
    """A subgraph that is being traced; values of outside become inputs when they are first read."""

    __slots__ = ("_own", "captured", "formal")

    def __init__(self, name: str) -> None:
        super().__init__(name, getattr(active_scope(), "symbols", None) or {})
        self._own: dict[int, Value] = {}
        self.captured: dict[int, tuple[Value, Value]] = {}
        self.formal: list[Value] = []

    def _mine(self, value: Value) -> Value:
        self._own[id(value)] = value
        return value

    def argument(self, name: str, kind: ValueType | None) -> Value:
        """A formal input."""
        value = self._mine(Value(f"{self.graph.name}_{name}", kind))
        self.formal.append(value)
        return value

    def adopt(self, value: Value | None) -> Value | None:
        """The value as it is called in here."""
        if value is None or id(value) in self._own:
            return value
        if id(value) not in self.captured:
            inner = self._mine(Value(self.fresh("outer"), value.type, value.known))
            self.captured[id(value)] = (value, inner)
        return self.captured[id(value)][1]

    def fresh(self, hint: str = "v") -> str:
        """A name that no other body has, so that graphs can be read by people."""
        return super().fresh(f"{self.graph.name}_{hint}")

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A constant of the body."""
        return self._mine(super().constant(array))

    def _number(self, items: list[int]) -> Value:
        return self._mine(super()._number(items))

    def apply(self, op: Op, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Any:
        """Add a node, whose inputs come in as far as they are from outside."""
        made = super().apply(op, [self.adopt(v) for v in inputs], attributes)
        for value in made if isinstance(made, tuple) else (made,):
            self._mine(value)
        return made

    def finish(self, outputs: Sequence[Value]) -> list[Value]:
        """Declare the outputs; what is handed through gets a name of its own."""
        with scope(self):
            made = [Identity(value) for value in outputs]
        for value in made:
            self.graph.add_output(TensorInfo(value.ref, type=value.type or AnyType()))
        return made


def with_captures(bodies: Sequence[Body]) -> tuple[list[Value], list[Graph]]:
    """Give all bodies the same captured inputs, in one order; those of outside, and the graphs."""
    outer: dict[int, Value] = {}
    for body in bodies:
        outer |= {key: pair[0] for key, pair in body.captured.items()}
    for body in bodies:
        inputs = [*body.formal, *[body.adopt(value) for value in outer.values()]]
        for value in inputs:
            if value is None:
                raise UndeterminedError("a body has no such input")
            body.graph.add_input(TensorInfo(value.ref, type=value.type or AnyType()))
    return list(outer.values()), [body.graph for body in bodies]
