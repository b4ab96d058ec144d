"""Cached properties without a lock: that of Python 3.11 is one for all objects, and stays locked in a forked child."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(functools.cached_property[T]):
    """A property that is computed when first read; threads that read it at once may each compute it, to the same.

    Example:
        >>> class Square:
        ...     side = 3
        ...     @cached_property
        ...     def area(self):
        ...         return self.side**2
        >>> Square().area
        9
    """

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """The value, from the object's own dictionary from the second time on."""
        if instance is None:
            return self
        name, values = self.attrname, instance.__dict__
        assert name is not None
        if name not in values:
            values[name] = self.func(instance)
        return values[name]
