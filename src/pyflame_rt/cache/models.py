"""Models as they were imported, kept for the next time the same file is loaded.

An entry is the interface of a graph and, as bytes within it, a second document with its nodes and weights. A start that
finds its plan needs the first alone; the second is read when somebody looks at nodes (:class:`KeptGraph`).
"""

from __future__ import annotations

import os
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, Kind, record
from pyflame_rt.cache.places import held_makers, place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.sources import contents_of, keep_copies
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph import Dim, Graph, Node, Shape, Tensor, TensorInfo
from pyflame_rt.graph.deferred import DeferredGraph
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.pages import FileIdentity, identity_of
from pyflame_rt.graph.types import AnyType, MapType, OptionalType, SequenceType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyflame_rt.cache.encoding import Kinded
    from pyflame_rt.cache.store import Store

__all__ = ["GRAPH_KINDS", "KeptGraph", "is_settled", "keep_model", "kept_model", "model_key"]

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


class _Shelf(NamedTuple):
    """What is written of a model.

    Attributes:
        interface: the graph without nodes and weights.
        defaults: inputs that have a default.
        operators: name and domain of each that a node has, also in graphs inside nodes.
        files: path and identity of each that holds weights.
        body: the document of nodes, weights and types.
    """

    interface: Graph
    defaults: list[str]
    operators: list[list[str]]
    files: list[list[Any]]
    body: np.ndarray[Any, np.dtype[np.uint8]]


_CODEC = Codec([*GRAPH_KINDS, Kind("Shelf", _Shelf, tuple, _Shelf)])


class KeptGraph(DeferredGraph):
    """A model out of the cache, whose nodes are read when somebody first looks at them.

    Attributes:
        operators: name and domain of each that a node has, also in graphs inside nodes.
        contents: of the files with its weights, which stay what they are.
    """

    __slots__ = ("contents", "operators")

    def __init__(self, shelf: _Shelf, origin: Origin, contents: Mapping[Any, memoryview]) -> None:
        body, store = [shelf.body], current_store()  # nobody needs the body a second time

        def make() -> Graph:
            try:
                nodes, initializers, types = _CODEC.decode(body[0].tobytes(), held_makers(contents))
            except (DecodeError, TypeError, ValueError) as error:
                store.discard("model", origin.key)
                name = shelf.interface.name
                raise InvalidModelError(
                    f"the cache does not hold model {name!r} whole: {error}; load it again"
                ) from error
            made = shelf.interface.copy()
            made.nodes, made.initializers, made.types, made.origin = nodes, initializers, types, origin
            body.clear()
            return made

        super().__init__(shelf.interface, origin, make)
        self.operators = [(name, domain) for name, domain in shelf.operators]
        self.contents = list(contents.values())


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
    """The graph that was kept under a key, if there is one; most often a :class:`KeptGraph`."""
    data = current_store().get("model", key)
    if data is None:
        return None
    try:
        shelf = _CODEC.decode(data)
        if not isinstance(shelf, _Shelf):
            return None
        graph = KeptGraph(shelf, Origin(key, checked=True), _held(shelf.files))
        return graph.whole() if shelf.defaults else graph
    except (DecodeError, OSError, PyFlameRTError, LookupError, TypeError, ValueError, AttributeError):
        return None


def _held(files: list[list[Any]]) -> dict[Any, memoryview]:
    """The contents of files by path and identity: whatever becomes of the files, they stay.

    Raises:
        DecodeError: One of them has changed.
    """
    found: dict[Any, memoryview] = {}
    for path, identity in files:
        contents = contents_of(path, FileIdentity(*identity))
        if contents is None:
            raise DecodeError(f"{path} has changed")
        found[path, tuple(identity)] = contents
    return found


def keep_model(graph: Graph) -> None:
    """Keep a graph that came from a file unchanged and was found to be valid; and the weights, apart from the file."""
    keep_copies(_arrays(graph), is_settled)
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
            data = _shelved(kept, store)
        except EncodeError:
            return
        if len(data) <= MAX_BYTES:
            store.put("model", origin.key, data)

    store.writer.submit(write)


def _arrays(graph: Graph) -> Iterator[np.ndarray[Any, Any]]:
    """Arrays in each of the files that hold weights."""
    if isinstance(graph, KeptGraph):
        return (np.frombuffer(contents, np.uint8) for contents in graph.contents)
    return (tensor.unread() for tensor in graph.initializers.values())


def _shelved(graph: Graph, store: Store) -> bytes:
    """The document of a model."""
    files: dict[Any, list[Any]] = {}

    def place(array: np.ndarray[Any, Any]) -> Kinded | None:
        found = place_of(array, store)
        if found is not None:
            if found.name != "file":
                raise EncodeError("an entry of the cache may be gone when its place is needed")
            path, identity = found.parts[:2]
            files[path, tuple(identity)] = [path, identity]
        return found

    body = _CODEC.encode([graph.nodes, graph.initializers, graph.types], place)
    interface = graph.copy()
    interface.nodes, interface.initializers, interface.types = [], {}, {}
    defaults = [info.name for info in graph.inputs if info.name in graph.initializers]
    shelf = _Shelf(interface, defaults, _operators(graph), list(files.values()), np.frombuffer(body, np.uint8))
    return _CODEC.encode(shelf)


def _operators(graph: Graph) -> list[list[str]]:
    found: dict[tuple[str, str], None] = {}
    pending = [graph]
    while pending:
        current = pending.pop()
        found |= dict.fromkeys((node.op_type, node.domain) for node in current.nodes)
        pending.extend(current.subgraphs())
    return [[*pair] for pair in found]
