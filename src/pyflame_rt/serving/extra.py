"""The optional libraries of the server: their absence is one sentence."""

from __future__ import annotations

from importlib.util import find_spec

from pyflame_rt.graph.errors import MissingExtra

__all__ = ["require_extra"]

_NEEDED = (
    "starlette",
    "uvicorn",
    "httptools",
    "httpx",
    "prometheus_client",
    "watchfiles",
    "yaml",
    "orjson",
    "pydantic",
)


def require_extra() -> None:
    """Say what to install where something is missing.

    Raises:
        MissingExtra: A library is not installed.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"serving models needs {', '.join(missing)}: pip install 'pyflame[serve]'")
