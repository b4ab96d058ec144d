"""Open Inference Protocol over HTTP: JSON with binary tensors behind it.

Clients send the same shapes again and again: the JSON before binary tensors, theirs and ours, is read and written once
and remembered by its text (memoisation).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from pyflame_rt.graph.records import dataclass
from pyflame_rt.serving.requests import as_dict, parse_json, request_id
from pyflame_rt.serving.tensors import (
    decode_list,
    decode_raw,
    encode_list,
    encode_raw,
    kind_of,
    refuse,
    shape_of,
    shown,
    v2_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import DType
    from pyflame_rt.serving.service import Answer
    from pyflame_rt.serving.shared_memory import SharedMemory

__all__ = ["JSON_LENGTH", "AskedV2", "Head", "WantedOutput", "encode_v2", "read_v2"]

JSON_LENGTH = b"inference-header-content-length"
REMEMBERED, MAX_REMEMBERED = 256, 2048  # texts, and bytes of each
_REFUSED = ("sequence_id", "priority")  # other than 0


class _Given(NamedTuple):
    """A tensor as the JSON announces it; its values are in it, behind it or in shared memory."""

    name: str
    kind: DType | None
    shape: tuple[int, ...]
    size: int = -1  # bytes behind the JSON
    data: list[Any] | None = None
    place: tuple[str, int, int] | None = None


@dataclass(slots=True)
class WantedOutput:
    """How an output is to be answered: as JSON, as bytes, or into shared memory."""

    name: str
    binary: bool = False
    region: str = ""
    offset: int = 0
    size: int = 0


class Head(NamedTuple):
    """What the JSON of a request says; shared between requests, so never changed.

    Attributes:
        tensors: the inputs.
        outputs: how to answer; empty for all, alike.
        names: outputs to compute; None for all.
        request_id: what the client calls it.
        binary: whether outputs are to come as bytes.
        timeout_ms: time it may take, where it says so.
    """

    tensors: tuple[_Given, ...]
    outputs: tuple[WantedOutput, ...]
    names: list[str] | None
    request_id: str
    binary: bool
    timeout_ms: float | None


class AskedV2(NamedTuple):
    """A request that was understood."""

    head: Head
    inputs: dict[str, Any]
    shared: int  # bytes of shared memory, to be released


def read_v2(
    body: bytes | bytearray | memoryview, json_length: bytes | None, kinds: Mapping[str, DType], memory: SharedMemory
) -> AskedV2:
    """The tensors of a request."""
    view = memoryview(body)
    if json_length is None:
        head, rest = _parsed(view), view[:0]
    else:
        split = _length(json_length, len(view))
        head = _remembered(bytes(view[:split])) if split <= MAX_REMEMBERED else _parsed(view[:split])
        rest = view[split:]
    found: dict[str, Any] = {}
    at = shared = 0
    try:
        for given in head.tensors:
            where = f"input {given.name!r}"
            kind = given.kind or kinds.get(given.name)
            if kind is None:
                raise refuse(f"{where}: datatype is missing")
            if given.data is not None:
                found[given.name] = decode_list(given.data, kind, given.shape, where)
                continue
            if given.place is not None:
                data = memory.read(*given.place, shared)
                shared += len(data)
            else:
                data, at = rest[at : at + given.size], at + given.size
                if at > len(rest):
                    raise refuse(f"{where}: binary_data_size is {given.size}, {len(data)} bytes came")
            found[given.name] = decode_raw(data, kind, given.shape, where)
        if at != len(rest):
            raise refuse(f"{len(rest) - at} bytes after the last tensor")
    except BaseException:
        memory.release(shared)
        raise
    return AskedV2(head, found, shared)


def _length(text: bytes, limit: int) -> int:
    if not text.isdigit() or len(text) > 18 or int(text) > limit:
        given = shown(text.decode("latin-1"))
        raise refuse(f"Inference-Header-Content-Length must be at most the {limit} bytes of the body, got {given}")
    return int(text)


# ---------------------------------------------------------------------- what the JSON says


@lru_cache(REMEMBERED)
def _remembered(text: bytes) -> Head:
    return _parsed(text)


def _parsed(text: bytes | memoryview) -> Head:
    asked = as_dict(parse_json(text), "the body")
    parameters = _parameters(asked, "the request")
    for name in _REFUSED:
        if parameters.get(name) not in (None, 0, ""):
            raise refuse(f"parameter {name!r} is not supported: requests are independent, and served in turn")
    timeout = parameters.get("timeout")
    if timeout is not None and (not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 0):
        raise refuse(f"parameter 'timeout' must be microseconds, got {shown(timeout)}")
    outputs = _outputs(asked.get("outputs"))
    return Head(
        _tensors(asked.get("inputs")),
        outputs,
        [output.name for output in outputs] or None,
        request_id(asked),
        parameters.get("binary_data_output") is True,
        timeout / 1e3 if timeout else None,
    )


def _parameters(fields: dict[str, Any], where: str) -> dict[str, Any]:
    found = fields.get("parameters")
    return {} if found is None else as_dict(found, f"parameters of {where}")


def _tensors(given: Any) -> tuple[_Given, ...]:
    if not isinstance(given, list) or not given:
        raise refuse('the body must have "inputs": a list of tensors')
    found: dict[str, _Given] = {}
    for item in given:
        fields = as_dict(item, 'an element of "inputs"')
        name = fields.get("name")
        if not isinstance(name, str) or name in found:
            raise refuse(f'an element of "inputs" has no name, or one that came before: {shown(name)}')
        found[name] = _tensor(name, fields)
    return tuple(found.values())


def _tensor(name: str, fields: dict[str, Any]) -> _Given:
    where = f"input {name!r}"
    kind = kind_of(fields["datatype"], where) if "datatype" in fields else None
    sizes = shape_of(fields.get("shape"), where)
    parameters = _parameters(fields, where)
    if "shared_memory_region" in parameters:
        return _Given(name, kind, sizes, place=_place(parameters, where))
    if "binary_data_size" in parameters:
        return _Given(name, kind, sizes, _size(parameters["binary_data_size"], where))
    if isinstance(fields.get("data"), list):
        return _Given(name, kind, sizes, data=fields["data"])
    raise refuse(f"{where}: data must be a list, or follow the JSON as bytes (binary_data_size)")


def _size(given: Any, where: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise refuse(f"{where}: binary_data_size must be a number of bytes, got {shown(given)}")
    return given


def _place(parameters: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    region, offset = parameters.get("shared_memory_region"), parameters.get("shared_memory_offset", 0)
    size = parameters.get("shared_memory_byte_size")
    whole = isinstance(offset, int) and isinstance(size, int) and offset >= 0 and size >= 0
    if not isinstance(region, str) or not whole:
        raise refuse(f"{where}: shared memory needs a region, a byte size and an offset from 0 on")
    return region, offset, size  # type: ignore[return-value] - looked at above


def _outputs(given: Any) -> tuple[WantedOutput, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise refuse(f'"outputs" must be a list, got {shown(given)}')
    found = []
    for item in given:
        fields = as_dict(item, 'an element of "outputs"')
        name = fields.get("name")
        if not isinstance(name, str):
            raise refuse(f'an element of "outputs" has no name: {shown(item)}')
        parameters = _parameters(fields, f"output {name!r}")
        if parameters.get("classification"):
            raise refuse(f"output {name!r}: classification is not supported; ask for the scores")
        place = _place(parameters, f"output {name!r}") if "shared_memory_region" in parameters else ("", 0, 0)
        found.append(WantedOutput(name, parameters.get("binary_data") is True, *place))
    return tuple(found)


# ---------------------------------------------------------------------- answers


def encode_v2(head: Head, answer: Answer, memory: SharedMemory) -> tuple[bytes, int | None]:
    """The answer, and the length of its JSON where bytes follow."""
    if head.binary and not head.outputs:
        tails = [encode_raw(array) for array in answer.outputs.values()]
        facts = tuple(
            [
                (name, answer.kinds[name], array.shape, len(tail))
                for (name, array), tail in zip(answer.outputs.items(), tails, strict=True)
            ]
        )
        text = _binary_head(answer.name, answer.version, head.request_id, facts)
        return b"".join((text, *tails)), len(text)
    wanted = head.outputs or [WantedOutput(name) for name in answer.outputs]
    tensors, tails = [], []
    for output in wanted:
        shown_, tail = _answered(output, head.binary, answer, memory)
        tensors.append(shown_)
        tails += tail
    text = _json(answer.name, answer.version, head.request_id, tensors)
    return (b"".join((text, *tails)), len(text)) if tails else (text, None)


@lru_cache(REMEMBERED)
def _binary_head(
    name: str, version: str, number: str, facts: tuple[tuple[str, DType, tuple[int, ...], int], ...]
) -> bytes:
    tensors = [
        {"name": n, "datatype": v2_name(kind), "shape": shape, "parameters": {"binary_data_size": size}}
        for n, kind, shape, size in facts
    ]
    return _json(name, version, number, tensors)


def _json(name: str, version: str, number: str, tensors: list[dict[str, Any]]) -> bytes:
    head: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": tensors}
    if number:
        head["id"] = number
    return orjson.dumps(head)


def _answered(
    output: WantedOutput, binary: bool, answer: Answer, memory: SharedMemory
) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """The JSON of an output, and its bytes where these follow."""
    array, kind = answer.outputs[output.name], answer.kinds[output.name]
    found: dict[str, Any] = {"name": output.name, "datatype": v2_name(kind), "shape": array.shape}
    if output.region:
        size = memory.write(output.region, output.offset, output.size, encode_raw(array))
        found["parameters"] = {
            "shared_memory_region": output.region,
            "shared_memory_offset": output.offset,
            "shared_memory_byte_size": size,
        }
        return found, []
    if output.binary or binary:
        tail = encode_raw(array)
        found["parameters"] = {"binary_data_size": len(tail)}
        return found, [tail]
    found["data"], lost = encode_list(array, flat=True)
    if lost:
        found["parameters"] = {"non_finite": lost}
    return found, []
