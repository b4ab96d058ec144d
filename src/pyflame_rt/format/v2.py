r"""Version 2 of .pfm: the sections of version 1, each with a checksum, and everything a graph can hold.

    magic "PFM\0" | u32 version | section ...
    section: u32 kind | u32 crc32 of the payload | u64 payload bytes | payload

Kinds, in this order: 1 name (with opsets, metadata and doc), 2 inputs, 3 outputs, 4 initializers,
5 data, 6 nodes, 7 types. The data section starts with padding to a multiple of 64 bytes in the
file, and so does every array in it, so that a mapped file can be used as it lies.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from pyflame_rt.format.arrays import array_bytes
from pyflame_rt.format.cursor import Cursor, Sink
from pyflame_rt.format.limits import MAX_ITEMS
from pyflame_rt.format.records import RecordReader, RecordWriter
from pyflame_rt.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_v2", "write_v2"]

NAME, INPUTS, OUTPUTS, INITIALIZERS, DATA, NODES, TYPES = range(1, 8)
ORDER = (NAME, INPUTS, OUTPUTS, INITIALIZERS, DATA, NODES, TYPES)
_LABELS = dict(zip(ORDER, ("name", "inputs", "outputs", "initializers", "data", "nodes", "types"), strict=True))
_HEADER = 8
_SECTION = 16
ALIGN = 64


def read_v2(cursor: Cursor, *, check_data: bool) -> Graph:
    """A graph from the sections after magic and version."""
    sections = {kind: _section(cursor, kind, check_data) for kind in ORDER}
    cursor.done()
    data = sections[DATA]
    reader = RecordReader(data.data[data.at : data.end])
    graph = Graph()
    _read_name(sections[NAME], graph)
    graph.inputs = reader.infos(sections[INPUTS])
    graph.outputs = reader.infos(sections[OUTPUTS])
    graph.initializers = reader.initializers(sections[INITIALIZERS])
    graph.nodes = reader.nodes(sections[NODES], 0)
    graph.types = reader.types(sections[TYPES])
    for kind in ORDER:
        if kind != DATA:
            sections[kind].done()
    return graph


def _section(cursor: Cursor, kind: int, check_data: bool) -> Cursor:
    label = _LABELS[kind]
    found = cursor.u32(f"kind of section {label}")
    if found != kind:
        raise cursor.fail(f"section {label} is expected here, found kind {found}")
    checksum, length = cursor.u32(f"checksum of {label}"), cursor.u64(f"size of {label}")
    start = cursor.at
    payload = cursor.take(length, f"section {label}")
    if (kind != DATA or check_data) and zlib.crc32(payload) != checksum:
        raise cursor.fail(f"section {label} is damaged: its checksum does not match")
    padding = -start % ALIGN if kind == DATA else 0
    if padding > length:
        raise cursor.fail(f"section {label} is too short for its padding")
    return Cursor(cursor.data, start + padding, start + length, f"section {label}")


def _read_name(cursor: Cursor, graph: Graph) -> None:
    graph.name = cursor.string("graph name")
    graph.doc = cursor.string("description")
    for _ in range(cursor.count("opsets", MAX_ITEMS, 16)):
        domain = cursor.string("domain")
        graph.opsets[domain] = cursor.i64("opset version")
    for _ in range(cursor.count("metadata entries", MAX_ITEMS, 16)):
        key = cursor.string("metadata key")
        graph.metadata[key] = cursor.string("metadata value")


def write_v2(graph: Graph) -> Iterator[Any]:
    """The pieces of a version 2 file after magic and version, data last computed and streamed."""
    writer = RecordWriter()
    payloads = {
        NAME: _name_payload(graph),
        INPUTS: writer.infos(graph.inputs),
        OUTPUTS: writer.infos(graph.outputs),
        INITIALIZERS: writer.initializers(graph.initializers),
        NODES: writer.nodes(graph.nodes, 0),
        TYPES: writer.types(graph.types),
    }
    at = _HEADER
    for kind in ORDER:
        if kind == DATA:
            padding = b"\0" * (-(at + _SECTION) % ALIGN)
            yield from _data_section(writer, padding)
            at += _SECTION + len(padding) + writer.data_size
        else:
            payload = payloads[kind]
            yield _head(kind, zlib.crc32(payload), len(payload))
            yield payload
            at += _SECTION + len(payload)


def _head(kind: int, checksum: int, length: int) -> bytes:
    sink = Sink()
    sink.pack("IIQ", kind, checksum, length)
    return sink.bytes()


def _data_section(writer: RecordWriter, padding: bytes) -> Iterator[Any]:
    checksum = zlib.crc32(padding)
    for piece in _data_pieces(writer):
        checksum = zlib.crc32(piece, checksum)
    yield _head(DATA, checksum, len(padding) + writer.data_size)
    yield padding
    yield from _data_pieces(writer)


def _data_pieces(writer: RecordWriter) -> Iterator[Any]:
    at = 0
    for offset, tensor in writer.stored:
        yield b"\0" * (offset - at)
        yield array_bytes(tensor)
        at = offset + tensor.size_bytes
    yield b"\0" * (writer.data_size - at)


def _name_payload(graph: Graph) -> bytes:
    sink = Sink()
    sink.string(graph.name)
    sink.string(graph.doc)
    sink.pack("Q", len(graph.opsets))
    for domain, version in graph.opsets.items():
        sink.string(domain)
        sink.pack("q", version)
    sink.pack("Q", len(graph.metadata))
    for key, value in graph.metadata.items():
        sink.string(key)
        sink.string(value)
    return sink.bytes()
