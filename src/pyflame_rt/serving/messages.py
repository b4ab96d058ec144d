"""Messages of the Open Inference Protocol for gRPC: descriptors built from one table (protobuf)."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["METHODS", "SERVICE", "message"]

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# name: fields as "number type name"; "*" repeats, "{}" is a map from strings, "|" is one of several.
_MODEL = ("1 string name", "2 string version")
_TENSOR = ("1 string name", "2 string datatype", "3 *int64 shape", "4 {}InferParameter parameters")
_CHANGE = ("1 string repository_name", "2 string model_name", "3 {}ModelRepositoryParameter parameters")
_MESSAGES: dict[str, tuple[str, ...]] = {
    "InferParameter": (
        *("1 |bool bool_param", "2 |int64 int64_param", "3 |string string_param"),
        *("4 |double double_param", "5 |uint64 uint64_param"),
    ),
    "ModelRepositoryParameter": (
        *("1 |bool bool_param", "2 |int64 int64_param", "3 |string string_param", "4 |bytes bytes_param"),
    ),
    "InferTensorContents": (
        *("1 *bool bool_contents", "2 *int32 int_contents", "3 *int64 int64_contents", "4 *uint32 uint_contents"),
        *("5 *uint64 uint64_contents", "6 *float fp32_contents", "7 *double fp64_contents", "8 *bytes bytes_contents"),
    ),
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 bool live",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 bool ready",),
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": ("1 bool ready",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("1 string name", "2 string version", "3 *string extensions"),
    "TensorMetadata": ("1 string name", "2 string datatype", "3 *int64 shape"),
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": (
        *("1 string name", "2 *string versions", "3 string platform"),
        *("4 *TensorMetadata inputs", "5 *TensorMetadata outputs"),
    ),
    "InferInputTensor": (*_TENSOR, "5 InferTensorContents contents"),
    "InferRequestedOutputTensor": ("1 string name", "2 {}InferParameter parameters"),
    "ModelInferRequest": (
        *("1 string model_name", "2 string model_version", "3 string id", "4 {}InferParameter parameters"),
        *("5 *InferInputTensor inputs", "6 *InferRequestedOutputTensor outputs", "7 *bytes raw_input_contents"),
    ),
    "InferOutputTensor": (*_TENSOR, "5 InferTensorContents contents"),
    "ModelInferResponse": (
        *("1 string model_name", "2 string model_version", "3 string id", "4 {}InferParameter parameters"),
        *("5 *InferOutputTensor outputs", "6 *bytes raw_output_contents"),
    ),
    "RepositoryIndexRequest": ("1 string repository_name", "2 bool ready"),
    "ModelIndex": ("1 string name", "2 string version", "3 string state", "4 string reason"),
    "RepositoryIndexResponse": ("1 *ModelIndex models",),
    "RepositoryModelLoadRequest": _CHANGE,
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": _CHANGE,
    "RepositoryModelUnloadResponse": (),
    "StatisticDuration": ("1 uint64 count", "2 uint64 ns"),
    "InferStatistics": (
        *("1 StatisticDuration success", "2 StatisticDuration fail", "3 StatisticDuration queue"),
        *("4 StatisticDuration compute_input", "5 StatisticDuration compute_infer"),
        "6 StatisticDuration compute_output",
    ),
    "ModelStatistics": (
        *("1 string name", "2 string version", "3 uint64 last_inference", "4 uint64 inference_count"),
        *("5 uint64 execution_count", "6 InferStatistics inference_stats"),
    ),
    "ModelStatisticsRequest": _MODEL,
    "ModelStatisticsResponse": ("1 *ModelStatistics model_stats",),
}
METHODS = tuple(name.removesuffix("Request") for name in _MESSAGES if name.endswith("Request"))

_Field = descriptor_pb2.FieldDescriptorProto


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    """A pool of our own: programs may have another copy of the protocol in the common one."""
    file = descriptor_pb2.FileDescriptorProto(name="pyflame_rt/inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for text in fields:
            _add_field(made, name, text)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(owner: Any, owner_name: str, text: str) -> None:
    number, kind, name = text.split()
    field = owner.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.startswith("{}"):
        entry = owner.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "1 string key")
        _add_field(entry, "", f"2 {kind[2:]} value")
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{owner_name}.{entry.name}"
        return
    if kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
    elif kind.startswith("|"):
        if not owner.oneof_decl:
            owner.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    bare = kind.lstrip("*|")
    if bare in _MESSAGES:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{bare}"
    else:
        field.type = getattr(_Field, f"TYPE_{bare.upper()}")


@cache
def message(name: str) -> Any:
    r"""The class of a message.

    Example:
        >>> message("ModelReadyRequest")(name="m").SerializeToString()
        b'\n\x01m'
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))
