"""The records inside version 2 sections: types, tensors, attributes, nodes, subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pyflame_rt.format.arrays import checked_count, view_array
from pyflame_rt.format.cursor import Cursor, Sink
from pyflame_rt.format.limits import MAX_ATTRIBUTES, MAX_DEPTH, MAX_ITEMS, MAX_NODES, MAX_RANK
from pyflame_rt.graph import (
    AnyType,
    DType,
    Graph,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    Shape,
    Tensor,
    TensorInfo,
    TensorType,
    ValueType,
)
from pyflame_rt.graph.dim import DimLike, dim_from_text
from pyflame_rt.graph.errors import ShapeMismatchError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["RecordReader", "RecordWriter"]

ALIGN = 64
# Attribute tags 0 to 4 mean what they mean in version 1, with floats of eight bytes.
INT, FLOAT, STRING, INTS, FLOATS, STRINGS, TENSOR, GRAPH, TYPE, BYTES, MIXED = range(11)


class RecordReader:
    """Reads records; array data is viewed in the data section."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def infos(self, cursor: Cursor) -> list[TensorInfo]:
        """Descriptions of inputs or outputs."""
        return [
            TensorInfo(cursor.string("value name"), type=self.type(cursor))
            for _ in range(cursor.count("values", MAX_ITEMS, 9))
        ]

    def types(self, cursor: Cursor) -> dict[str, ValueType]:
        """Types of intermediate values."""
        return {info.name: info.type for info in self.infos(cursor)}

    def type(self, cursor: Cursor, depth: int = 0) -> ValueType:
        """One type."""
        if depth > MAX_DEPTH:
            raise cursor.fail("a type is nested too deep")
        match cursor.u8("kind of type"):
            case 0:
                return AnyType()
            case 1:
                return self._tensor_type(cursor)
            case 2:
                return SequenceType(self.type(cursor, depth + 1))
            case 3:
                return OptionalType(self.type(cursor, depth + 1))
            case 4:
                return MapType(self._dtype(cursor), self.type(cursor, depth + 1))
            case kind:
                raise cursor.fail(f"a type is of the unknown kind {kind}")

    def _dtype(self, cursor: Cursor) -> DType:
        value = cursor.u32("element type")
        try:
            return DType(value)
        except ValueError:
            raise cursor.fail(f"element type {value} is not known") from None

    def _tensor_type(self, cursor: Cursor) -> TensorType:
        dtype = self._dtype(cursor)
        if not cursor.u8("whether the rank is known"):
            return TensorType(dtype, None)
        dims = [self._dim(cursor) for _ in range(cursor.count("dimensions", MAX_RANK, 1))]
        return TensorType(dtype, Shape(dims))

    def _dim(self, cursor: Cursor) -> DimLike:
        kind = cursor.u8("kind of dimension")
        if kind == 0:
            return None
        if kind == 1:
            size = cursor.i64("dimension")
            if size < 0:
                raise cursor.fail(f"a dimension is {size}")
            return size
        if kind != 2:
            raise cursor.fail(f"a dimension is of the unknown kind {kind}")
        text = cursor.string("dimension")
        try:
            return dim_from_text(text)
        except (ValueError, ShapeMismatchError) as error:
            raise cursor.fail(f"the dimension {text!r} cannot be read: {error}") from error

    def initializers(self, cursor: Cursor) -> dict[str, Tensor]:
        """Named tensors."""
        result: dict[str, Tensor] = {}
        for _ in range(cursor.count("initializers", MAX_ITEMS, 21)):
            name = cursor.string("initializer name")
            result[name] = self.tensor(cursor, repr(name))
        return result

    def tensor(self, cursor: Cursor, what: str) -> Tensor:
        """One tensor: strings in place, numbers by offset into the data."""
        dtype = self._dtype(cursor)
        count = cursor.count(f"dimensions of {what}", MAX_RANK, 8)
        dims = [cursor.i64(f"dimension of {what}") for _ in range(count)]
        if dtype is DType.String:
            return self._strings(cursor, dims, what)
        offset, length = cursor.u64(f"offset of {what}"), cursor.u64(f"size of {what}")
        if offset + length > len(self.data):
            raise cursor.fail(f"{what} lies outside the data section")
        if offset % ALIGN:
            raise cursor.fail(f"{what} is not aligned")
        return view_array(cursor, self.data[offset : offset + length], dtype, dims, what)

    def _strings(self, cursor: Cursor, dims: list[int], what: str) -> Tensor:
        total = checked_count(cursor, dims, what)
        if total * 8 > cursor.end - cursor.at:
            raise cursor.fail(f"{what} has {total} strings, which cannot fit")
        flat = np.empty(total, dtype=object)
        flat[:] = [cursor.string(what) for _ in range(total)]
        return Tensor(flat.reshape(dims))

    def nodes(self, cursor: Cursor, depth: int) -> list[Node]:
        """Nodes in order."""
        return [self._node(cursor, depth) for _ in range(cursor.count("nodes", MAX_NODES, 48))]

    def _node(self, cursor: Cursor, depth: int) -> Node:
        name, op_type, domain = cursor.string("node name"), cursor.string("operator"), cursor.string("domain")
        inputs = [cursor.string("input name") for _ in range(cursor.count("inputs", MAX_ITEMS, 8))]
        outputs = [cursor.string("output name") for _ in range(cursor.count("outputs", MAX_ITEMS, 8))]
        attributes: dict[str, Any] = {}
        for _ in range(cursor.count("attributes", MAX_ATTRIBUTES, 12)):
            key = cursor.string("attribute name")
            attributes[key] = self._attribute(cursor, key, depth)
        return Node(name, op_type, inputs, outputs, attributes, domain)

    def _attribute(self, cursor: Cursor, key: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise cursor.fail("attributes are nested too deep")
        match cursor.u32(f"kind of attribute {key!r}"):
            case 0:
                return cursor.i64(key)
            case 1:
                return cursor.f64(key)
            case 2:
                return cursor.string(key)
            case 3:
                return [cursor.i64(key) for _ in range(cursor.count(key, MAX_ITEMS, 8))]
            case 4:
                return [cursor.f64(key) for _ in range(cursor.count(key, MAX_ITEMS, 8))]
            case 5:
                return [cursor.string(key) for _ in range(cursor.count(key, MAX_ITEMS, 8))]
            case 6:
                return self.tensor(cursor, f"attribute {key!r}")
            case 7:
                return self.graph(cursor, depth + 1)
            case 8:
                return self.type(cursor)
            case 9:
                return bytes(cursor.take(cursor.count(key, MAX_ITEMS, 1), key))
            case 10:
                return [self._attribute(cursor, key, depth + 1) for _ in range(cursor.count(key, MAX_ITEMS, 4))]
            case kind:
                raise cursor.fail(f"attribute {key!r} is of the unknown kind {kind}")

    def graph(self, cursor: Cursor, depth: int) -> Graph:
        """A subgraph, its parts in the order of the sections."""
        if depth > MAX_DEPTH:
            raise cursor.fail("subgraphs are nested too deep")
        graph = Graph(cursor.string("subgraph name"))
        graph.doc = cursor.string("subgraph description")
        graph.inputs, graph.outputs = self.infos(cursor), self.infos(cursor)
        graph.initializers = self.initializers(cursor)
        graph.nodes = self.nodes(cursor, depth)
        graph.types = self.types(cursor)
        return graph


class RecordWriter:
    """Writes records; array data is collected for the data section."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, Tensor]] = []
        self.data_size = 0
        self._offsets: dict[int, int] = {}

    def infos(self, infos: Iterable[TensorInfo]) -> bytes:
        """Descriptions of inputs or outputs."""
        listed, sink = list(infos), Sink()
        sink.pack("Q", len(listed))
        for info in listed:
            sink.string(info.name)
            self._type(sink, info.type)
        return sink.bytes()

    def types(self, types: Mapping[str, ValueType]) -> bytes:
        """Types of intermediate values."""
        return self.infos(TensorInfo(name, type=kind) for name, kind in types.items())

    def _type(self, sink: Sink, kind: ValueType) -> None:
        match kind:
            case AnyType():
                sink.pack("B", 0)
            case TensorType(dtype=dtype, shape=shape):
                sink.pack("BI", 1, dtype.value)
                self._shape(sink, shape)
            case SequenceType(elem=elem):
                sink.pack("B", 2)
                self._type(sink, elem)
            case OptionalType(elem=elem):
                sink.pack("B", 3)
                self._type(sink, elem)
            case MapType(key=key, value=value):
                sink.pack("BI", 4, key.value)
                self._type(sink, value)

    def _shape(self, sink: Sink, shape: Shape | None) -> None:
        sink.pack("B", shape is not None)
        if shape is None:
            return
        sink.pack("Q", len(shape))
        for d in shape:
            if d is None:
                sink.pack("B", 0)
            elif isinstance(d, int):
                sink.pack("Bq", 1, d)
            else:
                sink.pack("B", 2)
                sink.string(str(d))

    def initializers(self, tensors: Mapping[str, Tensor]) -> bytes:
        """Named tensors."""
        sink = Sink()
        sink.pack("Q", len(tensors))
        for name, tensor in tensors.items():
            sink.string(name)
            self._tensor(sink, tensor)
        return sink.bytes()

    def _tensor(self, sink: Sink, tensor: Tensor) -> None:
        sink.pack("IQ", tensor.dtype.value, tensor.ndim)
        sink.pack(f"{tensor.ndim}q", *tensor.raw().shape)
        if tensor.dtype is DType.String:
            for text in tensor.raw().ravel():
                sink.string(str(text))
            return
        sink.pack("QQ", self._store(tensor), tensor.size_bytes)

    def _store(self, tensor: Tensor) -> int:
        """Where its data goes; one array shared by several names is stored once."""
        offset = self._offsets.get(id(tensor))
        if offset is None:
            offset = self.data_size
            self._offsets[id(tensor)] = offset
            self.stored.append((offset, tensor))
            self.data_size += tensor.size_bytes + (-tensor.size_bytes % ALIGN)
        return offset

    def nodes(self, nodes: list[Node], depth: int) -> bytes:
        """Nodes in order."""
        sink = Sink()
        sink.pack("Q", len(nodes))
        for node in nodes:
            for text in (node.name, node.op_type, node.domain):
                sink.string(text)
            for names in (node.inputs, node.outputs):
                sink.pack("Q", len(names))
                for name in names:
                    sink.string(name)
            sink.pack("Q", len(node.attributes))
            for key, value in node.attributes.items():
                sink.string(key)
                self._attribute(sink, value, depth, f"attribute {key!r} of node {node.name!r}")
        return sink.bytes()

    def _attribute(self, sink: Sink, value: Any, depth: int, what: str) -> None:
        if depth > MAX_DEPTH:
            raise UnsupportedFormatError(f"{what} is nested more than {MAX_DEPTH} deep")
        match value:
            case bool() | int():
                sink.pack("Iq", INT, int(value))
            case float():
                sink.pack("Id", FLOAT, value)
            case str():
                sink.pack("I", STRING)
                sink.string(value)
            case Tensor():
                sink.pack("I", TENSOR)
                self._tensor(sink, value)
            case Graph():
                sink.pack("I", GRAPH)
                self._graph(sink, value, depth + 1)
            case bytes():
                sink.pack("IQ", BYTES, len(value))
                sink.raw(value)
            case list() | tuple():
                self._list(sink, list(cast("Iterable[Any]", value)), depth, what)
            case AnyType() | TensorType() | SequenceType() | OptionalType() | MapType():
                sink.pack("I", TYPE)
                self._type(sink, value)
            case _:
                raise UnsupportedFormatError(f"{what} is a {type(value).__name__}, which .pfm cannot hold")

    def _list(self, sink: Sink, values: list[Any], depth: int, what: str) -> None:
        if all(isinstance(v, int) for v in values):
            sink.pack(f"IQ{len(values)}q", INTS, len(values), *values)
        elif all(isinstance(v, (int, float)) for v in values):
            sink.pack(f"IQ{len(values)}d", FLOATS, len(values), *values)
        elif all(isinstance(v, str) for v in values):
            sink.pack("IQ", STRINGS, len(values))
            for text in values:
                sink.string(text)
        else:
            sink.pack("IQ", MIXED, len(values))
            for item in values:
                self._attribute(sink, item, depth + 1, what)

    def _graph(self, sink: Sink, graph: Graph, depth: int) -> None:
        sink.string(graph.name)
        sink.string(graph.doc)
        sink.raw(self.infos(graph.inputs))
        sink.raw(self.infos(graph.outputs))
        sink.raw(self.initializers(graph.initializers))
        sink.raw(self.nodes(graph.nodes, depth))
        sink.raw(self.types(graph.types))
