"""Small things that tensors hand out."""

from __future__ import annotations

from typing import Any

__all__ = ["Count", "HookHandle"]


class Count(int):
    """A number that may also be called: ``t.numel`` and ``t.numel()``."""

    def __call__(self) -> int:
        """The number."""
        return int(self)


class HookHandle:
    """What ``register_hook`` gives back: :meth:`remove` undoes it."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Call the hook no more."""
        self._hooks.pop(self._key, None)
