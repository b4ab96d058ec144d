"""Settings of a server: plain records, checked as a whole, also read from the environment."""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.batching import BatchConfig
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GRPCConfig", "HTTPConfig", "ModelConfig", "RateLimitConfig", "ServerConfig", "TLSConfig"]

MEGABYTE = 1 << 20
MAX_WARMUP = 1000


@dataclass(slots=True)
class HTTPConfig:
    """How HTTP is spoken.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which ``ModelServer.http_port()`` tells.
        num_workers: threads that read and write the bodies of requests, so that the server stays responsive.
        max_request_size: bytes of a body; a longer one is refused at its header.
        max_pending_bytes: bytes of all bodies that are being read or computed; 0 for four of the largest. As many bytes
            of answers may be waiting for clients to take them.
        request_timeout_ms: time for a body to come, and for its answer.
        header_timeout_ms: time for the header of a request to come.
        send_timeout_ms: a client that takes nothing of its answer for so long is let go.
        keep_alive_timeout_ms: how long a connection without a request is kept.
        max_connections: at the same time. When there are as many, the oldest that has not sent its request ends.
        enable_cors: let pages of other origins ask.
        cors_origins: which; ``["*"]`` for all.
        drain_ms: how long a server that ends goes on answering, so that those who route to it learn of it.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    num_workers: int = 2
    max_request_size: int = 100 * MEGABYTE
    max_pending_bytes: int = 0
    request_timeout_ms: int = 30_000
    header_timeout_ms: int = 10_000
    send_timeout_ms: int = 60_000
    keep_alive_timeout_ms: int = 5_000
    max_connections: int = 1024
    enable_cors: bool = False
    cors_origins: list[str] = field(default_factory=lambda: ["*"])
    drain_ms: int = 0

    def validate(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        times = ("request_timeout_ms", "header_timeout_ms", "send_timeout_ms")
        positive = ("num_workers", "max_request_size", "max_connections", *times)
        found = [
            f"http.{name} must be positive, got {getattr(self, name)}" for name in positive if not _above(self, name)
        ]
        found += [
            f"http.{name} must not be negative, got {getattr(self, name)}"
            for name in ("max_pending_bytes", "keep_alive_timeout_ms", "drain_ms")
            if getattr(self, name) < 0
        ]
        if not 0 <= self.port < 65536:
            found.append(f"http.port must be from 0 to 65535, got {self.port}")
        return found


def _above(settings: Any, name: str) -> bool:
    return getattr(settings, name) > 0


@dataclass(slots=True)
class GRPCConfig:
    """How gRPC is spoken.

    Attributes:
        enabled: whether it is.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which ``ModelServer.grpc_port()`` tells.
        max_message_size: bytes of a message.
    """

    enabled: bool = False
    host: str = "0.0.0.0"
    port: int = 9090
    max_message_size: int = 100 * MEGABYTE


@dataclass(slots=True)
class TLSConfig:
    """Certificates.

    Attributes:
        enabled: speak HTTPS.
        cert_path: certificate, with those that signed it.
        key_path: its key.
        ca_path: clients must show a certificate that this one signed; "" asks them for none.
    """

    enabled: bool = False
    cert_path: str = ""
    key_path: str = ""
    ca_path: str = ""

    def validate(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        if not self.enabled:
            return []
        needed = {"tls.cert_path": self.cert_path, "tls.key_path": self.key_path}
        found = [f"{name} is needed when tls.enabled" for name, path in needed.items() if not path]
        given = {**needed, "tls.ca_path": self.ca_path}
        return found + [
            f"{name}: there is no file {path!r}" for name, path in given.items() if path and not _is_file(path)
        ]


def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@dataclass(slots=True)
class RateLimitConfig:
    """A token bucket for each API key, or for each address where there are no keys.

    Attributes:
        enabled: whether requests are counted.
        requests_per_second: in the long run.
        burst_size: at once.
    """

    enabled: bool = False
    requests_per_second: float = 100.0
    burst_size: int = 50

    def validate(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        return [
            f"rate_limit.{name} must be positive, got {getattr(self, name)}"
            for name in ("requests_per_second", "burst_size")
            if not _above(self, name)
        ]


@dataclass(slots=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        name: how requests call it.
        model_path: a .onnx or .pfm file.
        version: of the model; the greatest one, as people count, answers requests that name none.
        enable_batching: run requests that come close together as one.
        max_batch_size: rows of such a run.
        preferred_batch_sizes: sizes of runs that are prepared.
        batch_timeout_us: how long a request may wait for others.
        queue_capacity: requests that may wait; more are refused.
        warmup_requests: runs with made-up inputs before the first request.
        weight: share of the requests that name no version, for trying a version out; None for all to the latest.
        providers: where to run, as for InferenceSession; empty for the default.
        tokenizer: a tokenizer.json, or a folder with one, for models of text; "" finds it beside the model.

    Example:
        >>> ModelConfig(name="m", model_path="m.onnx").validate()
        []
        >>> ModelConfig(name="m").validate()
        ["model 'm': model_path is empty"]
    """

    name: str = ""
    model_path: str = ""
    version: str = "1"
    enable_batching: bool = True
    max_batch_size: int = 32
    preferred_batch_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    batch_timeout_us: int = 5000
    queue_capacity: int = 1000
    warmup_requests: int = 3
    weight: float | None = None
    providers: list[str] = field(default_factory=list)
    tokenizer: str = ""

    def batch_config(self) -> BatchConfig:
        """The settings of its batcher."""
        return BatchConfig(
            max_batch_size=self.max_batch_size if self.enable_batching else 1,
            max_latency_us=self.batch_timeout_us if self.enable_batching else 0,
            preferred_sizes=list(self.preferred_batch_sizes),
            queue_capacity=self.queue_capacity,
        )

    def validate(self, *, needs_path: bool = True) -> list[str]:
        """What is wrong; empty when nothing is."""
        who = f"model {self.name!r}"
        found = [] if valid_name(self.name) else [f"{who}: a name needs letters, digits, '.', '_' or '-'"]
        if not valid_name(self.version):
            found.append(f"{who}: version {self.version!r} needs letters, digits, '.', '_' or '-'")
        if needs_path and not self.model_path:
            found.append(f"{who}: model_path is empty")
        if not 0 <= self.warmup_requests <= MAX_WARMUP:  # models are loaded in turn
            found.append(f"{who}: warmup_requests must be from 0 to {MAX_WARMUP}, got {self.warmup_requests}")
        if self.weight is not None and not 0 <= self.weight < float("inf"):
            found.append(f"{who}: weight must be a number from 0 on, got {self.weight}")
        return found + [f"{who}: {problem}" for problem in self.batch_config().validate()]


