"""What the engine needs before it sees a model: once the package is imported, and when a model is to be loaded."""

from __future__ import annotations

from typing import Any

import pyflame_rt.backends.cpu.run.executable as _executable  # noqa: F401 - loads the engine's modules
from pyflame_rt.backends.cpu.driver.entry import prepare_entry
from pyflame_rt.backends.cpu.driver.native_driver import openmp, prepare_driver
from pyflame_rt.backends.cpu.jit.compiler import compiling, start
from pyflame_rt.backends.cpu.onednn import library
from pyflame_rt.backends.cpu.onednn.runtime import engine
from pyflame_rt.cache.installed import is_declared
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.ops.core.registry import find_op

__all__ = ["expect", "prepare"]


# All that keys of kept models, graphs, plans and kernels ask of our own code.
_SOURCES = ("backends/cpu", "cache", "format", "graph", "importers", "ops", "opt")


def prepare() -> None:
    """Load libraries and operators, look at what keys in the cache depend on; machine code takes memory, and waits."""
    find_op("Identity")
    code_signature(*_SOURCES)
    is_declared("pyflame_rt.passes")  # it looks for every group
    openmp()
    if library.available():
        engine()
    start()


def expect(options: Any) -> None:
    """A model is about to be loaded: compile beside that what every model needs."""
    with compiling(quick=bool(getattr(options, "quick_start", True)), ahead=True):
        prepare_driver()
        prepare_entry()
