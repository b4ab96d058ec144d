"""Shape and type inference over a whole graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import AnyType, Graph, TensorType, ValueType
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.evaluate import bind_attributes, where
from pyflame_rt.ops.core.inference_memo import InferenceMemo
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.core.size_arithmetic import public_type
from pyflame_rt.ops.core.trace import MAX_KNOWN
from pyflame_rt.ops.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import Node

__all__ = ["infer_graph", "infer_types", "merge_types"]


def infer_types(graph: Graph, *, strict: bool = False) -> list[str]:
    """Fill ``graph.types`` for every value that can be typed before running.

    Args:
        graph: changed in place (its ``types`` only).
        strict: raise at the first node whose inputs do not fit its operator.

    Returns:
        Messages about nodes that do not fit; empty when all do.

    Example:
        >>> from pyflame_rt.graph import DType
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 3], DType.Float32)
        >>> _ = g.add_node("a", "Relu", ["x"], ["y"])
        >>> infer_types(g), str(g.types["y"])
        ([], 'float32[N, 3]')
    """
    expect(graph, Graph, "what is typed")
    problems: list[str] = []
    infer_graph(graph, None, problems, strict=strict)
    return problems


def infer_graph(
    graph: Graph, inputs: Sequence[Value | None] | None, problems: list[str] | None = None, *, strict: bool = False
) -> list[Value]:
    """Types of a graph's outputs for the given inputs (its declared ones where None)."""
    known: dict[str, Value] = {}
    memo = InferenceMemo()
    for name, tensor in graph.initializers.items():
        contents = tensor.raw() if tensor.num_elements <= MAX_KNOWN else None
        known[name] = Value(name, TensorType(tensor.dtype, tensor.shape), contents)
    for i, info in enumerate(graph.inputs):
        given = inputs[i] if inputs is not None and i < len(inputs) else None
        kind = None if isinstance(info.type, AnyType) else info.type
        known[info.name] = Value(info.name, kind) if given is None or given.type is None else given
    for node in graph.topological_sort():
        _infer_node(graph, node, known, memo, problems, strict)
    for name, value in known.items():
        if value.type is not None and name not in graph.initializers:
            graph.types[name] = public_type(value.type)
    return [known.get(info.name, Value(info.name, info.type)) for info in graph.outputs]


def _infer_node(
    graph: Graph, node: Node, known: dict[str, Value], memo: InferenceMemo, problems: list[str] | None, strict: bool
) -> None:
    op = find_op(node.op_type, node.domain)
    if op is None:
        return
    values = [known.get(name, Value(name, graph.types.get(name))) if name else None for name in node.inputs]
    if any(v is not None and v.type is None for v in values) and not op.control:
        return
    try:
        outputs = memo.infer(op, values, bind_attributes(node, op))
    except PyFlameRTError as error:
        message = str(error) if str(error).startswith("node ") else f"{where(node)}: {error}"
        if strict:
            raise type(error)(message) from error
        if problems is not None:
            problems.append(message)
        return
    for name, value in zip(node.outputs, outputs, strict=False):
        if name and value.type is not None:
            known[name] = Value(name, merge_types(value.type, graph.types.get(name)), value.known)


def merge_types(inferred: ValueType | None, declared: ValueType | None) -> ValueType | None:
    """What is inferred, completed by what the file declares where inference knows less."""
    if inferred is None:
        return declared
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return inferred
    if inferred.shape is None:
        return TensorType(inferred.dtype, declared.shape)
    if None not in inferred.shape or declared.shape is None or len(declared.shape) != len(inferred.shape):
        return inferred
    dims = [b if a is None else a for a, b in zip(inferred.shape, declared.shape, strict=True)]
    return TensorType(inferred.dtype, type(inferred.shape)(dims))
