"""Errors that name the layer: the message grows by the path of modules that the exception passes on its way up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyflame.ops.core import Handle
from pyflame_rt.graph.errors import PyFlameRTError

if TYPE_CHECKING:
    from pyflame.nn.module import Module

__all__ = ["OURS", "locate"]

OURS = (RuntimeError, ValueError, TypeError, IndexError)  # what layers raise; PyFlameRTError is a RuntimeError
_SIZE = re.compile(r"\d+|\([\d, ]*\)")
_PART = re.compile(r"\s*(?:\w+=)?(\([^()]*\)|[^,()]+),?")


class _Place:
    """Where an error comes from: the innermost module, what it was given, and what it said."""

    __slots__ = ("given", "message", "module", "path")

    def __init__(self, module: Module, given: str, message: str) -> None:
        self.module = module
        self.given = given
        self.message = message
        self.path = ""

    def text(self) -> str:
        path = f"model.{self.path}: " if self.path else ""
        return f"{path}{_brief(self.module)} got {self.given}: {self.message}"


def locate(error: BaseException, module: Module, args: tuple[Any, ...]) -> None:
    """Note that an error leaves a module; errors of people's own code are left as they are."""
    place = getattr(error, "_place", None)
    if place is None:
        if getattr(error, "_foreign", False):
            return
        ours = isinstance(error, PyFlameRTError) or type(module).__module__.startswith("pyflame.")
        shapes = [_sizes(a) for a in args if isinstance(a, Handle)]
        if not ours or not shapes or len(error.args) != 1 or not isinstance(error.args[0], str):
            error._foreign = True  # type: ignore[attr-defined]
            return
        place = _Place(module, ", ".join(shapes), error.args[0])
        error._place = place  # type: ignore[attr-defined]
    else:
        place.path = next((name for name, m in module.named_modules() if m is place.module), place.path)
    error.args = (place.text(),)


def _sizes(value: Any) -> str:
    return str(list(value._value.spec.shape))


def _brief(module: Module) -> str:
    """The module by its class and the sizes it was made with: ``Linear(32, 4)``."""
    sizes: list[str] = []
    for found in _PART.finditer(module.extra_repr()):
        if not _SIZE.fullmatch(found[1].strip()) or len(sizes) == 3:
            break
        sizes.append(found[1].strip())
    return f"{type(module).__name__}({', '.join(sizes)})"
