"""What must be as it was when a function was traced, or its trace cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.lazy import mode_changes
from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from pyflame.compiling.tracer import Tracer

__all__ = ["Conditions"]


class Conditions:
    """Modes and parts of modules, settings of optimizers, and which tensors want gradients.

    Whoever changes one of these counts `mode_changes` up; as long as nobody has, one comparison is enough.

    Attributes:
        changes: that count when all was seen to be as it was last.
    """

    __slots__ = ("_modules", "_settings", "_tensors", "changes")

    def __init__(self, tracer: Tracer) -> None:
        self.changes = -1  # when all was seen to be as it was last
        self._modules = [(module, mode, _parts(module)) for module, mode in tracer.modules.values()]
        self._settings = [(settings, settings.fixed()) for settings in tracer.settings.values()]
        handles = [(handle, v) for v, handle in tracer.captured.values() if isinstance(handle, Handle)]
        self._tensors = [(handle, _wants(v), v.spec) for handle, v in handles]

    def hold(self) -> bool:
        """Whether everything is as it was."""
        changes = mode_changes[0]
        if changes == self.changes:
            return True
        if not all(module.training is mode and _same(_parts(module), parts) for module, mode, parts in self._modules):
            return False
        if not all(settings.fixed() == then for settings, then in self._settings):
            return False
        for handle, wanted, spec in self._tensors:
            if _wants(handle._value) is not wanted or handle._value.spec is not spec:
                return False
        self.changes = changes
        return True


def _parts(module: Any) -> list[Any]:
    return [*module._parameters.values(), *module._modules.values()]


def _same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))


def _wants(v: Any) -> bool:
    return v.leaf is not None and v.leaf.requires_grad
