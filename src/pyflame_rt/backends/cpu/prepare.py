"""What the engine needs before it sees a model, done once when the package is imported."""

from __future__ import annotations

import pyflame_rt.backends.cpu.executable as _executable  # noqa: F401 - loads the engine's modules
from pyflame_rt.backends.cpu.llvm.driver import openmp
from pyflame_rt.backends.cpu.llvm.jit import start
from pyflame_rt.backends.cpu.onednn.runtime import engine
from pyflame_rt.ops.registry import find_op

__all__ = ["prepare"]


def prepare() -> None:
    """Load libraries and operators; machine code, which takes memory, waits for the first model."""
    find_op("Identity")
    openmp()
    engine()
    start()
