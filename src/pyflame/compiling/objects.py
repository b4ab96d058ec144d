"""Objects that a traced function makes and returns: opened at their attributes, or refused where they cannot be."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from pyflame.compiling.reach import is_filled, is_library, is_plain, slots_of
from pyflame.compiling.tracer import TraceError
from pyflame.ops.core import Handle

__all__ = ["Opener"]


class Opener:
    """Takes objects apart, so that each replay makes its own.

    Args:
        known: what was there before the trace, by id: it stays whole.
    """

    def __init__(self, known: Mapping[int, Any]) -> None:
        self._known = known
        self._opened: dict[int, Any] = {}

    def __call__(self, tree: Any) -> dict[str, Any] | None:
        """The attributes of an object to be made anew; None for one that stands for itself.

        Raises:
            TraceError: it holds tensors of the trace, and no replay could make it again.
        """
        from pyflame.nn.module import Module

        if is_plain(tree) or id(tree) in self._known or isinstance(tree, (type, types.ModuleType)):
            return None
        kind = type(tree)
        holds = isinstance(tree, Iterator) or self._holds_tensor(tree)
        if _is_attributes(tree) and not isinstance(tree, Module) and (holds or not is_library(kind.__module__)):
            if id(tree) in self._opened:
                raise TraceError(
                    f"a compiled function returns one {kind.__name__} at two places, which later calls would make two "
                    "of; return it once"
                )
            self._opened[id(tree)] = tree
            return vars(tree)
        if holds:
            raise TraceError(
                f"a compiled function returns a {kind.__name__} that it makes of tensors, which its later calls would "
                "not make again; return the tensors themselves, or a list, tuple, dict or plain object with them"
            )
        return None

    def _holds_tensor(self, value: Any) -> bool:
        """Whether a tensor that was not there before is anywhere in a value."""
        pending, seen = [value], dict(self._known)
        while pending:
            item = pending.pop()
            if is_plain(item) or id(item) in seen or isinstance(item, (type, types.ModuleType)):
                continue
            if isinstance(item, Handle):
                return True
            seen[id(item)] = item
            pending += _inside(item)
        return False


def _is_attributes(value: Any) -> bool:
    """Whether an object is its attributes and nothing else."""
    kind = type(value)
    made_plainly = kind.__new__ is object.__new__ and hasattr(value, "__dict__")
    return made_plainly and not any(slots_of(base) for base in kind.__mro__)


def _inside(value: Any) -> list[Any]:
    """What a container, function or object refers to."""
    found: list[Any] = []
    if isinstance(value, Mapping):
        found += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        found += value
    elif isinstance(value, types.FunctionType):
        found += [cell.cell_contents for cell in value.__closure__ or () if is_filled(cell)]
        found += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, types.MethodType):
        found += [value.__self__, value.__func__]
    elif isinstance(value, functools.partial):
        found += [value.func, *value.args, *value.keywords.values()]
    found += getattr(value, "__dict__", {}).values()
    slots = [name for base in type(value).__mro__ for name in slots_of(base)]
    return found + [getattr(value, name) for name in slots if hasattr(value, name)]
