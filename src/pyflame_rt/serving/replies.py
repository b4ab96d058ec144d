"""What clients send and get, and how both look on the wire."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import orjson

from pyflame_rt.arrays import host_array
from pyflame_rt.graph import DType, Tensor
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.serving.errors import RequestError, ServerError
from pyflame_rt.serving.tensors import (
    decode_base64,
    decode_list,
    decode_raw,
    encode_base64,
    encode_raw,
    kind_of,
    shape_of,
    v2_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["InferenceRequest", "InferenceResponse", "ModelInfo", "ModelMetadata", "TensorMetadata"]


@dataclass(slots=True)
class InferenceRequest:
    """What to ask a model.

    Attributes:
        model: its name.
        inputs: arrays by name.
        outputs: names to answer with; None for all.
        version: of the model; "" for the one the server chooses.
        request_id: comes back with the answer.

    Example:
        >>> InferenceRequest("m", {"x": [1.0]}).version
        ''
    """

    model: str
    inputs: Mapping[str, Any]
    outputs: Sequence[str] | None = None
    version: str = ""
    request_id: str = ""


@dataclass(slots=True)
class InferenceResponse:
    """What a model answered.

    Attributes:
        success: whether there are outputs.
        outputs: arrays by name.
        model_name: who answered.
        model_version: in which version.
        request_id: of the question.
        latency_us: of the server, in microseconds; 0 where arrays came as bytes.
        queue_time_us: of these, waiting for a run.
        error_code: why there are no outputs.
        error_message: the same, in words.
    """

    success: bool = True
    outputs: dict[str, Any] = field(default_factory=dict)
    model_name: str = ""
    model_version: str = ""
    request_id: str = ""
    latency_us: float = 0.0
    queue_time_us: float = 0.0
    error_code: str = "OK"
    error_message: str = ""

    @property
    def latency_ms(self) -> float:
        """Of the server, in milliseconds."""
        return self.latency_us / 1e3


@dataclass(slots=True)
class TensorMetadata:
    """An input or output of a model; sizes that vary are -1."""

    name: str
    dtype: str
    shape: list[int]


@dataclass(slots=True)
class ModelInfo:
    """A model in the list of a server."""

    name: str
    ready: bool
    versions: list[str]


@dataclass(slots=True)
class ModelMetadata:
    """What a model takes and gives."""

    name: str
    version: str
    versions: list[str]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    ready: bool = True


def encode_request(request: InferenceRequest) -> tuple[str, bytes]:
    """The path and the body of a request."""
    inputs = {name: _tensor(value) for name, value in request.inputs.items()}
    body: dict[str, Any] = {"inputs": inputs}
    if request.request_id:
        body["request_id"] = request.request_id
    if request.outputs is not None:
        body["outputs"] = list(request.outputs)
    return model_path(request.model, request.version) + "/infer", orjson.dumps(body)


def encode_binary(request: InferenceRequest) -> tuple[str, bytes, int]:
    """The path and the body of a request with its tensors as bytes, and the length of the JSON before these."""
    tails: list[bytes | memoryview] = []
    inputs: list[dict[str, Any]] = []
    for name, value in request.inputs.items():
        array = _given(value)
        kind = DType.String if array.dtype.kind == "O" else DType.of(array.dtype)
        tails.append(encode_raw(array))
        size = {"binary_data_size": len(tails[-1])}
        inputs.append({"name": name, "shape": list(array.shape), "datatype": v2_name(kind), "parameters": size})
    head: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    if request.request_id:
        head["id"] = request.request_id
    if request.outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
    text = orjson.dumps(head)
    return model_path(request.model, request.version, "/v2") + "/infer", b"".join((text, *tails)), len(text)


def encode_text(
    model: str, prompt: str | Sequence[Mapping[str, str]], settings: Mapping[str, Any]
) -> tuple[str, bytes]:
    """The path and the body of a request for text that comes as events."""
    own = {"model", "prompt", "messages", "stream"}.intersection(settings)
    if own or settings.get("n", 1) != 1:
        raise InputError(f"a stream has one answer: {', '.join(sorted(own)) or 'n'} is no setting of it")
    asked = {"prompt": prompt} if isinstance(prompt, str) else {"messages": [dict(message) for message in prompt]}
    path = "/v1/completions" if isinstance(prompt, str) else "/v1/chat/completions"
    return path, orjson.dumps({"model": model, **asked, **settings, "stream": True})


def decode_event(line: str) -> str | None:
    """The text of a line of events; None for the end of them.

    Raises:
        ServerError: The server failed on the way.

    Example:
        >>> decode_event('data: {"choices": [{"text": "Ember"}]}'), decode_event("data: [DONE]")
        ('Ember', None)
    """
    if not line.startswith("data: "):
        return ""
    data = line.removeprefix("data: ")
    if data == "[DONE]":
        return None
    found = parse(200, data.encode())
    error = found.get("error")
    if error is not None:
        facts = error if isinstance(error, dict) else {"message": str(error)}
        raise ServerError(int(facts.get("code") or 500), str(facts.get("message", "no reason given")))
    choices = found.get("choices") or [{}]
    return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""


def model_path(model: str, version: str = "", base: str = "/v1") -> str:
    """Where a model is; a name with other signs than those of names is still one segment."""
    return f"{base}/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _given(value: Any) -> np.ndarray[Any, Any]:
    """The array of an input: of a tensor, an array or lists."""
    array = value.raw() if isinstance(value, Tensor) else host_array(value)
    array = np.asarray(value if array is None else array)
    return array.astype(object) if array.dtype.kind in "US" else array


def _tensor(value: Any) -> dict[str, Any]:
    array = _given(value)
    if array.dtype.kind == "O":
        return {"shape": list(array.shape), "dtype": "string", "data": array.reshape(-1).tolist()}
    return {"shape": list(array.shape), "dtype": DType.of(array.dtype).label, "data": encode_base64(array)}


def decode_response(status: int, body: bytes) -> InferenceResponse:
    """The answer of a model, also that it has none.

    Raises:
        ServerError: The server gave no answer of a model.
    """
    found = parse(status, body)
    if status != 200:
        return _refused(status, found)
    try:
        outputs = {name: _array(value, name) for name, value in found["outputs"].items()}
    except (KeyError, TypeError, AttributeError, RequestError) as error:
        raise ServerError(status, f"the answer is not understood: {error}") from error
    return InferenceResponse(
        True,
        outputs,
        str(found.get("model_name", "")),
        str(found.get("model_version", "")),
        str(found.get("request_id", "")),
        float(found.get("latency_us", 0)),
        float(found.get("queue_time_us", 0)),
    )


def decode_binary(status: int, body: bytes, json_length: str | None) -> InferenceResponse:
    """The answer of a model whose outputs are bytes behind its JSON.

    Raises:
        ServerError: The server gave no answer of a model.
    """
    split = len(body) if json_length is None or not json_length.isdecimal() else int(json_length)
    found = parse(status, body[:split])
    if status != 200:
        return _refused(status, found)
    outputs: dict[str, Any] = {}
    view = memoryview(body)[split:]
    try:
        for tensor in found["outputs"]:
            name, size = tensor["name"], tensor["parameters"]["binary_data_size"]
            kind, shape = kind_of(tensor["datatype"], name), shape_of(tensor["shape"], name)
            outputs[name], view = decode_raw(view[:size], kind, shape, name), view[size:]
    except (KeyError, TypeError, AttributeError, RequestError) as error:
        raise ServerError(status, f"the answer is not understood: {error}") from error
    name, version, number = (str(found.get(key, "")) for key in ("model_name", "model_version", "id"))
    return InferenceResponse(True, outputs, name, version, number)


def _refused(status: int, found: dict[str, Any]) -> InferenceResponse:
    """Why a model gave no answer."""
    code = str(found.get("error_code", ""))
    if code not in ("InvalidRequest", "InferenceError", "Timeout"):
        raise ServerError(status, str(found.get("error_message") or found.get("error") or "no reason given"))
    message = str(found.get("error_message", ""))
    return InferenceResponse(False, error_code=code, error_message=message, request_id=str(found.get("request_id", "")))


def _array(value: dict[str, Any], name: str) -> Any:
    kind, shape, data = kind_of(value["dtype"], name), tuple(value["shape"]), value["data"]
    if isinstance(data, str):
        return decode_base64(data, kind, shape, name)
    return decode_list(data, kind, shape, name)


def parse(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of an answer."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ServerError(status, "the answer is no JSON object: is it a model server?")
    return found


def checked(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of an answer that must be there."""
    found = parse(status, body)
    if status != 200:
        raise ServerError(status, str(found.get("error_message") or found.get("error") or "no reason given"))
    return found


def model_infos(found: dict[str, Any]) -> list[ModelInfo]:
    """The list of models."""
    return [ModelInfo(m["name"], bool(m["ready"]), list(m["versions"])) for m in found["models"]]


def model_metadata(found: dict[str, Any]) -> ModelMetadata:
    """One model."""

    def tensors(key: str) -> list[TensorMetadata]:
        return [TensorMetadata(t["name"], t["dtype"], list(t["shape"])) for t in found[key]]

    return ModelMetadata(
        found["name"], found["version"], list(found["versions"]), tensors("inputs"), tensors("outputs"), found["ready"]
    )
