"""Models as they were imported, kept for the next time the same file is loaded."""

from __future__ import annotations

import os
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, Kind, record
from pyflame_rt.cache.places import LAZY_MAKERS, place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.sources import keep_copies
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph import Dim, Graph, Node, Shape, Tensor, TensorInfo
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.pages import identity_of
from pyflame_rt.graph.types import AnyType, MapType, OptionalType, SequenceType, TensorType

if TYPE_CHECKING:
    from pathlib import Path

    from pyflame_rt.graph.pages import FileIdentity

__all__ = ["GRAPH_KINDS", "is_settled", "keep_model", "kept_model", "model_key"]

# A file written to as lately as this may be written to again without its time changing.
SETTLED_NS = 2_000_000_000
# What is not in the mapped file is in the entry: no more of it than this.
MAX_BYTES = 64 << 20


_GRAPH = ("name", "doc", "inputs", "outputs", "initializers", "nodes", "types", "opsets", "metadata")


def _graph(*parts: Any) -> Graph:
    graph = Graph()
    for name, part in zip(_GRAPH, parts, strict=True):
        setattr(graph, name, part)
    return graph


def _shape(*sizes: Any) -> Shape:
    return tuple.__new__(Shape, sizes)


def _parts_of_node(node: Node) -> tuple[Any, ...]:
    """Lists and None, where a node makes the tuples and the dict of them: what is plain JSON is read quickest."""
    return node.name, node.op_type, [*node.inputs], [*node.outputs], dict(node.attributes) or None, node.domain


GRAPH_KINDS = (
    Kind("Graph", Graph, attrgetter(*_GRAPH), _graph),
    Kind("Node", Node, _parts_of_node, Node),
    Kind("Tensor", Tensor, lambda tensor: (tensor.stored(),), Tensor.unverified),
    Kind("Info", TensorInfo, attrgetter("name", "type"), lambda name, kind: TensorInfo(name, type=kind)),
    Kind("Shape", Shape, tuple, _shape),
    Kind("Dim", Dim, lambda dim: dim.terms, lambda *terms: Dim(dict(terms))),
    *map(record, (TensorType, SequenceType, OptionalType, MapType, AnyType)),
)
_CODEC = Codec(GRAPH_KINDS)


def is_settled(identity: FileIdentity) -> bool:
    """Whether a file was left alone for long enough that its time of writing tells its contents."""
    return time.time_ns() - identity.modified_ns > SETTLED_NS


def model_key(path: Path) -> str | None:
    """What the graph of a model file is kept under; None where it is not kept."""
    identity = identity_of(path)
    if not current_store().usable or not is_settled(identity):
        return None
    return f"{os.path.abspath(path)} {tuple(identity)} {code_signature('importers', 'format', 'graph', 'ops')}"


def kept_model(key: str) -> Graph | None:
    """The graph that was kept under a key, if there is one."""
    data = current_store().get("model", key)
    if data is None:
        return None
    try:
        graph = _CODEC.decode(data, LAZY_MAKERS)
    except DecodeError:
        return None
    if not isinstance(graph, Graph):
        return None
    graph.origin = Origin(key, checked=True)
    return graph


def keep_model(graph: Graph) -> None:
    """Keep a graph that came from a file unchanged and was found to be valid; and the weights, apart from the file."""
    keep_copies((tensor.unread() for tensor in graph.initializers.values()), is_settled)
    origin = graph.origin
    if origin is None or origin.checked:
        return
    graph.origin = Origin(origin.key, checked=True)
    if any(tensor.dtype.bits < 8 for tensor in graph.initializers.values()):
        return  # unpacked from files that nothing here names
    store, kept = current_store(), graph.copy()
    if not store.writable:
        return

    def write() -> None:
        try:
            data = _CODEC.encode(kept, lambda array: place_of(array, store))
        except EncodeError:
            return
        if len(data) <= MAX_BYTES:
            store.put("model", origin.key, data)

    store.writer.submit(write)
