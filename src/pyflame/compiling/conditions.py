"""Settings of optimizers, which must be as they were when a function was traced, or its trace cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame.lazy import mode_changes

if TYPE_CHECKING:
    from pyflame.compiling.tracer import Tracer

__all__ = ["Conditions"]


class Conditions:
    """Settings of the optimizers that stepped.

    Whoever changes one of these counts `mode_changes` up; as long as nobody has, one comparison is enough.

    Attributes:
        changes: that count when all was seen to be as it was last.
    """

    __slots__ = ("_settings", "changes")

    def __init__(self, tracer: Tracer) -> None:
        self.changes = -1  # when all was seen to be as it was last
        self._settings = [(settings, settings.fixed()) for settings in tracer.settings.values()]

    def hold(self) -> bool:
        """Whether everything is as it was."""
        changes = mode_changes[0]
        if changes == self.changes:
            return True
        if not all(settings.fixed() == then for settings, then in self._settings):
            return False
        self.changes = changes
        return True
