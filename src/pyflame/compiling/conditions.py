"""What must be as it was when a function was traced, or its trace cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.lazy import mode_changes

if TYPE_CHECKING:
    from pyflame.compiling.tracer import Tracer

__all__ = ["Conditions"]


class Conditions:
    """Modes and parts of modules, and settings of optimizers.

    Whoever changes one of these counts `mode_changes` up; as long as nobody has, one comparison is enough.

    Attributes:
        changes: that count when all was seen to be as it was last.
    """

    __slots__ = ("_modules", "_settings", "changes")

    def __init__(self, tracer: Tracer) -> None:
        self.changes = -1  # when all was seen to be as it was last
        self._modules = [(module, mode, _parts(module)) for module, mode in tracer.modules.values()]
        self._settings = [(settings, settings.fixed()) for settings in tracer.settings.values()]

    def hold(self) -> bool:
        """Whether everything is as it was."""
        changes = mode_changes[0]
        if changes == self.changes:
            return True
        if not all(module.training is mode and _same(_parts(module), parts) for module, mode, parts in self._modules):
            return False
        if not all(settings.fixed() == then for settings, then in self._settings):
            return False
        self.changes = changes
        return True


def _parts(module: Any) -> list[Any]:
    return [*module._parameters.values(), *module._modules.values()]


def _same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))
