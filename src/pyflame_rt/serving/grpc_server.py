"""Open Inference Protocol over gRPC (grpcio's asyncio server): the same models, keys, rates and metrics as over HTTP.

Every method is taken as a stream of one message, which is the same on the wire: so keys and rates are checked before a
byte of the message is read, and a client that does not send its message holds neither a thread nor anybody's place.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, MissingExtra, PyFlameRTError
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.grpc_answers import CallAnswers
from pyflame_rt.serving.grpc_messages import CallMessages
from pyflame_rt.serving.guard import RateLimiter
from pyflame_rt.serving.messages import METHODS, SERVICE, message
from pyflame_rt.serving.tensors import decode_list, decode_raw, encode_raw, kind_of, refuse, shape_of, v2_name
from pyflame_rt.serving.v2_app import SERVER, model_metadata, model_statistics, repository_index

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from pyflame_rt.serving.config import ServerConfig
    from pyflame_rt.serving.service import Answer, InferenceService

__all__ = ["GRPCServer"]

log = logging.getLogger("pyflame_rt.serving")
_GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")
INLINE_BYTES = 64 << 10  # longer messages are read and written by other threads
_STATUS = {
    **dict.fromkeys((400, 413, 415), "INVALID_ARGUMENT"),
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPEN = ("ServerLive", "ServerReady")
RAW_CONTENTS = b"\x32"  # field 6 of ModelInferResponse, bytes with their length before them
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
    """

    def __init__(self, service: InferenceService, config: ServerConfig) -> None:
        try:
            import grpc
            import grpc.aio
        except ModuleNotFoundError as error:
            raise MissingExtra("gRPC needs grpcio: pip install 'pyflame[serve]'") from error
        self._grpc: Any = grpc
        self._service, self._config, self._registry = service, config, service.registry
        self._keys = [key.encode() for key in config.api_keys]
        self._limiter = RateLimiter(config.rate_limit) if config.rate_limit.enabled else None
        self._seconds = config.http.request_timeout_ms / 1e3
        limit = config.http.max_pending_bytes or 4 * config.grpc.max_message_size
        self.messages = CallMessages(limit, config.grpc.max_message_size, self._seconds)
        self.answers = CallAnswers(limit, config.http.send_timeout_ms / 1e3)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyflame-rt-grpc", daemon=True)
        self._credentials = self._read_credentials()
        self._server: Any = None
        self.port = 0

    def _read_credentials(self) -> Any:
        tls = self._config.tls
        if not tls.enabled:
            return None
        pair = (Path(tls.key_path).read_bytes(), Path(tls.cert_path).read_bytes())
        authority = Path(tls.ca_path).read_bytes() if tls.ca_path else None
        return self._grpc.ssl_server_credentials([pair], authority, require_client_auth=bool(authority))

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Listen; returns when calls are taken.

        Raises:
            InputError: The address or a certificate cannot be used.
        """
        _GRPC_LOG.addFilter(_but_no_leaving)
        self._thread.start()
        self._wait_for(self._listen())

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        options = [
            ("grpc.max_receive_message_length", self._config.grpc.max_message_size),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", self._config.http.header_timeout_ms),
        ]
        self._server = self._grpc.aio.server(options=options)
        handlers = {name: self._handler(name) for name in METHODS}
        self._server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"{self._config.grpc.host}:{self._config.grpc.port}"
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise InputError(f"cannot listen on {address} for gRPC: {error}") from error
        self.answers.port = self.messages.port = self.port
        await self._server.start()

    def close(self) -> None:
        """Answer what was asked, and end."""
        if not self._thread.is_alive():
            return
        if self._server is not None:
            self._wait_for(self._server.stop(self._seconds))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ------------------------------------------------------------------ calls

    def _handler(self, name: str) -> Any:
        method: Callable[[Any, Any], Awaitable[bytes]] = getattr(self, f"_{name}")

        async def call(messages: AsyncIterator[bytes], context: Any) -> bytes:
            try:
                if name not in _OPEN:
                    self._admit(context)
                data = await self.messages.read(messages, context.peer())
                try:
                    request = await _aside(len(data), _parsed, f"{name}Request", data)
                    answer = await method(request, context)
                finally:
                    self.messages.release(len(data))
                self.answers.begin(context, len(answer))
                return answer
            except PyFlameRTError as error:
                refused = as_request_error(error)
            except Exception as error:
                log.exception("gRPC call %s failed", name)
                refused = as_request_error(error)
            status = getattr(self._grpc.StatusCode, _STATUS.get(refused.status, "INTERNAL"))
            await context.abort(status, str(refused))
            raise AssertionError("abort raises")

        return self._grpc.stream_unary_rpc_method_handler(call)

    def _admit(self, context: Any) -> None:
        sent = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        given = sent.get("x-api-key") or sent.get("authorization", "").removeprefix("Bearer ")
        if self._keys:
            found = False
            for key in self._keys:  # all of them, so that time tells nothing
                found |= hmac.compare_digest(given.encode(), key)
            if not found:
                raise RequestError(401, "Unauthorized", "the API key is missing or wrong")
        if self._limiter is not None and self._limiter.wait(given if self._keys else context.peer().rsplit(":", 1)[0]):
            raise RequestError(429, "RateLimited", "too many requests; try again later")

    async def _ServerLive(self, request: Any, context: Any) -> bytes:
        del request, context
        return _encoded("ServerLive", live=True)

    async def _ServerReady(self, request: Any, context: Any) -> bytes:
        del request, context
        return _encoded("ServerReady", ready=self._service.ready())

    async def _ModelReady(self, request: Any, context: Any) -> bytes:
        del context
        return _encoded("ModelReady", ready=self._registry.has(request.name, request.version or None))

    async def _ServerMetadata(self, request: Any, context: Any) -> bytes:
        del request, context
        return _encoded("ServerMetadata", **SERVER)

    async def _ModelMetadata(self, request: Any, context: Any) -> bytes:
        del context
        instance = await self._service.acquire(request.name, request.version or None)
        try:
            return _encoded("ModelMetadata", **model_metadata(self._registry, instance))
        finally:
            instance.release()

    async def _ModelStatistics(self, request: Any, context: Any) -> bytes:
        del context
        names = [request.name] if request.name else self._registry.list_models()
        found = []
        for name in names:
            self._registry.config(name, request.version or None)
            found += model_statistics(self._registry, name, request.version or None)
        for stats in found:
            stats.pop("batch_stats")
        return _encoded("ModelStatistics", model_stats=found)

    async def _RepositoryIndex(self, request: Any, context: Any) -> bytes:
        del context
        return _encoded("RepositoryIndex", models=repository_index(self._registry, only_ready=request.ready))

    async def _RepositoryModelLoad(self, request: Any, context: Any) -> bytes:
        del context
        self._check_control()
        await asyncio.to_thread(self._registry.load, request.model_name)
        return _encoded("RepositoryModelLoad")

    async def _RepositoryModelUnload(self, request: Any, context: Any) -> bytes:
        del context
        self._check_control()
        await asyncio.to_thread(self._registry.unload, request.model_name)
        return _encoded("RepositoryModelUnload")

    def _check_control(self) -> None:
        if not self._config.model_control:
            raise RequestError(403, "Forbidden", "this server does not let clients load or unload models")

    async def _ModelInfer(self, request: Any, context: Any) -> bytes:
        service = self._service
        size = request.ByteSize()
        with service.counted(request.model_name):
            instance = await service.acquire(request.model_name, request.model_version or None)
            try:
                inputs = await _aside(size, read_inputs, request)
                left = context.time_remaining()
                answer = await service.run(
                    instance,
                    inputs,
                    [output.name for output in request.outputs] or None,
                    timeout_ms=None if left is None else max(left * 1e3, 1.0),
                    caller=context.peer(),
                )
            finally:
                instance.release()
            return await _aside(answer.nbytes, _response, request.id, answer)


async def _aside(size: int, work: Callable[..., Any], *args: Any) -> Any:
    """Do work at once where it is little, else in another thread."""
    return work(*args) if size <= INLINE_BYTES else await asyncio.to_thread(work, *args)


def _parsed(kind: str, data: bytes) -> Any:
    try:
        return message(kind).FromString(data)
    except DecodeError:
        raise refuse(f"the message is no {kind}") from None


def read_inputs(request: Any) -> dict[str, Any]:
    """The tensors of a request."""
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise refuse(f"{len(request.inputs)} inputs have {len(raw)} raw_input_contents")
    if not request.inputs:
        raise refuse("a request needs inputs")
    for output in request.outputs:
        if "shared_memory_region" in output.parameters or "classification" in output.parameters:
            raise refuse(f"output {output.name!r}: shared memory and classification are not for gRPC")
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


def _but_no_leaving(record: logging.LogRecord) -> bool:
    """A client that leaves while it is answered is no error; gRPC writes a traceback for each."""
    return not str(record.msg).startswith("ExecuteBatchError")


def _encoded(name: str, /, **fields: Any) -> bytes:
    return message(f"{name}Response")(**fields).SerializeToString()


def _response(number: str, answer: Answer) -> bytes:
    """A ModelInferResponse: the bytes of outputs are the last of its fields, and are copied once."""
    made = message("ModelInferResponse")(model_name=answer.name, model_version=answer.version, id=number)
    parts: list[bytes | memoryview] = [b""]
    for name, array in answer.outputs.items():
        made.outputs.add(name=name, datatype=v2_name(answer.kinds[name]), shape=array.shape)
        raw = encode_raw(array)
        parts += [RAW_CONTENTS, _varint(len(raw)), raw]
    parts[0] = made.SerializeToString()
    return b"".join(parts)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
