"""Handlers by method and path: a tree of segments (a radix router)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Paths", "Route"]


class Route(NamedTuple):
    """One way in: a method, a path with ``{name}`` for segments that vary, and who answers."""

    method: str
    path: str
    handler: Callable[[Any], Awaitable[Any]]


class _Place:
    """What follows a beginning of a path."""

    __slots__ = ("any", "handlers", "name", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Place] = {}  # by the next segment,
        self.any: _Place | None = None  # else for any one,
        self.name = ""  # which is called so
        self.handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {}  # by method, where a path ends here


class Paths:
    """Finds who answers a path. A segment that is written out goes before one that varies.

    Example:
        >>> async def show(request): ...
        >>> paths = Paths()
        >>> paths.add("GET", "/models/{model}", show)
        >>> handlers, names = paths.find("/models/a")
        >>> list(handlers), names, paths.find("/models/"), paths.find("/other")
        (['GET', 'HEAD'], {'model': 'a'}, None, None)
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self._root = _Place()

    def add(self, method: str, path: str, handler: Callable[[Any], Awaitable[Any]]) -> None:
        """Have a handler asked for a path; for GET also without the body (HEAD)."""
        place = self._root
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                if place.any is None:
                    place.any, place.name = _Place(), part[1:-1]
                assert place.name == part[1:-1], f"{path!r}: this segment is called {place.name!r} elsewhere"
                place = place.any
            else:
                place = place.next.setdefault(part, _Place())
        place.handlers[method] = handler
        if method == "GET":
            place.handlers["HEAD"] = handler
        self.routes.append(Route(method, path, handler))

    def find(self, path: str) -> tuple[dict[str, Callable[[Any], Awaitable[Any]]], dict[str, str]] | None:
        """Who answers a path, by method, and its segments that vary; None where nobody does."""
        place, names = self._root, {}
        for part in path.split("/")[1:]:
            found = place.next.get(part)
            if found is None:
                found = place.any
                if found is None or not part:
                    return None
                names[place.name] = part
            place = found
        return (place.handlers, names) if place.handlers else None
