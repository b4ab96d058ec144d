"""What a model file holds, as plain objects with the field names of ONNX's messages.

They stand in for the classes of the ``onnx`` package, whose import takes longer than reading most models:
fields that were not given have their protobuf defaults, ``HasField`` and ``WhichOneof`` answer as protobuf's do.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "Attribute",
    "Dimension",
    "ElementType",
    "Function",
    "Graph",
    "Info",
    "Message",
    "Model",
    "NodeMessage",
    "Pair",
    "ShapeMessage",
    "Sparse",
    "TensorMessage",
    "TensorTypeMessage",
    "TypeMessage",
]

_EMPTY: Any = ()


class Message:
    """Fields by name; those that were not given are the class's defaults, repeated ones empty tuples."""

    oneof: ClassVar[tuple[str, ...]] = ()

    def HasField(self, name: str) -> bool:
        """Whether a field was given."""
        return name in self.__dict__

    def WhichOneof(self, group: str) -> str | None:
        """Which of the fields that exclude each other was given; there is one such group in a message."""
        del group
        return next((name for name in self.oneof if name in self.__dict__), None)


class Pair(Message):
    """OperatorSetIdProto and StringStringEntryProto."""

    domain = key = value = ""
    version = 0


class NodeMessage(Message):
    """NodeProto."""

    name = op_type = domain = overload = ""
    input: Any = _EMPTY
    output: Any = _EMPTY
    attribute: Any = _EMPTY


class TensorMessage(Message):
    """TensorProto; ``span`` is all of it as it stands in the file."""

    name = ""
    data_type = data_location = 0
    dims: Any = _EMPTY
    raw_data: Any = b""
    string_data = external_data = _EMPTY
    span: Any = b""


class Sparse(Message):
    """SparseTensorProto."""

    dims: Any = _EMPTY

    def __init__(self) -> None:
        self.values = self.indices = TensorMessage()


class Dimension(Message):
    """TensorShapeProto.Dimension."""

    dim_value = 0
    dim_param = ""


class ShapeMessage(Message):
    """TensorShapeProto."""

    dim: Any = _EMPTY


class TypeMessage(Message):
    """TypeProto; equal ones in a file are one object, and ``made`` is what was made of it."""

    made: Any = None

    oneof = ("tensor_type", "sequence_type", "map_type", "optional_type", "sparse_tensor_type", "opaque_type")


class TensorTypeMessage(Message):
    """TypeProto.Tensor and TypeProto.SparseTensor."""

    elem_type = 0
    shape: Any = ShapeMessage()


class ElementType(Message):
    """TypeProto.Sequence, TypeProto.Optional and TypeProto.Map."""

    elem_type: Any = TypeMessage()
    key_type = 0
    value_type: Any = TypeMessage()


class Info(Message):
    """ValueInfoProto."""

    name = ""
    type: Any = TypeMessage()


class Graph(Message):
    """GraphProto."""

    name = doc_string = ""
    node = initializer = sparse_initializer = input = output = value_info = _EMPTY


class Attribute(Message):
    """AttributeProto."""

    name = ref_attr_name = ""
    type = i = 0
    f = 0.0
    s = b""
    floats = ints = strings = tensors = graphs = _EMPTY
    t: Any = TensorMessage()
    g: Any = Graph()
    tp: Any = TypeMessage()
    sparse_tensor: Any = Sparse()


class Function(Message):
    """FunctionProto."""

    name = domain = overload = ""
    input = output = attribute = attribute_proto = node = opset_import = _EMPTY


class Model(Message):
    """ModelProto."""

    ir_version = model_version = 0
    producer_name = producer_version = domain = doc_string = ""
    opset_import = metadata_props = functions = _EMPTY
    graph: Any = Graph()
