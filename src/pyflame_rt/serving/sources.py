"""Whatever a model comes as, to sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.factories import from_pyflame
from pyflame_rt.graph.errors import InputError
from pyflame_rt.importers.huggingface.importer import decoder_graph
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ModelConfig

__all__ = ["open_session", "open_text_session"]


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


def open_text_session(config: ModelConfig, session: InferenceSession) -> InferenceSession:
    """What generates text: for a folder of Hugging Face a session that writes keys and values in place, else this one.

    Raises:
        PyFlameRTError: The folder generates nothing.
    """
    folder = Path(config.model_path)
    if not config.model_path or not folder.is_dir():
        return session
    return InferenceSession(decoder_graph(folder), providers=tuple(config.providers))
