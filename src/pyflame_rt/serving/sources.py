"""Whatever a model comes as, to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.factories import from_pyflame
from pyflame_rt.graph.errors import InputError
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ModelConfig

__all__ = ["open_session"]


def open_session(source: Any, config: ModelConfig, example: Any = None) -> tuple[InferenceSession, bool]:
    """A session of a path, bytes, a Graph, a session, something that holds one, or a PyFlame module with an example.

    Returns:
        The session, and whether it was made here: what others made is not closed here.

    Raises:
        PyFlameRTError: It cannot be loaded.
    """
    providers = tuple(config.providers)
    if isinstance(source, InferenceSession):
        return source, False
    held = getattr(source, "session", None)
    if isinstance(held, InferenceSession):
        return held, False
    if hasattr(type(source), "__runtime_graph__"):
        if example is None:
            raise InputError(f"model {config.name!r} is a {type(source).__name__}: give an example of its input")
        return from_pyflame(source, example, providers=providers), True
    return InferenceSession(source, providers=providers), True
