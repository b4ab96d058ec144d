"""Functions that users hang before, after and behind a module."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.nn.module import Module

__all__ = ["HookTable", "RemovableHandle"]

_numbers = itertools.count()


class RemovableHandle:
    """Takes a hook away again: call `remove`, or use it as a context."""

    def __init__(self, table: dict[int, Callable[..., Any]], number: int) -> None:
        self._table, self._number = table, number

    def remove(self) -> None:
        """Take the hook away; once is enough."""
        self._table.pop(self._number, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class HookTable:
    """The hooks of one module; false while there are none."""

    __slots__ = ("named", "tables")

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, Callable[..., Any]]] = {}
        self.named: set[int] = set()  # hooks that are given keyword arguments too

    def __bool__(self) -> bool:
        return any(self.tables.values())

    def add(self, kind: str, hook: Callable[..., Any], prepend: bool, named: bool = False) -> RemovableHandle:
        """Keep a hook, and return what removes it."""
        if not callable(hook):
            raise TypeError(f"A hook must be callable. Received: {type(hook).__name__}")
        table, number = self.tables.setdefault(kind, {}), next(_numbers)
        if prepend:
            others = dict(table)
            table.clear()
            table[number] = hook
            table.update(others)
        else:
            table[number] = hook
        if named:
            self.named.add(number)
        return RemovableHandle(table, number)

    def run(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `forward` between the hooks."""
        for number, hook in list(self.tables.get("forward_pre", {}).items()):
            changed = hook(module, args, kwargs) if number in self.named else hook(module, args)
            if changed is None:
                continue
            if number in self.named:
                args, kwargs = _both(changed)
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        backward, before = (list(self.tables.get(kind, {}).values()) for kind in ("backward", "backward_pre"))
        if backward or before:
            from pyflame.nn.backward_hooks import watch_backward

            output = watch_backward(module, backward, before, args, kwargs)
        else:
            output = module.forward(*args, **kwargs)
        for number, hook in list(self.tables.get("forward", {}).items()):
            changed = hook(module, args, kwargs, output) if number in self.named else hook(module, args, output)
            if changed is not None:
                output = changed
        return output


def _both(changed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not (isinstance(changed, tuple) and len(changed) == 2 and isinstance(changed[1], dict)):
        raise TypeError(f"a forward pre-hook with_kwargs returns None or (args, kwargs). Received: {changed!r}")
    args, kwargs = changed
    return (args if isinstance(args, tuple) else (args,)), kwargs
