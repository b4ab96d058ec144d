"""Arguments of another kind than a public function takes, refused in words and at once."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["expect", "expect_graph_of", "expect_whole"]


def expect(value: object, kind: type, argument: str) -> None:
    """Refuse an argument that is not of a kind.

    Raises:
        TypeError: Names the argument, the kind, and what came.

    Example:
        >>> expect("model.onnx", dict, "state_map")
        Traceback (most recent call last):
        ...
        TypeError: state_map must be of type dict, got str
    """
    if not isinstance(value, kind):
        raise TypeError(f"{argument} must be of type {kind.__name__}, got {type(value).__name__}")


def expect_graph_of(session: Any, whose: str) -> Any:
    """The graph of a session, or of what behaves like one.

    Raises:
        TypeError: Names who takes the session, and what came.

    Example:
        >>> expect_graph_of(None, "a Generator")
        Traceback (most recent call last):
        ...
        TypeError: a Generator takes an InferenceSession, got NoneType
    """
    if isinstance(session, type) or not callable(getattr(session, "graph", None)):
        raise TypeError(f"{whose} takes an InferenceSession, got {type(session).__name__}")
    return session.graph()


def expect_whole(value: object, argument: str) -> int:
    """A whole number, from whatever stands for one.

    Raises:
        TypeError: Names the argument, and what came.

    Example:
        >>> expect_whole("17", "opset")
        Traceback (most recent call last):
        ...
        TypeError: opset must be a whole number, got '17'
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{argument} must be a whole number, got {value!r}") from None
