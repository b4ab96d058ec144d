"""Requests of the REST interface: JSON to arrays, and answers in the style of the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pyflame_rt.graph.records import dataclass
from pyflame_rt.serving.tensors import (
    decode_base64,
    decode_list,
    encode_base64,
    encode_list,
    kind_of,
    refuse,
    shape_of,
    shown,
    v2_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pyflame_rt.graph import DType

__all__ = ["Asked", "as_dict", "encode_answer", "parse_json", "read_request"]

BASE64, LISTS, NAMED = (
    "base64",
    "lists",
    "named",
)  # styles: an object of tensors, the same with lists, a list of tensors


@dataclass(slots=True)
class Asked:
    """A request that was understood.

    Attributes:
        inputs: arrays by name.
        outputs: names to answer with; None for all.
        request_id: what the client calls it; "" for nothing.
        style: how tensors were written.
        timeout_ms: time it may take, where it says so.
    """

    inputs: dict[str, Any]
    outputs: list[str] | None
    request_id: str
    style: str
    timeout_ms: float | None = None


def parse_json(body: bytes | bytearray | memoryview) -> Any:
    """The JSON of a body."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise refuse(f"the body is not JSON: {error}") from None


def as_dict(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise refuse(f"{what} must be an object, got {shown(value)}")
    return value


def read_request(body: bytes | bytearray | memoryview, kinds: Mapping[str, DType]) -> Asked:
    """The tensors of a request.

    Args:
        body: as it came.
        kinds: element types of the model's inputs, for tensors that name none.
    """
    asked = as_dict(parse_json(body), "the body")
    given = asked.get("inputs")
    if isinstance(given, dict):
        style = BASE64
        inputs = {}
        for name, value in given.items():
            inputs[name], lists = _tensor(value, f"input {name!r}", kinds.get(name))
            style = LISTS if lists else style
    elif isinstance(given, list):
        style = NAMED
        inputs = named_tensors(given, kinds)
    else:
        raise refuse('the body must have "inputs": an object of tensors by name')
    if not inputs:
        raise refuse('"inputs" is empty')
    return Asked(inputs, output_names(asked.get("outputs")), request_id(asked), style, _timeout(asked))


def request_id(asked: dict[str, Any]) -> str:
    """What the client calls a request."""
    found = asked.get("request_id", asked.get("id", ""))
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > 512:
        raise refuse(f"request_id must be a string of at most 512 characters, got {shown(found)}")
    return found


def _timeout(asked: dict[str, Any]) -> float | None:
    found = asked.get("timeout_ms")
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e9:
        raise refuse(f"timeout_ms must be a positive number, got {shown(found)}")
    return float(found)


def output_names(given: Any) -> list[str] | None:
    """Names of outputs, also as objects with a name."""
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise refuse(f'"outputs" must be a list of names, got {shown(given)}')
    names: list[str] = []
    for item in given:
        name = item.get("name") if isinstance(item, dict) else item
        if not isinstance(name, str):
            raise refuse(f'"outputs" must be a list of names, got {shown(name)} in it')
        names.append(name)
    return names


def _tensor(value: Any, where: str, kind: DType | None) -> tuple[np.ndarray[Any, Any], bool]:
    """An array, and whether it was written as lists."""
    if isinstance(value, list):
        value = {"data": value}
    fields = as_dict(value, where)
    name = fields.get("dtype", fields.get("datatype"))
    if name is not None:
        kind = kind_of(name, where)
    if kind is None:
        raise refuse(f"{where}: dtype is missing")
    data, shape = fields.get("data"), fields.get("shape")
    sizes = None if shape is None else shape_of(shape, where)
    if isinstance(data, str):
        if sizes is None:
            raise refuse(f"{where}: shape is missing")
        return decode_base64(data, kind, sizes, where), False
    if isinstance(data, list):
        return decode_list(data, kind, sizes, where), True
    raise refuse(f"{where}: data must be base64 of the little-endian bytes, or a list of numbers, got {shown(data)}")


def named_tensors(given: list[Any], kinds: Mapping[str, DType]) -> dict[str, Any]:
    """Tensors that are objects with a name."""
    inputs: dict[str, Any] = {}
    for item in given:
        fields = as_dict(item, 'an element of "inputs"')
        name = fields.get("name")
        if not isinstance(name, str):
            raise refuse(f'an element of "inputs" has no name: {shown(item)}')
        if name in inputs:
            raise refuse(f"input {name!r} is given twice")
        inputs[name], _ = _tensor(fields, f"input {name!r}", kinds.get(name))
    return inputs


def encode_answer(style: str, head: dict[str, Any], outputs: Mapping[str, Any], kinds: Mapping[str, DType]) -> bytes:
    """An answer, with tensors in the given style."""
    if style == NAMED:
        tensors: Any = [{"name": name, **_named(array, kinds[name])} for name, array in outputs.items()]
    else:
        write = _as_base64 if style == BASE64 else _as_list
        tensors = {name: write(array, kinds[name]) for name, array in outputs.items()}
    return orjson.dumps({**head, "outputs": tensors})


def _as_base64(array: Any, kind: DType) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": kind.label, "data": encode_base64(array)}


def _as_list(array: Any, kind: DType) -> dict[str, Any]:
    data, lost = encode_list(array)
    found = {"shape": list(array.shape), "dtype": kind.label, "data": data}
    return {**found, "non_finite": lost} if lost else found


def _named(array: Any, kind: DType) -> dict[str, Any]:
    data, lost = encode_list(array, flat=True)
    found = {"shape": list(array.shape), "datatype": v2_name(kind), "data": data}
    return {**found, "parameters": {"non_finite": lost}} if lost else found
