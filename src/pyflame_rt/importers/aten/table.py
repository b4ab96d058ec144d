"""Dispatch table of aten operators: name to lowering function, filled by the modules of this folder.

A lowering takes what the operator's schema takes, tensors as :class:`~pyflame_rt.ops.Value`, and gives values back.
It serves every overload of its name; where two overloads cannot be told apart by their arguments, one is registered
under ``name.overload``.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.graph.names import closest

if TYPE_CHECKING:
    from collections.abc import Callable

    Lowering = Callable[..., Any]

__all__ = ["aten", "find_lowering", "get_lowering", "list_lowerings"]

_table: dict[str, Lowering] = {}
_loaded: list[bool] = []


def aten(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function for these operators of aten."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            if name in _table:
                raise ValueError(f"aten::{name} has two lowerings")
            _table[name] = function
        return function

    return register


def _load() -> dict[str, Lowering]:
    if not _loaded:
        package = importlib.import_module("pyflame_rt.importers.aten")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        _loaded.append(True)
    return _table


def list_lowerings() -> list[str]:
    """Names of the aten operators that are lowered.

    Example:
        >>> "layer_norm" in list_lowerings()
        True
    """
    return sorted(_load())


def find_lowering(name: str, overload: str = "") -> Lowering | None:
    """The lowering of an operator, that of its overload first; None when there is none."""
    table = _load()
    return table.get(f"{name}.{overload}") or table.get(name)


def get_lowering(name: str, overload: str = "", where: str = "") -> Lowering:
    """The lowering of an operator, or an error that names it."""
    found = find_lowering(name, overload)
    if found is None:
        close = closest(name, _load())
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnsupportedOperatorError(
            f"operator aten::{name}{'.' + overload if overload else ''} is not lowered{where}.{hint} "
            "Register a function for it with pyflame_rt.importers.aten.table.aten, or export the model to ONNX"
        )
    return found
