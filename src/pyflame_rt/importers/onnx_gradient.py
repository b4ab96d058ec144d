"""The training operator Gradient names values of its graph: it is expanded while reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import AnyType, Graph, Node, TensorInfo, TensorType
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.ops.core.inference import infer_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["expand_gradient", "is_gradient"]


def is_gradient(node: Node) -> bool:
    """True for ai.onnx.preview.training's Gradient."""
    return node.op_type == "Gradient" and node.domain == "ai.onnx.preview.training"


def expand_gradient(graph: Graph, node: Node, fresh: Callable[[str], str]) -> None:
    """Add the nodes that compute a Gradient node's outputs to the graph read so far.

    Args:
        graph: what precedes the node; changed in place.
        node: the Gradient node.
        fresh: makes names nobody uses.
    """
    from pyflame_rt.autodiff import gradient

    xs, zs, y = (node.get_attr(name) for name in ("xs", "zs", "y"))
    if not isinstance(xs, list) or not isinstance(y, str):
        raise InvalidModelError(f"node {node.name!r} (Gradient): attributes xs and y are required")
    free = [str(name) for name in [*xs, *(zs if isinstance(zs, list) else [])]]
    if len(node.inputs) != len(free):
        raise InvalidModelError(f"node {node.name!r} (Gradient): {len(node.inputs)} inputs for xs and zs {free}")
    infer_types(graph)
    made = gradient(_piece(graph, free, y), [y], [str(x) for x in xs])
    rename = dict(zip(free, node.inputs, strict=True)) | {"": ""}
    wanted = zip(made.outputs[1:], node.outputs, strict=False)
    rename |= {info.name: name for info, name in wanted if name}
    # What the piece reads from outside besides xs and zs keeps its name.
    for info in made.inputs:
        rename.setdefault(info.name, info.name)
    for name, tensor in made.initializers.items():
        if name not in graph.initializers and name not in rename:
            rename[name] = fresh(name)
            graph.initializers[rename[name]] = tensor
        else:
            rename.setdefault(name, name)
    for made_node in made.nodes:
        for output in made_node.outputs:
            if output not in rename:
                rename[output] = fresh(output)
        graph.nodes.append(_renamed(made_node, rename, node.name))


def _piece(graph: Graph, free: Sequence[str], y: str) -> Graph:
    """The part of a graph that computes ``y`` from the values in ``free``."""
    producers = graph.producers()
    kept: set[str] = set()
    outside: dict[str, None] = {}
    pending, seen = [y], set(free)
    while pending:
        name = pending.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        producer = producers.get(name)
        if producer is not None:
            kept.update(producer.outputs)
            pending.extend(producer.inputs)
        elif name not in graph.initializers:
            outside[name] = None
    piece = Graph(f"{y}_of_{'_'.join(free)}")
    piece.nodes = [n for n in graph.nodes if any(output in kept for output in n.outputs)]
    piece.initializers = {n: t for n, t in graph.initializers.items() if n not in free}
    piece.types = dict(graph.types)
    declared = {info.name: info.type for info in graph.inputs}
    for name in [*dict.fromkeys(free), *outside]:
        kind = graph.types.get(name, declared.get(name))
        if name in graph.initializers:
            tensor = graph.initializers[name]
            kind = TensorType(tensor.dtype, tensor.shape)
        piece.inputs.append(TensorInfo(name, type=AnyType() if kind is None else kind))
    return piece


def _renamed(node: Node, rename: dict[str, str], prefix: str) -> Node:
    return node.replace(
        name=f"{prefix}/{node.name}",
        inputs=[rename[name] for name in node.inputs],
        outputs=[rename[name] for name in node.outputs],
    )
