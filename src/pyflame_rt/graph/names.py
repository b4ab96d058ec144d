"""Enums whose members answer to CamelCase, UPPER_CASE and lower_case alike."""

from __future__ import annotations

import re
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AliasedEnum", "closest"]


def _spellings(name: str) -> set[str]:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    camel = "".join(part.capitalize() for part in snake.split("_"))
    return {snake.upper(), snake.lower(), camel, name.upper(), name.lower()}


class _AliasMeta(EnumMeta):
    def __getattr__(cls, name: str) -> Any:
        for member in cls.__members__.values():
            if name in _spellings(member.name) or (name == "None_" and member.name.upper() == "NONE"):
                return member
        raise AttributeError(f"{cls.__name__} has no member {name!r}. Members: {', '.join(cls.__members__)}")


class AliasedEnum(Enum, metaclass=_AliasMeta):
    """Base of the public enums; the canonical spelling is the one written in the class.

    Example:
        >>> class Mode(AliasedEnum):
        ...     ONE_SHOT = 0
        >>> Mode.OneShot is Mode.ONE_SHOT
        True
    """

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


def closest(name: object, known: Iterable[str], count: int = 1) -> list[str]:
    """Names somebody may have meant.

    Example:
        >>> closest("imput", ["input", "mask"])
        ['input']
    """
    import difflib  # for errors alone

    return difflib.get_close_matches(str(name), list(known), n=count)
