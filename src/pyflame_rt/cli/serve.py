"""``pyflame-rt serve``: a model, or a folder of models, behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.render import console
from pyflame_rt.graph.errors import ModelNotFoundError

__all__ = ["serve"]

Served = Annotated[
    Path,
    typer.Argument(help="A .onnx or .pfm file, a folder of Hugging Face, or one of models (name/version/model.onnx)."),
]
Name = Annotated[str, typer.Option(help="Of the model; the file's by default.")]
HostName = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
Workers = Annotated[int, typer.Option(help="Threads for the bodies of requests.")]
Batch = Annotated[int, typer.Option("--max-batch-size", help="Rows of requests that are run as one; 1 for none.")]
Wait = Annotated[int, typer.Option("--batch-timeout-us", help="How long a request may wait for others.")]
Reload = Annotated[bool, typer.Option("--reload", help="Load models again when their files change.")]
Control = Annotated[bool, typer.Option("--model-control", help="Let clients load and unload models.")]
Keys = Annotated[list[str], typer.Option("--api-key", help="Ask clients for a key; may be given several times.")]
Grpc = Annotated[int, typer.Option("--grpc-port", help="Also speak gRPC on this port; -1 for not.")]
OnRay = Annotated[bool, typer.Option("--ray", help="Serve on the machines of a Ray cluster.")]
Replicas = Annotated[str, typer.Option(help="With --ray: how many copies, or the fewest and the most (1:4).")]
Level = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


@app.command()
def serve(
    model: Served,
    name: Name = "",
    host: HostName = "127.0.0.1",
    port: Port = 8080,
    workers: Workers = 2,
    max_batch_size: Batch = 32,
    batch_timeout_us: Wait = 5000,
    reload: Reload = False,
    model_control: Control = False,
    api_key: Keys = [],  # noqa: B006 - typer copies it
    grpc_port: Grpc = -1,
    ray: OnRay = False,
    replicas: Replicas = "1",
    log_level: Level = "info",
) -> None:
    """Serve a model, or every model of a folder, until SIGTERM or Ctrl+C."""
    from pyflame_rt.serving import GRPCConfig, HTTPConfig, ModelConfig, ModelServer, ServerConfig
    from pyflame_rt.serving.folders import is_model
    from pyflame_rt.serving.ray_serve import parse_replicas, serve_on_ray

    if not model.exists():
        raise ModelNotFoundError(f"there is no file or folder {str(model)!r}")
    model = model.resolve() if ray else model  # replicas start elsewhere
    defaults = ModelConfig(max_batch_size=max_batch_size, batch_timeout_us=batch_timeout_us)
    config = ServerConfig(
        http=HTTPConfig(host=host, port=port, num_workers=workers),
        grpc=GRPCConfig(enabled=grpc_port >= 0, host=host, port=max(grpc_port, 0)),
        api_keys=list(api_key),
        hot_reload=reload,
        model_control=model_control,
        log_level=log_level,
    )
    if model.is_dir() and not is_model(model):
        config.model_dir = str(model)
    else:
        own = model.resolve().name if model.is_dir() else model.stem
        defaults.name, defaults.model_path = name or own, str(model)
        config.models.append(defaults)
    settings = ModelConfig(max_batch_size=max_batch_size, batch_timeout_us=batch_timeout_us)
    if ray:
        serve_on_ray(config, settings, replicas=parse_replicas(replicas))
        return
    server = ModelServer(config, defaults=settings)
    server.start()
    names = ", ".join(server.registry().list_models()) or "no models"
    console.print(f"{server.url} serves {names}; Ctrl+C ends", highlight=False, markup=False, soft_wrap=True)
    server.wait()
