"""The invariants of a graph, one function each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import ValidationError
from pyflame_rt.graph.graph import Graph, node_subgraphs, sort_nodes
from pyflame_rt.graph.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.graph.node import Node

__all__ = ["find_errors", "verify"]


def verify(graph: Graph) -> None:
    """Raise ValidationError, listing everything that is wrong, unless the graph is sound.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_node("n", "Relu", ["nowhere"], ["y"])
        >>> verify(g)
        Traceback (most recent call last):
        pyflame_rt.graph.errors.ValidationError: graph 'g' is not valid
          - node 'n' (Relu) reads 'nowhere', which nothing makes
    """
    errors = find_errors(graph)
    if errors:
        raise ValidationError(f"graph {graph.name!r} is not valid", errors)


def find_errors(graph: Graph) -> list[str]:
    """Messages about every broken invariant, subgraphs included."""
    expect(graph, Graph, "what is verified")
    errors: list[str] = []
    pending: list[tuple[str, Graph]] = [("", graph)]
    while pending:
        prefix, current = pending.pop()
        for invariant in INVARIANTS:
            errors.extend(prefix + message for message in invariant(current))
        for node in current.nodes:
            pending.extend((f"{prefix}in {_where(node)}: ", body) for body in node_subgraphs(node))
    return errors


def input_names_are_unique(graph: Graph) -> Iterator[str]:
    """No two inputs share a name, and none is empty."""
    yield from _duplicates((info.name for info in graph.inputs), "input")


def output_names_are_unique(graph: Graph) -> Iterator[str]:
    """No output is listed twice."""
    yield from _duplicates((info.name for info in graph.outputs), "output")


def nodes_have_an_operator(graph: Graph) -> Iterator[str]:
    """Every node names its operator."""
    for node in graph.nodes:
        if not node.op_type:
            yield f"node {node.name!r} names no operator"


def nodes_make_something(graph: Graph) -> Iterator[str]:
    """Every node has an output."""
    for node in graph.nodes:
        if not any(node.outputs):
            yield f"{_where(node)} has no output"


def values_are_made_once(graph: Graph) -> Iterator[str]:
    """A value has one producer: an input, an initializer or one node."""
    made: dict[str, Node | str] = {info.name: "an input" for info in graph.inputs}
    made |= {name: "an initializer" for name in graph.initializers if name not in made}
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            if name in made:
                by = made[name]
                yield f"{_where(node)} makes {name!r}, which {by if isinstance(by, str) else _where(by)} makes already"
            made[name] = node


def values_read_are_made(graph: Graph) -> Iterator[str]:
    """Whatever a node reads exists."""
    made = _made(graph)
    for node in graph.nodes:
        for name in dict.fromkeys(filter(None, node.inputs)):
            if name not in made:
                yield f"{_where(node)} reads {name!r}, which nothing makes"


def outputs_are_made(graph: Graph) -> Iterator[str]:
    """Whatever the graph gives out exists."""
    made = _made(graph)
    for info in graph.outputs:
        if info.name and info.name not in made:
            yield f"output {info.name!r} is made by nothing"


def there_is_no_cycle(graph: Graph) -> Iterator[str]:
    """The nodes can be put in order."""
    order = sort_nodes(graph.nodes)
    if len(order) < len(graph.nodes):
        placed = set(map(id, order))
        stuck = [_where(node) for node in graph.nodes if id(node) not in placed]
        yield f"a cycle runs through {', '.join(stuck[:5])}{' ...' if len(stuck) > 5 else ''}"


def defaults_fit_their_input(graph: Graph) -> Iterator[str]:
    """An initializer that is an input's default has the input's element type and rank."""
    for info in graph.inputs:
        tensor, kind = graph.initializers.get(info.name), info.type
        if tensor is None or not isinstance(kind, TensorType):
            continue
        if tensor.dtype is not kind.dtype:
            yield f"input {info.name!r} is {kind.dtype.label}, its default {tensor.dtype.label}"
        elif kind.shape is not None and len(kind.shape) != tensor.ndim:
            yield f"input {info.name!r} has shape {kind.shape}, its default {tensor.shape}"


INVARIANTS: tuple[Callable[[Graph], Iterator[str]], ...] = (
    input_names_are_unique,
    output_names_are_unique,
    nodes_have_an_operator,
    nodes_make_something,
    values_are_made_once,
    values_read_are_made,
    outputs_are_made,
    there_is_no_cycle,
    defaults_fit_their_input,
)


def _made(graph: Graph) -> set[str]:
    made = {info.name for info in graph.inputs} | set(graph.initializers)
    made.update(output for node in graph.nodes for output in node.outputs)
    return made


def _duplicates(names: Iterator[str], what: str) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if not name:
            yield f"an {what} has no name"
        elif name in seen:
            yield f"{what} {name!r} is listed twice"
        seen.add(name)


def _where(node: Node) -> str:
    if node.name:
        return f"node {node.name!r} ({node.full_name})"
    more = f" and {len(node.outputs) - 8} more" if len(node.outputs) > 8 else ""
    return f"node {node.full_name} -> {', '.join(node.outputs[:8])}{more}"
