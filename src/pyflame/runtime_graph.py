"""Lazy values as a graph of the runtime: expressions become nodes, calls what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyflame.calls import Call
from pyflame.instrumentation import node_name
from pyflame_rt.graph import Graph, Node, Tensor, TensorInfo
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.lazy import Expr, Rule, Val
    from pyflame.module_scopes import ModuleScopes

__all__ = ["to_graph"]


def to_graph(
    exprs: Sequence[Expr],
    leaves: Sequence[Val],
    outputs: Sequence[Val],
    names: dict[int, str] | None = None,
    name: str = "lazy",
    spans: ModuleScopes | None = None,
) -> Graph:
    """The runtime's graph of this work; ``names`` says how values are to be called, by id.

    With ``spans``, names of nodes begin with the module they come from.
    """
    return _Writer(name, dict(names or {}), spans).write(exprs, leaves, outputs)


class _Writer:
    def __init__(self, name: str, called: dict[int, str], spans: ModuleScopes | None) -> None:
        self.graph = Graph(name)
        self.called = called
        self.spans = spans
        self.made: dict[tuple[Expr, int], str] = {}
        self.written: dict[Expr, list[str]] = {}

    def write(self, exprs: Sequence[Expr], leaves: Sequence[Val], outputs: Sequence[Val]) -> Graph:
        graph, called, made = self.graph, self.called, self.made
        for i, v in enumerate(leaves):
            called.setdefault(id(v), f"x{i}")
            graph.add_input(TensorInfo(called[id(v)], type=v.spec.type))
        for v in outputs:
            if v.expr is not None and id(v) in called:
                made[v.expr, v.index] = called[id(v)]
        for n, expr in enumerate(exprs):
            for i in range(len(expr.rule.outs)):
                made.setdefault((expr, i), f"v{n}" if expr.rule.single else f"v{n}_{i}")
        for n, expr in enumerate(exprs):
            if isinstance(expr, Call):
                self._slots(expr, str(n))
            else:
                inputs = [self._input(v) for v in expr.inputs]
                here = [made[expr, i] for i in range(len(expr.rule.outs))]
                self._node(node_name(n, expr.rule.op.name, self._place(expr)), expr.rule, inputs, here)
        for v in outputs:
            graph.add_output(TensorInfo(made[v.expr, v.index], type=v.spec.type))  # type: ignore[index]
        return graph

    def _place(self, expr: Expr) -> str:
        return "" if self.spans is None else self.spans.of(expr)

    def _node(self, name: str, rule: Rule, inputs: list[str], outputs: list[str]) -> None:
        for text, spec in zip(outputs, rule.outs, strict=True):
            self.graph.types[text] = spec.type
        self.graph.nodes.append(Node(name, rule.op.name, inputs, outputs, rule.attributes, rule.op.domain))

    def _input(self, v: Val | None) -> str:
        if v is None:
            return ""
        if v.array is None and v.expr is not None:
            return self.made[v.expr, v.index]
        if id(v) not in self.called:
            if v.spec.known is None:
                raise InputError(f"{v!r} is not among the values given")
            self.called[id(v)] = f"c{len(self.graph.initializers)}"
        text = self.called[id(v)]
        if v.spec.known is not None and text not in self.graph.initializers:
            self.graph.add_initializer(text, Tensor(np.asarray(v.array)))
        return text

    def _slots(self, expr: Call, label: str) -> list[str]:
        """Write the nodes that a call stands for, once; the names of its slots."""
        if expr in self.written:
            return self.written[expr]
        given = [self._input(v) for v in expr.inputs]
        if expr.forward is not None:
            arriving = len(given) - len(expr.forward.inputs)
            given[arriving:] = self._slots(expr.forward, f"{label}_f")
        template = expr.rule.template
        names = [*given, *[self._input(v) for v in template.constants]]
        first = len(names)
        wanted = {place: i for i, place in enumerate(template.outputs)}
        for k, (rule, places) in enumerate(template.steps):
            inputs = ["" if p is None else names[p] for p in places]
            here = [self._name(expr, wanted.get(len(names) + i), f"v{label}_{k}_{i}") for i in range(len(rule.outs))]
            self._node(node_name(0, rule.op.name, self._place(expr)) + f"_{label}_{k}", rule, inputs, here)
            names += here
        for i, place in enumerate(template.outputs):
            if (expr, i) in self.made and place is not None and (place < first or wanted[place] != i):
                self._copy(names[place], self.made[expr, i], expr, i)
        self.written[expr] = names
        return names

    def _name(self, expr: Expr, output: int | None, inner: str) -> str:
        return inner if output is None else self.made.get((expr, output), inner)

    def _copy(self, source: str, target: str, expr: Expr, index: int) -> None:
        self.graph.types[target] = expr.rule.outs[index].type
        self.graph.nodes.append(Node(f"Identity_{target}", Identity.name, [source], [target], {}, ""))
