"""A hash of what a graph computes, whatever its values are called."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, cast

from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.graph import Graph
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fingerprint"]


@names_arguments
def fingerprint(graph: Graph, *, weights: bool = False) -> str:
    """Hex digest of structure, types and attributes; with ``weights``, of the data too.

    Two graphs that differ only in names, or in the order in which independent nodes were
    added with equal wiring, have equal fingerprints.

    Example:
        >>> a, b = Graph("a"), Graph("b")
        >>> _ = a.add_input("x", [2]), a.add_node("n", "Relu", ["x"], ["y"]), a.add_output("y", [2])
        >>> _ = b.add_input("u", [2]), b.add_node("m", "Relu", ["u"], ["v"]), b.add_output("v", [2])
        >>> fingerprint(a) == fingerprint(b)
        True
    """
    expect(graph, Graph, "what has a fingerprint")
    digest = hashlib.sha256()
    _feed_graph(digest, graph, weights)
    return digest.hexdigest()


def _feed_graph(digest: Any, graph: Graph, weights: bool) -> None:
    """Each value's own digest stands for it, so names and node order drop out."""
    values: dict[str, bytes] = {"": b"-"}
    for i, info in enumerate(graph.inputs):
        values[info.name] = _hash("input", str(i), str(info.type))
    for name, tensor in graph.initializers.items():
        default = values.get(name, b"")
        values[name] = _hash("init", default.hex(), *_tensor_parts(tensor, weights))
    for node in graph.topological_sort():
        parts = [node.full_name, *(values.get(n, b"?").hex() for n in node.inputs)]
        for key in sorted(node.attributes):
            parts += [key, _attribute_text(node.attributes[key], weights)]
        base = _hash("node", *parts)
        for i, name in enumerate(node.outputs):
            if name:
                values[name] = _hash("out", base.hex(), str(i))
    for info in graph.inputs:
        digest.update(_hash("in", str(info.type)))
    for info in graph.outputs:
        digest.update(values.get(info.name, b"?"))


def _hash(*parts: str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.digest()


def _tensor_parts(tensor: Tensor, weights: bool) -> list[str]:
    # Small integers are part of the structure: shapes, axes, pads.
    small = tensor.num_elements <= 64 and not tensor.dtype.is_float
    parts = [tensor.dtype.label, str(tensor.shape)]
    if weights or small:
        parts.append(_data_digest(tensor))
    return parts


def _data_digest(tensor: Tensor) -> str:
    array = tensor.raw()
    if tensor.dtype is DType.String:
        return _hash(*[str(s) for s in array.ravel()]).hex()
    return hashlib.sha256(array.tobytes()).hexdigest()


def _attribute_text(value: Any, weights: bool) -> str:
    if isinstance(value, Graph):
        return fingerprint(value, weights=weights)
    if isinstance(value, Tensor):
        # Attribute tensors are parameters of the operator, not weights: always counted.
        return " ".join([value.dtype.label, str(value.shape), _data_digest(value)])
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_attribute_text(v, weights) for v in cast("Sequence[Any]", value)) + "]"
    return f"{type(value).__name__}:{value!r}"
