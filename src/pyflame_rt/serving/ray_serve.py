"""Replicas of the application on the machines of a cluster, behind Ray's proxies and its autoscaler (Ray Serve)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, MissingExtra
from pyflame_rt.serving.server import ModelServer

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ModelConfig, ServerConfig

__all__ = ["parse_replicas", "ray_application", "serve_on_ray"]

NAME = "pyflame-rt"
LEAST = 100  # requests that a replica takes at the same time at least, however small its batches are


def parse_replicas(text: str) -> tuple[int, int]:
    """The fewest and the most replicas, from ``2`` or ``1:4``.

    Raises:
        InputError: It is neither.

    Example:
        >>> parse_replicas("2"), parse_replicas("1:4")
        ((2, 2), (1, 4))
    """
    low, _, high = text.partition(":")
    high = high or low
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise InputError(f"replicas must be a number, or two such as 1:4, got {text!r}")
    return int(low), int(high)


def ray_application(
    config: ServerConfig,
    defaults: ModelConfig | None = None,
    *,
    replicas: tuple[int, int] = (1, 1),
    actor_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The application for ``ray.serve.run``: each replica loads the models, batches and checks keys and limits itself.

    Address, TLS, connections and times of headers are those of Ray's proxies. Rates are counted by each replica.

    Args:
        config: what to serve; ``model_dir`` must be there on every machine.
        defaults: settings of the models of ``model_dir``.
        replicas: the fewest and the most; between these, Ray follows the number of requests under way.
        actor_options: what a replica takes of its machine, such as ``{"num_cpus": 2}``.
        options: others of ``ray.serve.deployment``, such as ``max_replicas_per_node``.

    Raises:
        InputError: A setting is not valid, or goes with a server of one's own alone.
        MissingExtra: Ray Serve is not installed.
    """
    serve = _ray_serve()
    _check(config)

    def build() -> Any:  # in each replica
        return ModelServer(config, defaults=defaults).application()

    batch = 1 if defaults is None else defaults.max_batch_size
    low, high = replicas
    scaling = {"min_replicas": low, "max_replicas": high, "target_ongoing_requests": max(2 * batch, 2)}
    deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        autoscaling_config=scaling,
        max_ongoing_requests=max(4 * batch, LEAST),
        ray_actor_options=actor_options or {},
        graceful_shutdown_timeout_s=config.http.request_timeout_ms / 1e3,
        **options,
    )
    return deployment.bind()


def serve_on_ray(config: ServerConfig, defaults: ModelConfig | None = None, *, replicas: tuple[int, int]) -> None:
    """Serve on the cluster that this machine belongs to, or on one of this machine alone, until Ctrl+C."""
    serve = _ray_serve()
    application = ray_application(config, defaults, replicas=replicas)
    serve.start(http_options={"host": config.http.host, "port": config.http.port})
    serve.run(application, name=NAME, route_prefix="/", blocking=True)


def _ray_serve() -> Any:
    try:
        return importlib.import_module("ray.serve")
    except ModuleNotFoundError as error:
        raise MissingExtra("serving on a cluster needs Ray Serve: pip install 'pyflame[serve,ray]'") from error


def _check(config: ServerConfig) -> None:
    """Refuse what replicas cannot do."""
    config.checked()
    alone = {
        "grpc.enabled": config.grpc.enabled,
        "tls.enabled": config.tls.enabled,
        "model_control": config.model_control,
        "shared_memory": config.shared_memory,
        "metrics_port": config.metrics_port,
    }
    given = [name for name, value in alone.items() if value]
    if given:
        raise InputError(f"{', '.join(given)}: not with Ray, where every replica has models and no port of its own")