def valid_name(name: object) -> bool:
    """Whether models and versions may be called so: such names are part of paths, on disk and in URLs."""
    if not isinstance(name, str) or not name or len(name) > 200 or name.startswith("."):
        return False
    return all(c.isalnum() or c in "._-" for c in name)


@dataclass(slots=True)
class ServerConfig:
    """What a server serves, and how.

    Attributes:
        http: address, sizes and times.
        grpc: the same protocol over gRPC.
        tls: certificates.
        rate_limit: how many requests a client may make.
        api_keys: keys that clients must send, as ``X-API-Key`` or ``Authorization: Bearer``; empty asks for none.
        enable_metrics: answer ``/metrics``.
        metrics_port: a second port that answers ``/metrics`` alone, where it is free; 0 for none.
        models: what to serve.
        model_dir: a folder of models, ``name/version/model.onnx`` or ``name.onnx``; "" for none.
        hot_reload: watch the files of the models, and load them again when they change.
        model_control: let clients load and unload models.
        shared_memory: let clients on this machine pass tensors in shared memory, which the server reads and writes.
        max_memory: bytes of weights; when more are needed, the models that were asked longest ago go. 0 for no limit.
        log_level: of the log on standard error, one JSON object a line: debug, info, warning or error.

    Example:
        >>> config = ServerConfig()
        >>> config.models.append(ModelConfig(name="m", model_path="m.onnx"))
        >>> config.http.port, config.validate()
        (8080, [])
    """

    http: HTTPConfig = field(default_factory=HTTPConfig)
    grpc: GRPCConfig = field(default_factory=GRPCConfig)
    tls: TLSConfig = field(default_factory=TLSConfig)
    rate_limit: RateLimitConfig = field(default_factory=RateLimitConfig)
    api_keys: list[str] = field(default_factory=list)
    enable_metrics: bool = True
    metrics_port: int = 0
    models: list[ModelConfig] = field(default_factory=list)
    model_dir: str = ""
    hot_reload: bool = False
    model_control: bool = False
    shared_memory: bool = False
    max_memory: int = 0
    log_level: str = "warning"

    def validate(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        found = self.http.validate() + self.tls.validate() + self.rate_limit.validate()
        if not 0 <= self.grpc.port < 65536:
            found.append(f"grpc.port must be from 0 to 65535, got {self.grpc.port}")
        for model in self.models:
            found += model.validate()
        seen: set[tuple[str, str]] = set()
        for model in self.models:
            if (model.name, model.version) in seen:
                found.append(f"model {model.name!r} has version {model.version!r} twice")
            seen.add((model.name, model.version))
        if any(not key for key in self.api_keys):
            found.append("api_keys has an empty key")
        if self.log_level.lower() not in ("debug", "info", "warning", "error"):
            found.append(f"log_level must be debug, info, warning or error, got {self.log_level!r}")
        if self.max_memory < 0:
            found.append(f"max_memory must not be negative, got {self.max_memory}")
        return found

    def checked(self) -> ServerConfig:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        problems = self.validate()
        if problems:
            raise InputError("invalid server settings: " + "; ".join(problems))
        return self

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ServerConfig:
        """Settings from environment variables, as containers give them.

        Raises:
            InputError: A value cannot be read.

        Example:
            >>> ServerConfig.from_env({"HTTP_PORT": "8000", "API_KEYS": "a,b"}).api_keys
            ['a', 'b']
        """
        env = os.environ if environ is None else environ
        config = cls()
        for name, (path, read) in _VARIABLES.items():
            text = env.get(name, "").strip()
            if text:
                _assign(config, path, _read(name, text, read))
        return config

    def defaults(self, environ: Mapping[str, str] | None = None) -> ModelConfig:
        """What the environment says of every model of ``model_dir``."""
        env = os.environ if environ is None else environ
        model = ModelConfig()
        for name, (path, read) in _MODEL_VARIABLES.items():
            text = env.get(name, "").strip()
            if text:
                setattr(model, path, _read(name, text, read))
        return model


def _assign(config: Any, path: str, value: Any) -> None:
    *groups, last = path.split(".")
    for group in groups:
        config = getattr(config, group)
    setattr(config, last, value)


def _read(name: str, text: str, read: Any) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise InputError(f"environment variable {name}={text!r}: {error}") from None


def truth(text: str) -> bool:
    """Yes or no, as people write it.

    Example:
        >>> truth("true"), truth("0")
        (True, False)
    """
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("write true or false")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _megabytes(text: str) -> int:
    return int(text) * MEGABYTE


_VARIABLES: dict[str, tuple[str, Any]] = {
    "HTTP_HOST": ("http.host", str),
    "HTTP_PORT": ("http.port", int),
    "HTTP_WORKERS": ("http.num_workers", int),
    "HTTP_REQUEST_TIMEOUT_MS": ("http.request_timeout_ms", int),
    "HTTP_MAX_REQUEST_MB": ("http.max_request_size", _megabytes),
    "HTTP_MAX_CONNECTIONS": ("http.max_connections", int),
    "HTTP_DRAIN_MS": ("http.drain_ms", int),
    "CORS_ORIGINS": ("http.cors_origins", _names),
    "ENABLE_CORS": ("http.enable_cors", truth),
    "GRPC_ENABLED": ("grpc.enabled", truth),
    "GRPC_HOST": ("grpc.host", str),
    "GRPC_PORT": ("grpc.port", int),
    "TLS_ENABLED": ("tls.enabled", truth),
    "TLS_CERT": ("tls.cert_path", str),
    "TLS_KEY": ("tls.key_path", str),
    "TLS_CLIENT_CA": ("tls.ca_path", str),
    "API_KEYS": ("api_keys", _names),
    "RATE_LIMIT_ENABLED": ("rate_limit.enabled", truth),
    "RATE_LIMIT_RPS": ("rate_limit.requests_per_second", float),
    "RATE_LIMIT_BURST": ("rate_limit.burst_size", int),
    "METRICS_ENABLED": ("enable_metrics", truth),
    "METRICS_PORT": ("metrics_port", int),
    "MAX_MEMORY_MB": ("max_memory", _megabytes),
    "MODEL_DIR": ("model_dir", str),
    "HOT_RELOAD": ("hot_reload", truth),
    "SHARED_MEMORY": ("shared_memory", truth),
    "MODEL_CONTROL": ("model_control", truth),
    "LOG_LEVEL": ("log_level", str.lower),
}
_MODEL_VARIABLES: dict[str, tuple[str, Any]] = {
    "ENABLE_BATCHING": ("enable_batching", truth),
    "MAX_BATCH_SIZE": ("max_batch_size", int),
    "BATCH_TIMEOUT_US": ("batch_timeout_us", int),
    "QUEUE_CAPACITY": ("queue_capacity", int),
    "WARMUP_REQUESTS": ("warmup_requests", int),
}
