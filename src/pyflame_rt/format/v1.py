"""Version 1 of .pfm, as documented: one stream of fields, ten element types, plain attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyflame_rt.format.arrays import array_bytes, view_array
from pyflame_rt.format.cursor import Cursor, Sink
from pyflame_rt.format.limits import MAX_ATTRIBUTES, MAX_DIM, MAX_ITEMS, MAX_NODES, MAX_RANK
from pyflame_rt.graph import DType, Graph, Node, Shape, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["read_v1", "write_v1"]

_LAST_DTYPE = DType.Bool.value


def read_v1(cursor: Cursor) -> Graph:
    """A graph from the fields after magic and version."""
    graph = Graph(cursor.string("graph name"))
    for _ in range(cursor.count("inputs", MAX_ITEMS, 20)):
        graph.inputs.append(_read_info(cursor))
    for _ in range(cursor.count("outputs", MAX_ITEMS, 20)):
        graph.outputs.append(_read_info(cursor))
    for _ in range(cursor.count("initializers", MAX_ITEMS, 28)):
        name, tensor = _read_tensor(cursor)
        graph.initializers[name] = tensor
    for _ in range(cursor.count("nodes", MAX_NODES, 40)):
        graph.nodes.append(_read_node(cursor))
    cursor.done()
    return graph


def _read_dtype(cursor: Cursor, what: str) -> DType:
    value = cursor.u32(f"element type of {what}")
    if value > _LAST_DTYPE:
        raise cursor.fail(f"{what} has the unknown element type {value}")
    return DType(value)


def _read_dims(cursor: Cursor, what: str) -> list[int]:
    return [cursor.i64(f"dimension of {what}") for _ in range(cursor.count(f"dimensions of {what}", MAX_RANK, 8))]


def _read_info(cursor: Cursor) -> TensorInfo:
    name = cursor.string("value name")
    dtype = _read_dtype(cursor, name)
    dims = _read_dims(cursor, name)
    if any(not -1 <= d <= MAX_DIM for d in dims):
        raise cursor.fail(f"{name!r} has the shape {dims}")
    return TensorInfo(name, [None if d == -1 else d for d in dims], dtype)


def _read_tensor(cursor: Cursor) -> tuple[str, Tensor]:
    name = cursor.string("initializer name")
    dtype = _read_dtype(cursor, name)
    dims = _read_dims(cursor, name)
    length = cursor.u64(f"size of {name}")
    return name, view_array(cursor, cursor.take(length, f"data of {name!r}"), dtype, dims, repr(name))


def _read_node(cursor: Cursor) -> Node:
    name, op_type = cursor.string("node name"), cursor.string("operator")
    inputs = [cursor.string("input name") for _ in range(cursor.count("inputs", MAX_ITEMS, 8))]
    outputs = [cursor.string("output name") for _ in range(cursor.count("outputs", MAX_ITEMS, 8))]
    attributes: dict[str, Any] = {}
    for _ in range(cursor.count("attributes", MAX_ATTRIBUTES, 12)):
        key = cursor.string("attribute name")
        tag = cursor.u32("attribute kind")
        if tag != 255:  # an attribute of a kind the writer could not express: no payload
            attributes[key] = _read_attribute(cursor, tag, key)
    return Node(name, op_type, inputs, outputs, attributes)


def _read_attribute(cursor: Cursor, tag: int, key: str) -> Any:
    match tag:
        case 0:
            return cursor.i64(key)
        case 1:
            return cursor.f32(key)
        case 2:
            return cursor.string(key)
        case 3:
            return [cursor.i64(key) for _ in range(cursor.count(key, MAX_ITEMS, 8))]
        case 4:
            return [cursor.f32(key) for _ in range(cursor.count(key, MAX_ITEMS, 4))]
        case _:
            raise cursor.fail(f"attribute {key!r} is of the unknown kind {tag}")


def write_v1(graph: Graph) -> list[Any]:
    """The pieces of a version 1 file; refuses what that version cannot hold."""
    sink = Sink()
    sink.string(graph.name)
    for infos in (graph.inputs, graph.outputs):
        sink.pack("Q", len(infos))
        for info in infos:
            _write_info(sink, info)
    sink.pack("Q", len(graph.initializers))
    for name, tensor in graph.initializers.items():
        _write_tensor(sink, name, tensor)
    sink.pack("Q", len(graph.nodes))
    for node in graph.nodes:
        _write_node(sink, node)
    return sink.parts


def _refuse(what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f".pfm version 1 cannot hold {what}; save with version=2")


def _dtype_value(dtype: DType, what: str) -> int:
    if dtype.value > _LAST_DTYPE:
        raise _refuse(f"the element type {dtype.label} of {what}")
    return int(dtype.value)


def _write_info(sink: Sink, info: TensorInfo) -> None:
    if not isinstance(info.type, TensorType) or info.type.shape is None:
        raise _refuse(f"the type {info.type} of {info.name!r}")
    sink.string(info.name)
    sink.pack("I", _dtype_value(info.dtype, repr(info.name)))
    _write_dims(sink, info.type.shape)


def _write_dims(sink: Sink, shape: Shape) -> None:
    sink.pack("Q", len(shape))
    for d in shape:
        sink.pack("q", d if isinstance(d, int) else -1)


def _write_tensor(sink: Sink, name: str, tensor: Tensor) -> None:
    sink.string(name)
    sink.pack("I", _dtype_value(tensor.dtype, repr(name)))
    _write_dims(sink, tensor.shape)
    sink.pack("Q", tensor.size_bytes)
    sink.raw(array_bytes(tensor))


def _write_node(sink: Sink, node: Node) -> None:
    if node.domain:
        raise _refuse(f"the domain of {node.full_name}")
    sink.string(node.name)
    sink.string(node.op_type)
    for names in (node.inputs, node.outputs):
        sink.pack("Q", len(names))
        for name in names:
            sink.string(name)
    sink.pack("Q", len(node.attributes))
    for key, value in node.attributes.items():
        sink.string(key)
        _write_attribute(sink, value, f"attribute {key!r} of node {node.name!r}")


def _write_attribute(sink: Sink, value: Any, what: str) -> None:
    match value:
        case bool() | int():
            sink.pack("Iq", 0, int(value))
        case float():
            sink.pack("If", 1, value)
        case str():
            sink.pack("I", 2)
            sink.string(value)
        case list() | tuple():
            _write_list(sink, list(cast("Iterable[Any]", value)), what)
        case _:
            raise _refuse(f"{what}, a {type(value).__name__}")


def _write_list(sink: Sink, values: list[Any], what: str) -> None:
    if all(isinstance(v, int) for v in values):
        sink.pack(f"IQ{len(values)}q", 3, len(values), *values)
    elif all(isinstance(v, (int, float)) for v in values):
        sink.pack(f"IQ{len(values)}f", 4, len(values), *values)
    else:
        raise _refuse(f"{what}, a list of {', '.join(sorted({type(v).__name__ for v in values}))}")
