"""The table of operations, filled by `emberharmony.registry`."""

from collections.abc import Callable
from typing import Any

DECLARED: dict[str, Callable[..., Any]] = {}
"""Every operation: its name and its default body."""

PRIMITIVES: set[str] = set()
"""Operations without a body, which every backend has to provide."""
