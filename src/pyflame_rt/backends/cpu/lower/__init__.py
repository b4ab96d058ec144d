"""Lowering: specialised graphs to steps on buffers, one file for each family of operators."""

from __future__ import annotations

import importlib
import pkgutil

__all__ = ["load_lowerings"]


def load_lowerings() -> None:
    """Import the modules of this folder, which declare the lowerings of operators."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
