"""Open Inference Protocol over gRPC (grpcio): the same models, keys, rates and metrics as over HTTP."""

from __future__ import annotations

import hmac
import logging
import threading
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, MissingExtra, PyFlameRTError
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.guard import RateLimiter
from pyflame_rt.serving.messages import METHODS, SERVICE, message
from pyflame_rt.serving.tensors import decode_list, decode_raw, encode_raw, kind_of, refuse, shape_of, v2_name
from pyflame_rt.serving.v2_app import SERVER, model_metadata, model_statistics, repository_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.serving.config import ServerConfig
    from pyflame_rt.serving.service import InferenceService

__all__ = ["GRPCServer"]

log = logging.getLogger("pyflame_rt.serving")
THREADS = 32
_STATUS = {
    **dict.fromkeys((400, 413, 415), "INVALID_ARGUMENT"),
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPEN = ("ServerLive", "ServerReady")
# Where tensors are that come as numbers; FP16 and BF16 have none, and come as bytes.
_CONTENTS = {
    **dict.fromkeys((DType.Int8, DType.Int16, DType.Int32), "int_contents"),
    **dict.fromkeys((DType.UInt8, DType.UInt16, DType.UInt32), "uint_contents"),
    DType.Bool: "bool_contents",
    DType.Int64: "int64_contents",
    DType.UInt64: "uint64_contents",
    DType.Float32: "fp32_contents",
    DType.Float64: "fp64_contents",
    DType.String: "bytes_contents",
}


class GRPCServer:
    """Listens for gRPC beside HTTP.

    Args:
        service: answers.
        config: address, keys, rates and certificates.

    Raises:
        MissingExtra: grpcio is not installed.
        InputError: The address cannot be used.
    """

    def __init__(self, service: InferenceService, config: ServerConfig) -> None:
        try:
            import grpc
        except ModuleNotFoundError as error:
            raise MissingExtra("gRPC needs grpcio: pip install 'pyflame[serve]'") from error
        self._grpc: Any = grpc
        self._service, self._config, self._registry = service, config, service.registry
        self._keys = [key.encode() for key in config.api_keys]
        self._limiter = RateLimiter(config.rate_limit) if config.rate_limit.enabled else None
        self._lock = threading.Lock()
        limit = config.grpc.max_message_size
        options = [
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._threads = futures.ThreadPoolExecutor(THREADS, "pyflame-rt-grpc")
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=config.http.max_connections)
        handlers = {name: self._handler(name) for name in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.port = self._listen()

    def _listen(self) -> int:
        address = f"{self._config.grpc.host}:{self._config.grpc.port}"
        tls = self._config.tls
        try:
            if not tls.enabled:
                return self._server.add_insecure_port(address)
            pair = (Path(tls.key_path).read_bytes(), Path(tls.cert_path).read_bytes())
            authority = Path(tls.ca_path).read_bytes() if tls.ca_path else None
            return self._server.add_secure_port(
                address, self._grpc.ssl_server_credentials([pair], authority, require_client_auth=bool(authority))
            )
        except RuntimeError as error:
            raise InputError(f"cannot listen on {address} for gRPC: {error}") from error

    def start(self) -> None:
        """Begin."""
        self._server.start()

    def close(self) -> None:
        """Answer what was asked, and end."""
        self._server.stop(self._config.http.request_timeout_ms / 1e3).wait()
        self._threads.shutdown(wait=False)

    # ------------------------------------------------------------------ calls

    def _handler(self, name: str) -> Any:
        method: Callable[[Any, Any], Any] = getattr(self, f"_{name}")

        def call(request: Any, context: Any) -> Any:
            try:
                if name not in _OPEN:
                    self._admit(context)
                return method(request, context)
            except PyFlameRTError as error:
                refused = as_request_error(error)
            except Exception:
                log.exception("gRPC call %s failed", name)
                refused = RequestError(500, "InternalError", "the server failed; its log says why")
            status = getattr(self._grpc.StatusCode, _STATUS.get(refused.status, "INTERNAL"))
            context.abort(status, str(refused))
            raise AssertionError("abort raises")

        return self._grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=message(f"{name}Response").SerializeToString,
        )

    def _admit(self, context: Any) -> None:
        sent = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        given = sent.get("x-api-key") or sent.get("authorization", "").removeprefix("Bearer ")
        if self._keys:
            found = False
            for key in self._keys:  # all of them, so that time tells nothing
                found |= hmac.compare_digest(given.encode(), key)
            if not found:
                raise RequestError(401, "Unauthorized", "the API key is missing or wrong")
        if self._limiter is not None:
            with self._lock:
                wait = self._limiter.wait(given if self._keys else context.peer().rsplit(":", 1)[0])
            if wait:
                raise RequestError(429, "RateLimited", "too many requests; try again later")

    def _ServerLive(self, request: Any, context: Any) -> Any:
        del request, context
        return message("ServerLiveResponse")(live=True)

    def _ServerReady(self, request: Any, context: Any) -> Any:
        del request, context
        return message("ServerReadyResponse")(ready=self._service.ready())

    def _ModelReady(self, request: Any, context: Any) -> Any:
        del context
        return message("ModelReadyResponse")(ready=self._registry.has(request.name, request.version or None))

    def _ServerMetadata(self, request: Any, context: Any) -> Any:
        del request, context
        return message("ServerMetadataResponse")(**SERVER)

    def _ModelMetadata(self, request: Any, context: Any) -> Any:
        del context
        instance = self._registry.acquire(request.name, request.version or None)
        try:
            return message("ModelMetadataResponse")(**model_metadata(self._registry, instance))
        finally:
            instance.release()

    def _ModelStatistics(self, request: Any, context: Any) -> Any:
        del context
        names = [request.name] if request.name else self._registry.list_models()
        found = []
        for name in names:
            self._registry.config(name, request.version or None)
            found += model_statistics(self._registry, name, request.version or None)
        for stats in found:
            stats.pop("batch_stats")
        return message("ModelStatisticsResponse")(model_stats=found)

    def _RepositoryIndex(self, request: Any, context: Any) -> Any:
        del context
        return message("RepositoryIndexResponse")(models=repository_index(self._registry, only_ready=request.ready))

    def _RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        del context
        self._check_control()
        self._registry.load(request.model_name)
        return message("RepositoryModelLoadResponse")()

    def _RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        del context
        self._check_control()
        self._registry.unload(request.model_name)
        return message("RepositoryModelUnloadResponse")()

    def _check_control(self) -> None:
        if not self._config.model_control:
            raise RequestError(403, "Forbidden", "this server does not let clients load or unload models")

    def _ModelInfer(self, request: Any, context: Any) -> Any:
        service = self._service
        with service.counted(request.model_name):
            instance = self._registry.acquire(request.model_name, request.model_version or None)
            try:
                inputs = read_inputs(request)
                left = context.time_remaining()
                limit = service.timeout_ms if left is None else min(service.timeout_ms, max(left * 1e3, 1.0))
                names = [output.name for output in request.outputs] or None
                future = instance.submit(inputs, names, timeout_ms=limit, caller=context.peer())
                context.add_callback(future.cancel)  # the client has gone
                outputs = future.result().outputs
            except futures.CancelledError:
                raise RequestError(499, "ClientGone", "the client has gone") from None
            finally:
                instance.release()
            return _response(request, instance, outputs)


def read_inputs(request: Any) -> dict[str, Any]:
    """The tensors of a request."""
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise refuse(f"{len(request.inputs)} inputs have {len(raw)} raw_input_contents")
    if not request.inputs:
        raise refuse("a request needs inputs")
    found: dict[str, Any] = {}
    for i, tensor in enumerate(request.inputs):
        where = f"input {tensor.name!r}"
        if tensor.name in found:
            raise refuse(f"{where} is given twice")
        if "shared_memory_region" in tensor.parameters:
            raise refuse(f"{where}: shared memory is for HTTP; send the bytes")
        kind, sizes = kind_of(tensor.datatype, where), shape_of(list(tensor.shape), where)
        if raw:
            found[tensor.name] = decode_raw(raw[i], kind, sizes, where)
        else:
            found[tensor.name] = _from_contents(tensor.contents, kind, sizes, where)
    return found


def _from_contents(contents: Any, kind: DType, shape: tuple[int, ...], where: str) -> Any:
    field = _CONTENTS.get(kind)
    if field is None:
        raise refuse(f"{where}: {kind.label} comes as bytes, in raw_input_contents")
    values = list(getattr(contents, field))
    if kind is DType.String:
        values = [value.decode("utf-8", "surrogateescape") for value in values]
    elif kind.is_float:  # NaN and infinities are numbers here
        array = np.array(values, kind.numpy)
        if array.size != np.prod(shape, dtype=np.int64):
            raise refuse(f"{where}: shape {list(shape)} does not fit {array.size} values")
        return array.reshape(shape)
    return decode_list(values, kind, shape, where)


def _response(request: Any, instance: Any, outputs: Any) -> Any:
    made = message("ModelInferResponse")(model_name=instance.name, model_version=instance.version, id=request.id)
    kinds = instance.output_kinds
    for name, array in outputs.items():
        made.outputs.add(name=name, datatype=v2_name(kinds[name]), shape=array.shape)
        made.raw_output_contents.append(bytes(encode_raw(array)))
    return made
