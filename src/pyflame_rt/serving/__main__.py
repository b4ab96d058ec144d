"""Serve models as the environment says: ``python -m pyflame_rt.serving``."""

from __future__ import annotations

import os
import sys

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.config import ServerConfig
from pyflame_rt.serving.server import ModelServer

__all__ = ["main"]


def main() -> int:
    """Serve until a signal comes; the exit code."""
    try:
        config = ServerConfig.from_env()
        if not os.environ.get("LOG_LEVEL"):
            config.log_level = "info"
        server = ModelServer(config, defaults=config.defaults())
        server.start()
    except PyFlameRTError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
