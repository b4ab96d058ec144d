"""Seeded damage: to bytes, to the fields of .pfm sections (checksums mended), to protobuf fields."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message

from pyflame_rt.format import dumps_model, loads_model
from pyflame_rt.graph import DType, Graph, Tensor, TensorInfo
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.ops.core.registry import all_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

NUMBERS = (0, 1, 2, 3, 7, 16, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, (1 << 62), (1 << 63) - 1)
SIGNED = (*NUMBERS, -1, -2, -3, -(1 << 31), -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
_HEAD = 8
_SECTION = struct.Struct("<IIQ")


def mutate_pfm(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A damaged .pfm file; mostly with checksums that fit again, so that the records are read."""
    version = struct.unpack_from("<I", data, 4)[0]
    if rng.random() < 0.35:
        return _edited_graph(rng, data, version)
    if version != 2 or rng.random() < 0.15:
        return _times(rng, data, corpus)
    sections = _sections(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        # Section 5 is the array data: less to find there.
        kind = rng.choice((1, 2, 3, 4, 4, 5, 6, 6, 6, 7))
        sections[kind] = _times(rng, sections[kind], [_sections(rng.choice(corpus))[kind]])
    return _joined(data[:_HEAD], sections)


def _edited_graph(rng: Random, data: bytes, version: int) -> bytes:
    """A well-formed file of a graph that makes no sense."""
    graph = loads_model(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(GRAPH_EDITS)(rng, graph)
    try:
        return dumps_model(graph, version=version)
    except (UnsupportedFormatError, struct.error):
        return data


def _edit_attribute(rng: Random, graph: Graph) -> None:
    nodes = [node for node in graph.nodes if node.attributes]
    if not nodes:
        return
    node = rng.choice(nodes)
    name = rng.choice(list(node.attributes))
    value = node.attributes[name]
    if isinstance(value, Graph):
        rng.choice(GRAPH_EDITS)(rng, value)
        return
    if isinstance(value, list) and value and rng.random() < 0.7:
        node.set_attr(name, [rng.choice(SIGNED) if rng.random() < 0.4 else v for v in value])
        return
    node.set_attr(name, rng.choice((rng.choice(SIGNED), rng.choice(FLOATS), "nearest", "", [], [1, 2], [-1.5], ["a"])))


def _edit_initializer(rng: Random, graph: Graph) -> None:
    names = [name for name, t in graph.initializers.items() if t.dtype is not DType.String]
    if not names:
        return
    name = rng.choice(names)
    array = graph.initializers[name].raw().copy()
    with np.errstate(all="ignore"):
        if array.size and rng.random() < 0.8:
            array.flat[rng.randrange(array.size)] = np.asarray(rng.choice(SIGNED)).astype(array.dtype)
        else:
            array = rng.choice((array.reshape(-1)[:0], array[None], array.reshape(-1), np.tile(array.ravel(), 3)))
    graph.initializers[name] = Tensor(array)


def _edit_info(rng: Random, graph: Graph) -> None:
    infos = [*graph.inputs, *graph.outputs]
    if not infos:
        return
    info = rng.choice(infos)
    dims = [rng.choice((0, 1, 2, 5, 1 << 20, 99_999_999)) for _ in range(rng.choice((0, 1, 2, 3, 4, 9)))]
    replacement = TensorInfo(info.name, dims, rng.choice(list(DType)[:10]))
    for listed in (graph.inputs, graph.outputs):
        listed[:] = [replacement if i is info else i for i in listed]


def _edit_node(rng: Random, graph: Graph) -> None:
    if not graph.nodes:
        return
    at = rng.randrange(len(graph.nodes))
    node = graph.nodes[at]
    names = [*graph.initializers, *(i.name for i in graph.inputs), *(o for n in graph.nodes for o in n.outputs), ""]
    inputs, outputs = list(node.inputs), list(node.outputs)
    match rng.randrange(5):
        case 0 if inputs:
            inputs[rng.randrange(len(inputs))] = rng.choice(names)
        case 1 if inputs:
            inputs.pop(rng.randrange(len(inputs)))
        case 2:
            inputs.append(rng.choice(names))
        case 3:
            outputs.append(rng.choice([f"new{len(names)}", *names]))
        case _:
            others = [n.op_type for n in graph.nodes] + OPERATORS
            graph.nodes[at] = node.replace(
                op_type=rng.choice(others), attributes=node.attributes if rng.random() < 0.5 else {}
            )
            return
    graph.nodes[at] = node.replace(inputs=inputs, outputs=outputs)


OPERATORS = [op.name for op in all_ops() if not op.domain]
GRAPH_EDITS: tuple[Callable[[Random, Graph], None], ...] = (
    _edit_attribute,
    _edit_initializer,
    _edit_info,
    _edit_node,
    _edit_node,
)


def _sections(data: bytes) -> dict[int, bytes]:
    at, found = _HEAD, {}
    while at < len(data):
        kind, _, length = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        found[kind] = data[at : at + length]
        at += length
    return found


def _joined(head: bytes, sections: dict[int, bytes]) -> bytes:
    parts = [head]
    for kind, payload in sections.items():
        parts += [_SECTION.pack(kind, zlib.crc32(payload), len(payload)), payload]
    return b"".join(parts)


def mutate_onnx(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A damaged ONNX file: bytes, or the value of some field."""
    if rng.random() < 0.35:
        return _times(rng, data, corpus)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return _times(rng, data, corpus)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change_field(rng, model)
    return model.SerializeToString()


# ---------------------------------------------------------------------- bytes


def _times(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(BYTE_EDITS)(rng, data, corpus) if data else rng.randbytes(8)
    return data


def _flip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _byte_run(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, count = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 32))
    run = rng.choice((b"\0" * count, b"\xff" * count, rng.randbytes(count)))
    return data[:at] + run + data[at + count :]


def _truncate(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data))]


def _delete(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 4, 8, 40)) :]


def _repeat(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, count = rng.randrange(len(data)), rng.choice((1, 8, 64, 256))
    return data[:at] + data[at : at + count] * rng.choice((2, 3, 20)) + data[at + count :]


def _splice(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus) or data
    a, b = rng.randrange(len(data)), rng.randrange(len(other))
    return data[:a] + other[b : b + rng.choice((8, 64, len(other)))] + data[a + rng.choice((0, 8, 64)) :]


def _number(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Lengths, counts and dims are eight bytes, small and so mostly zeros: change one of those."""
    places = [i for i in range(len(data) - 7) if data[i + 2 : i + 8] == b"\0" * 6 and (i < 1 or data[i] or data[i + 1])]
    if not places:
        return data
    at = rng.choice(places)
    old = struct.unpack_from("<q", data, at)[0]
    new = rng.choice((*SIGNED, old + 1, old - 1, old * 2, old * 1000))
    return data[:at] + struct.pack("<q", max(min(new, (1 << 63) - 1), -(1 << 63))) + data[at + 8 :]


BYTE_EDITS: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip, _flip, _byte_run, _truncate, _delete, _repeat, _splice, _number, _number, _number, _number,
)  # fmt: skip


# ---------------------------------------------------------------------- protobuf


def _change_field(rng: Random, model: Message) -> None:
    message = model
    while True:
        inner = [(f, v) for f, v in message.ListFields() if f.type == f.TYPE_MESSAGE]
        if not inner or rng.random() < 0.15:
            break
        field, value = rng.choice(inner)
        message = rng.choice(value) if field.is_repeated and len(value) else value
        if field.is_repeated and (not len(value) or rng.random() < 0.1):
            break
    if not hasattr(message, "DESCRIPTOR"):
        return
    _change_message(rng, message)


def _change_message(rng: Random, message: Any) -> None:
    fields = list(message.DESCRIPTOR.fields) if rng.random() < 0.25 else [f for f, _ in message.ListFields()]
    if not fields:
        return
    field = rng.choice(fields)
    if rng.random() < 0.1:
        message.ClearField(field.name)
        return
    if field.is_repeated:
        _change_list(rng, field, getattr(message, field.name))
    elif field.type != field.TYPE_MESSAGE:
        setattr(message, field.name, _value(rng, field, getattr(message, field.name)))


def _change_list(rng: Random, field: Any, values: Any) -> None:
    kind = rng.randrange(4)
    if len(values) and kind == 0:
        del values[rng.randrange(len(values))]
    elif len(values) and kind == 1:
        values.extend([values[rng.randrange(len(values))]] * rng.choice((1, 2, 30)))
    elif field.type == field.TYPE_MESSAGE:
        values.add()
    elif len(values) and kind == 2:
        at = rng.randrange(len(values))
        values[at] = _value(rng, field, values[at])
    else:
        values.append(_value(rng, field, None))


def _value(rng: Random, field: Any, old: Any) -> Any:
    if field.type == field.TYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_STRING:
        return rng.choice(("", "x", "y", "Relu", "Loop", "Reshape", "pyflame", "N*N", "-1", "é", (old or "a") * 2))
    if field.type == field.TYPE_BYTES:
        data = old or b"\0" * 8
        return rng.choice((b"", b"nearest", b"\xff\xfe", data + data, data[:-1], rng.randbytes(len(data))))
    if field.type in (field.TYPE_INT32, field.TYPE_UINT32):
        return rng.choice([n for n in NUMBERS if n < 1 << 31] + list(range(30)))
    if field.type == field.TYPE_UINT64:
        return rng.choice(NUMBERS)
    return rng.choice((*SIGNED, *range(-2, 10)))
