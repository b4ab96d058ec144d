"""Arguments of another kind than a public function takes, refused in words and at once."""

from __future__ import annotations

import math
import operator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ANY", "Bound", "expect", "expect_callable", "expect_graph_of", "expect_whole", "number_problems"]


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


def expect_callable(value: object, argument: str) -> None:
    """Refuse what cannot be called, before somebody else finds out.

    Raises:
        TypeError: Names the argument, and what came.

    Example:
        >>> expect_callable(None, "callback")
        Traceback (most recent call last):
        ...
        TypeError: callback must be callable, got NoneType
    """
    if not callable(value):
        raise TypeError(f"{argument} must be callable, got {type(value).__name__}")


Bound = tuple["Callable[[float], bool]", str]
ANY: Bound = (lambda _: True, "")  # what is finite


def number_problems(settings: Any, whole: Mapping[str, int], real: Mapping[str, Bound]) -> list[str]:
    """What is wrong with numbers of settings: some are whole and at least so much, others finite and within bounds.

    Example:
        >>> from pyflame_rt.generate import BeamParams
        >>> settings = BeamParams(num_beams=0, max_new_tokens=1.5, length_penalty=float("nan"))
        >>> number_problems(settings, {"num_beams": 1, "max_new_tokens": 1}, {"length_penalty": ANY})[:2]
        ['num_beams must be at least 1, got 0', 'max_new_tokens must be a whole number, got 1.5']
    """
    problems: list[str] = []
    for name, low in whole.items():
        value = getattr(settings, name)
        if not isinstance(value, Integral):
            problems.append(f"{name} must be a whole number, got {value!r}")
        elif value < low:
            problems.append(f"{name} must {f'be at least {low}' if low else 'not be negative'}, got {value}")
    for name, (fits, bound) in real.items():
        value = getattr(settings, name)
        if not isinstance(value, Real) or value != value:
            problems.append(f"{name} must be a number, got {value!r}")
        elif not fits(float(value)):
            problems.append(f"{name} must {bound}, got {value}")
        elif abs(value) == math.inf:
            problems.append(f"{name} must be finite, got {value}")
    return problems
