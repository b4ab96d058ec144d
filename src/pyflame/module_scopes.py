"""Which module, or part of a training step, recorded which operators."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from pyflame.lazy import Val, modes, next_serial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame.lazy import Expr

__all__ = ["ModuleScopes", "mark_backward", "placed", "recording"]

# So many changes of place are remembered; the older half goes when there are more.
MAX_MARKS = 200_000


class ModuleScopes:
    """A record of where operators come from: places follow each other as expressions get their numbers.

    Args:
        root: a module whose own operators belong to no place; others that are called from outside have their type's.

    Attributes:
        outputs: what modules returned, by the module's path; only values that are still there.
    """

    def __init__(self, root: Any = None) -> None:
        self._root = root
        self._serials: list[int] = [-1]
        self._places: list[str] = [""]
        self._stack: list[str] = [""]
        self._paths: dict[int, str] = {}
        self.outputs: dict[str, list[weakref.ref[Val]]] = {}

    def enter(self, place: str) -> None:
        """What is recorded from now on belongs to ``place``."""
        self._stack.append(place)
        self._mark(place)

    def leave(self) -> None:
        """The place entered last is left."""
        self._stack.pop()
        self._mark(self._stack[-1])

    def _mark(self, place: str) -> None:
        if len(self._serials) > MAX_MARKS:
            half = MAX_MARKS // 2
            del self._serials[:half], self._places[:half]
        self._serials.append(next_serial())
        self._places.append(place)

    def of(self, expr: Expr) -> str:
        """Where an expression comes from: the path of a module, "optimizer", or "" for none."""
        at = bisect_right(self._serials, expr.serial) - 1
        return self._places[at] if at >= 0 else ""

    def call(self, module: Any, run: Callable[[], Any]) -> Any:
        """Call a module and note what it recorded and returned."""
        outermost = len(self._stack) == 1
        if outermost or id(module) not in self._paths:
            self._learn(module)
        path = self._paths[id(module)]
        self.enter(path)
        try:
            result = run()
        finally:
            self.leave()
            if outermost:
                self._paths.clear()  # numbers of objects that may go are not kept
        self.outputs[path] = [weakref.ref(v) for v in _values(result)]
        return result

    def _learn(self, root: Any) -> None:
        """Paths of a module and all below it; the module itself is called by its type."""
        for path, module in root.named_modules():
            self._paths.setdefault(id(module), path or ("" if root is self._root else type(root).__name__))


def _values(result: Any) -> Iterator[Val]:
    value = getattr(result, "_value", None)
    if isinstance(value, Val):
        yield value
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from _values(part)
    elif isinstance(result, dict):
        for part in result.values():
            yield from _values(part)


class recording:
    """While it lasts, this thread's modules note what they record in ``spans``."""

    def __init__(self, spans: ModuleScopes) -> None:
        self._spans = spans
        self._before: Any = None

    def __enter__(self) -> ModuleScopes:
        self._before = modes.spans
        modes.switch(spans=self._spans)
        return self._spans

    def __exit__(self, *_: object) -> None:
        modes.switch(spans=self._before)


class placed:
    """What is recorded while it lasts belongs to ``place``, where somebody wants to know."""

    __slots__ = ("_place", "_spans")

    def __init__(self, place: str) -> None:
        self._place = place
        self._spans = modes.spans

    def __enter__(self) -> None:
        if self._spans is not None:
            self._spans.enter(self._place)

    def __exit__(self, *_: object) -> None:
        if self._spans is not None:
            self._spans.leave()


def mark_backward(expr: Expr, suffix: str) -> Callable[[], None] | None:
    """What follows is recorded for an expression that is there already; call the result when that is over."""
    spans = modes.spans
    if spans is None:
        return None
    place = spans.of(expr)
    spans.enter(f"{place}{suffix}" if place and not place.endswith(suffix) else place or suffix.strip("/"))
    return spans.leave
