"""Read the wire form of ONNX models, without protobuf and without copying weights.

Only what exporters write is read here. Whatever else a file holds (groups, a message in two parts, text that is no
UTF-8, lengths beyond the end, deep nesting) raises :class:`UnusualError`, and the ``onnx`` package judges the file.
Every step moves on and none beyond the end of its message, so time and memory are bounded by the size of the file.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, TypeAlias

import numpy as np

from pyflame_rt.importers.onnx_messages import (
    Attribute,
    Dimension,
    ElementType,
    Function,
    Graph,
    Info,
    Message,
    Model,
    NodeMessage,
    Pair,
    ShapeMessage,
    Sparse,
    TensorMessage,
    TensorTypeMessage,
    TypeMessage,
)

__all__ = ["UnusualError", "parse_model", "unpack_varints"]

MIN_VIEW = 4096  # smaller contents are copied, so that they do not keep the whole file
_MAX_DEPTH = 90  # of messages; protobuf gives up at 100
_MAX_MEMO = 64
_INT32, _INT64 = 1 << 31, 1 << 63
_float = Struct("<f")

# Kinds of fields.
_TEXT, _TEXTS, _PART, _PARTS, _SHARED, _SHARED_PARTS, _BYTES, _BYTES_LIST, _VIEW = range(9)
_INT, _INTS, _ENUM, _FLOAT, _FLOATS, _PACKED, _PACKED_INTS, _PACKED_FLOATS, _REFUSED = range(9, 18)
_LISTS = (_TEXTS, _PARTS, _SHARED_PARTS, _BYTES_LIST)

Table: TypeAlias = "dict[int, tuple[int, str, Any]]"


class UnusualError(Exception):
    """A form no exporter writes; protobuf judges it."""


class _Layout:
    """How one message is read: its class, and for each tag the kind and name of the field and its own layout."""

    __slots__ = ("table", "type")

    def __init__(self, kind: type[Message]) -> None:
        self.type = kind
        self.table: Table = {}

    def has(self, kind: int, layout: _Layout | None = None, /, **numbers: int) -> _Layout:
        wire = {_INT: 0, _INTS: 0, _ENUM: 0, _FLOAT: 5, _FLOATS: 5}.get(kind, 2)
        for name, number in numbers.items():
            self.table[number << 3 | wire] = kind, name, layout
            if kind == _INTS:
                self.table[number << 3 | 2] = _PACKED_INTS, name, None
            if kind == _FLOATS:
                self.table[number << 3 | 2] = _PACKED_FLOATS, name, None
        return self

    def refuses(self, *tags: int) -> _Layout:
        """Fields that are left to protobuf."""
        for tag in tags:
            self.table[tag] = _REFUSED, "", None
        return self


_opset = _Layout(Pair).has(_TEXT, domain=1).has(_INT, version=2)
_entry = _Layout(Pair).has(_TEXT, key=1, value=2)
_tensor = (
    _Layout(TensorMessage)
    .has(_INTS, dims=1)
    .has(_ENUM, data_type=2, data_location=14)
    .has(_PACKED, float_data=4, int32_data=5, int64_data=7, double_data=10, uint64_data=11)
    .has(_BYTES_LIST, string_data=6)
    .has(_TEXT, name=8)
    .has(_VIEW, raw_data=9)
    .has(_PARTS, _entry, external_data=13)
    # Segments, and numbers that are not packed.
    .refuses(3 << 3 | 2, 4 << 3 | 5, 5 << 3, 7 << 3, 10 << 3 | 1, 11 << 3)
)
_sparse = _Layout(Sparse).has(_PART, _tensor, values=1, indices=2).has(_INTS, dims=3)
_dim = _Layout(Dimension).has(_INT, dim_value=1).has(_TEXT, dim_param=2)
_shape = _Layout(ShapeMessage).has(_PARTS, _dim, dim=1)
_tensor_type = _Layout(TensorTypeMessage).has(_ENUM, elem_type=1).has(_PART, _shape, shape=2)
_type = _Layout(TypeMessage)
_of_type = _Layout(ElementType).has(_PART, _type, elem_type=1)
_map_type = _Layout(ElementType).has(_ENUM, key_type=1).has(_PART, _type, value_type=2)
_type.has(_PART, _tensor_type, tensor_type=1, sparse_tensor_type=8).has(_PART, _of_type, sequence_type=4)
_type.has(_PART, _map_type, map_type=5).has(_PART, _of_type, optional_type=9)
_type.has(_PART, _Layout(TypeMessage), opaque_type=7)
_info = _Layout(Info).has(_TEXT, name=1).has(_SHARED, _type, type=2)
_attribute = _Layout(Attribute)
_node = (
    _Layout(NodeMessage)
    .has(_TEXTS, input=1, output=2)
    .has(_TEXT, name=3, op_type=4, domain=7, overload=8)
    .has(_SHARED_PARTS, _attribute, attribute=5)
)
_graph = (
    _Layout(Graph)
    .has(_PARTS, _node, node=1)
    .has(_TEXT, name=2, doc_string=10)
    .has(_PARTS, _tensor, initializer=5)
    .has(_PARTS, _info, input=11, output=12, value_info=13)
    .has(_PARTS, _sparse, sparse_initializer=15)
)
(
    _attribute.has(_TEXT, name=1, ref_attr_name=21)
    .has(_FLOAT, f=2)
    .has(_INT, i=3)
    .has(_BYTES, s=4)
    .has(_PART, _tensor, t=5)
    .has(_PART, _graph, g=6)
    .has(_FLOATS, floats=7)
    .has(_INTS, ints=8)
    .has(_BYTES_LIST, strings=9)
    .has(_PARTS, _tensor, tensors=10)
    .has(_PARTS, _graph, graphs=11)
    .has(_PART, _type, tp=14)
    .has(_ENUM, type=20)
    .has(_PART, _sparse, sparse_tensor=22)
)
_function = (
    _Layout(Function)
    .has(_TEXT, name=1, domain=10, overload=13)
    .has(_TEXTS, input=4, output=5, attribute=6)
    .has(_PARTS, _node, node=7)
    .has(_PARTS, _opset, opset_import=9)
    .has(_PARTS, _attribute, attribute_proto=11)
)
_model = (
    _Layout(Model)
    .has(_INT, ir_version=1, model_version=5)
    .has(_TEXT, producer_name=2, producer_version=3, domain=4, doc_string=6)
    .has(_PART, _graph, graph=7)
    .has(_PARTS, _opset, opset_import=8)
    .has(_PARTS, _entry, metadata_props=14)
    .has(_PARTS, _function, functions=25)
)


_NODE_TEXTS = {tag: name for tag, (kind, name, _) in _node.table.items() if kind == _TEXT}


def parse_model(data: Any) -> Model:
    """A serialized ModelProto (bytes, or a mapped file) as plain objects; large contents are views of it.

    Raises:
        UnusualError: It is broken, or holds what no exporter writes.

    Example:
        >>> model = parse_model(bytes([0x08, 8, 0x12, 2]) + b"me")
        >>> model.ir_version, model.producer_name, model.HasField("graph")
        (8, 'me', False)
    """
    try:
        return _Reader(data).message(_model, 0, len(data), 0)
    except (IndexError, UnicodeDecodeError, error) as problem:
        raise UnusualError(str(problem)) from problem


class _Reader:
    def __init__(self, data: Any) -> None:
        self.data = data
        self.view = memoryview(data)
        self.known: dict[tuple[int, bytes], Message] = {}

    def message(self, layout: _Layout, at: int, end: int, depth: int) -> Any:
        """One message."""
        if depth > _MAX_DEPTH:
            raise UnusualError("nested too deep")
        start, data, table = at, self.data, layout.table
        fields: dict[str, Any] = {}
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = self.varint(at - 1)
            field = table.get(tag)
            if tag & 7 != 2:
                at = self.scalar(tag, field, fields, at, end)
                continue
            length = data[at]
            at += 1
            if length > 127:
                length, at = self.varint(at - 1)
            stop = at + length
            if stop > end:
                raise UnusualError("a field is longer than its message")
            if field is None:
                if tag < 8:
                    raise UnusualError("a field has number 0")
                at = stop
                continue
            kind, name, inner = field
            value = (
                str(data[at:stop], "utf-8")
                if kind <= _TEXTS
                else (self.node(at, stop, depth + 1) if inner is _node else self.message(inner, at, stop, depth + 1))
                if kind <= _PARTS
                else self.contents(kind, name, inner, fields, at, stop, depth)
            )
            if kind not in _LISTS:
                if kind == _PART and name in fields:
                    raise UnusualError("a message comes in two parts")
                fields[name] = value
            elif name in fields:
                fields[name].append(value)
            else:
                fields[name] = [value]
            at = stop
        return self.made(layout.type, fields, start, end)

    def node(self, at: int, end: int, depth: int) -> NodeMessage:
        """A node: what :meth:`message` gives for one, sooner, as most messages are nodes."""
        start, data = at, self.data
        inputs: list[str] = []
        outputs: list[str] = []
        fields: dict[str, Any] = {"input": inputs, "output": outputs, "attribute": []}
        while at < end:
            tag, length = data[at], data[at + 1]
            at += 2
            if length > 127:
                length, at = self.varint(at - 1)
            stop = at + length
            if stop > end:
                raise UnusualError("a field is longer than its message")
            if tag == 0x0A:
                inputs.append(str(data[at:stop], "utf-8"))
            elif tag == 0x12:
                outputs.append(str(data[at:stop], "utf-8"))
            elif tag in _NODE_TEXTS:
                fields[_NODE_TEXTS[tag]] = str(data[at:stop], "utf-8")
            elif tag == 0x2A:
                fields["attribute"].append(self.shared(_attribute, at, stop, depth))
            else:
                return self.message(_node, start, end, depth)
            at = stop
        out = NodeMessage.__new__(NodeMessage)
        out.__dict__ = fields
        return out

    def made(self, kind: type[Message], fields: dict[str, Any], start: int, end: int) -> Message:
        """A message of its fields."""
        out = kind.__new__(kind)
        if kind is TensorMessage:
            fields["span"] = self.view[start:end]
        elif kind is Sparse:
            fields.setdefault("values", TensorMessage())
            fields.setdefault("indices", TensorMessage())
        elif kind.oneof and len(fields) > 1 and sum(name in fields for name in kind.oneof) > 1:
            raise UnusualError("fields exclude each other")
        elif kind is Dimension and len(fields) > 1:
            raise UnusualError("a dimension is a number and a name")
        out.__dict__ = fields
        return out

    def contents(self, kind: int, name: str, inner: Any, fields: dict[str, Any], at: int, stop: int, depth: int) -> Any:
        """The value of a field that has a length, of the less frequent kinds."""
        if kind in (_SHARED, _SHARED_PARTS):
            return self.shared(inner, at, stop, depth)
        if kind in (_BYTES, _BYTES_LIST):
            return bytes(self.data[at:stop])
        if kind == _VIEW:
            return self.view[at:stop] if stop - at >= MIN_VIEW else bytes(self.data[at:stop])
        if kind == _REFUSED or (kind != _PACKED_INTS and kind != _PACKED_FLOATS and name in fields):
            raise UnusualError("numbers in a form that is not usual")
        if kind == _PACKED:
            return self.view[at:stop]
        before = fields.get(name, [])
        if kind == _PACKED_FLOATS:
            return before + np.frombuffer(self.packed_floats(at, stop), "<f4").tolist()
        return before + unpack_varints(self.view[at:stop]).tolist()

    def packed_floats(self, at: int, stop: int) -> memoryview:
        """Contents of a packed field of floats."""
        if (stop - at) % 4:
            raise UnusualError("packed numbers end within one")
        return self.view[at:stop]

    def shared(self, layout: _Layout, at: int, stop: int, depth: int) -> Any:
        """A message that often comes again: small ones with equal bytes are one object."""
        if stop - at > _MAX_MEMO:
            return self.message(layout, at, stop, depth + 1)
        key = id(layout), bytes(self.data[at:stop])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.message(layout, at, stop, depth + 1)
        return found

    def scalar(self, tag: int, field: Any, fields: dict[str, Any], at: int, end: int) -> int:
        """Read a field that has no length; where the next one begins."""
        wire = tag & 7
        if wire == 0:
            value, stop = self.varint(at)
        elif wire in (1, 5):
            value, stop = 0, at + (8 if wire == 1 else 4)
        else:
            raise UnusualError("groups")
        if stop > end or tag < 8:
            raise UnusualError("a field reaches beyond its message, or has number 0")
        if field is None:
            return stop
        kind, name, _ = field
        if kind == _REFUSED:
            raise UnusualError("numbers in a form that is not usual")
        if kind in (_FLOAT, _FLOATS):
            value = _float.unpack_from(self.view, at)[0]
        elif kind == _ENUM and value >= _INT32:
            raise UnusualError("an absurd number")
        elif value >= _INT64:
            value -= 1 << 64
        if kind in (_INTS, _FLOATS):
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
        return stop

    def varint(self, at: int) -> tuple[int, int]:
        """A number of up to ten bytes, and where it ends."""
        data, result, shift = self.data, 0, 0
        while shift < 70:
            byte = data[at]
            at += 1
            result |= (byte & 127) << shift
            if byte < 128:
                if result >> 64:
                    raise UnusualError("a number of more than 64 bits")
                return result, at
            shift += 7
        raise UnusualError("a number without end")


def unpack_varints(packed: Any) -> np.ndarray[Any, Any]:
    """Packed numbers as int64.

    Example:
        >>> unpack_varints(bytes([3, 0x96, 0x01] + [0xFF] * 9 + [1])).tolist()
        [3, 150, -1]
    """
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(ends) == len(data):
        return data.astype(np.int64)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise UnusualError("packed numbers end within one")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise UnusualError("a number without end")
    place = np.arange(len(data)) - np.repeat(starts, lengths)
    parts = (data & 127).astype(np.uint64) << (place * 7).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)
