"""The table of guards: operation name to function."""

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["FOREIGN", "GUARDS", "guard"]

F = TypeVar("F", bound=Callable[..., Any])
GUARDS: dict[str, Callable[..., Any]] = {}

FOREIGN: set[str] = set()
"""Operations whose own function of NumPy refuses what the guard does; it needs none."""


def guard(function: F) -> F:
    """Register a guard under its name (less a trailing underscore)."""
    GUARDS[function.__name__.rstrip("_")] = function
    return function
