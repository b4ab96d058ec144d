"""Open Inference Protocol over HTTP: JSON with binary tensors behind it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

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

__all__ = ["AskedV2", "WantedOutput", "encode_v2", "read_v2"]

JSON_LENGTH = "inference-header-content-length"
_REFUSED = ("sequence_id", "priority")  # other than 0


@dataclass(slots=True)
class WantedOutput:
    """How an output is to be answered: as JSON, as bytes, or into shared memory."""

    name: str
    binary: bool = False
    region: str = ""
    offset: int = 0
    size: int = 0


@dataclass(slots=True)
class AskedV2:
    """A request that was understood."""

    inputs: dict[str, Any]
    outputs: list[WantedOutput] = field(default_factory=list)
    request_id: str = ""
    binary: bool = False
    timeout_ms: float | None = None

    def names(self) -> list[str] | None:
        """Outputs to compute; None for all."""
        return [output.name for output in self.outputs] or None


def read_v2(
    body: bytes | bytearray | memoryview, json_length: str | None, kinds: Mapping[str, DType], memory: SharedMemory
) -> AskedV2:
    """The tensors of a request."""
    view = memoryview(body)
    split = len(view) if json_length is None else _length(json_length, len(view))
    asked = as_dict(parse_json(view[:split]), "the body")
    parameters = _parameters(asked, "the request")
    for name in _REFUSED:
        if parameters.get(name) not in (None, 0, ""):
            raise refuse(f"parameter {name!r} is not supported: requests are independent, and served in turn")
    timeout = parameters.get("timeout")
    if timeout is not None and (not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 0):
        raise refuse(f"parameter 'timeout' must be microseconds, got {shown(timeout)}")
    return AskedV2(
        _inputs(asked.get("inputs"), view[split:], kinds, memory),
        _outputs(asked.get("outputs")),
        request_id(asked),
        parameters.get("binary_data_output") is True,
        timeout / 1e3 if timeout else None,
    )


def _length(text: str, limit: int) -> int:
    if not text.isdigit() or len(text) > 18 or int(text) > limit:
        raise refuse(f"Inference-Header-Content-Length must be at most the {limit} bytes of the body, got {text!r}")
    return int(text)


def _parameters(fields: dict[str, Any], where: str) -> dict[str, Any]:
    found = fields.get("parameters")
    return {} if found is None else as_dict(found, f"parameters of {where}")


def _inputs(given: Any, rest: memoryview, kinds: Mapping[str, DType], memory: SharedMemory) -> dict[str, Any]:
    if not isinstance(given, list) or not given:
        raise refuse('the body must have "inputs": a list of tensors')
    found: dict[str, Any] = {}
    at = 0
    for item in given:
        fields = as_dict(item, 'an element of "inputs"')
        name = fields.get("name")
        if not isinstance(name, str) or name in found:
            raise refuse(f'an element of "inputs" has no name, or one that came before: {shown(name)}')
        where = f"input {name!r}"
        kind = kind_of(fields["datatype"], where) if "datatype" in fields else kinds.get(name)
        if kind is None:
            raise refuse(f"{where}: datatype is missing")
        sizes = shape_of(fields.get("shape"), where)
        parameters = _parameters(fields, where)
        if "shared_memory_region" in parameters:
            found[name] = decode_raw(memory.read(*_place(parameters, where)), kind, sizes, where)
        elif "binary_data_size" in parameters:
            size = _size(parameters["binary_data_size"], where, len(rest) - at)
            found[name] = decode_raw(rest[at : at + size], kind, sizes, where)
            at += size
        elif isinstance(fields.get("data"), list):
            found[name] = decode_list(fields["data"], kind, sizes, where)
        else:
            raise refuse(f"{where}: data must be a list, or follow the JSON as bytes (binary_data_size)")
    if at != len(rest):
        raise refuse(f"{len(rest) - at} bytes after the last tensor")
    return found


def _size(given: Any, where: str, limit: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= limit:
        raise refuse(f"{where}: binary_data_size must be from 0 to the {limit} bytes that came, got {shown(given)}")
    return given


def _place(parameters: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    region, offset = parameters.get("shared_memory_region"), parameters.get("shared_memory_offset", 0)
    size = parameters.get("shared_memory_byte_size")
    whole = isinstance(offset, int) and isinstance(size, int) and offset >= 0 and size >= 0
    if not isinstance(region, str) or not whole:
        raise refuse(f"{where}: shared memory needs a region, a byte size and an offset from 0 on")
    return region, offset, size  # type: ignore[return-value] - looked at above


def _outputs(given: Any) -> list[WantedOutput]:
    if given is None:
        return []
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
    return found


def encode_v2(asked: AskedV2, answer: Answer, memory: SharedMemory) -> tuple[bytes, int | None]:
    """The answer, and the length of its JSON where bytes follow."""
    wanted = asked.outputs or [WantedOutput(name, asked.binary) for name in answer.outputs]
    tensors, tails = [], []
    for output in wanted:
        array, kind = answer.outputs[output.name], answer.kinds[output.name]
        shown_: dict[str, Any] = {"name": output.name, "datatype": v2_name(kind), "shape": list(array.shape)}
        if output.region:
            size = memory.write(output.region, output.offset, output.size, encode_raw(array))
            shown_["parameters"] = {
                "shared_memory_region": output.region,
                "shared_memory_offset": output.offset,
                "shared_memory_byte_size": size,
            }
        elif output.binary or asked.binary:
            tail = encode_raw(array)
            shown_["parameters"] = {"binary_data_size": len(tail)}
            tails.append(tail)
        else:
            shown_["data"], lost = encode_list(array, flat=True)
            if lost:
                shown_["parameters"] = {"non_finite": lost}
        tensors.append(shown_)
    head: dict[str, Any] = {"model_name": answer.name, "model_version": answer.version, "outputs": tensors}
    if asked.request_id:
        head["id"] = asked.request_id
    text = orjson.dumps(head)
    return (b"".join([text, *tails]), len(text)) if tails else (text, None)
