"""Serve models as the environment says: ``python -m pyflame_rt.serving``."""

from __future__ import annotations

import os
import sys

from pyflame_rt.graph.errors import InputError, PyFlameRTError
from pyflame_rt.serving.config import ServerConfig
from pyflame_rt.serving.logs import configure_logs
from pyflame_rt.serving.server import ModelServer
from pyflame_rt.serving.supervisor import inherited_socket, supervise

__all__ = ["main"]


def main() -> int:
    """Serve until a signal comes; the exit code."""
    try:
        config = ServerConfig.from_env()
        if not os.environ.get("LOG_LEVEL"):
            config.log_level = "info"
        processes = _processes(config)
        if processes > 1:
            configure_logs(config.log_level)
            return supervise(config, processes)
        server = ModelServer(config, defaults=config.defaults())
        given = inherited_socket()
        server.start(sockets=None if given is None else [given])
    except PyFlameRTError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    server.wait()
    return 0


def _processes(config: ServerConfig) -> int:
    text = os.environ.get("HTTP_PROCESSES", "").strip() or "1"
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise InputError(f"environment variable HTTP_PROCESSES={text!r}: write a number from 1 to 256")
    config.checked()
    many = int(text) > 1
    if many and (config.model_control or config.grpc.enabled or config.metrics_port):
        raise InputError(
            "HTTP_PROCESSES goes without MODEL_CONTROL, GRPC_ENABLED and METRICS_PORT: each process has models and "
            "ports of its own"
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
