"""Run a generated program in the simulator, from its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.emit.hostrun import run_program
from wsesim.csl.program.driver import compile_texts
from wsesim.fabric import load
from wsesim.host import HostSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.driver import Arch
    from wsesim.csl.program.elaborated import Program

__all__ = ["SimulatedDevice", "compile_sources", "simulate"]


def compile_sources(sources: Mapping[str, str], manifest: Mapping[str, Any], arch: Arch) -> Program:
    """The program of a generated directory, compiled in strict mode."""
    texts = {"layout.csl": sources["layout.csl"]}
    texts.update({name: text for name, text in sources.items() if name.endswith(".csl")})
    grid = manifest["grid"]
    dims = (grid["cols"] + 7, grid["rows"] + 2)
    return compile_texts(
        texts,
        arch=arch,
        memcpy=True,
        channels=1,
        strict=True,
        fabric_dims=dims,
        fabric_offsets=(4, 1),
    )


class SimulatedDevice:
    """A loaded program with queues of the documented depth, in strict mode."""

    def __init__(self, program: Program) -> None:
        self.host = HostSession(load(program, bounded=True, strict=True))
        self.host.start()

    @property
    def where(self) -> tuple[int, int, int, int]:
        """The whole rectangle."""
        return (0, 0, self.host.machine.width, self.host.machine.height)

    def write(self, symbol: str, data: np.ndarray[Any, Any]) -> None:
        """Copy ``[rows, cols, elements]`` to the PEs."""
        size = data.dtype.itemsize
        words = np.ascontiguousarray(data).view(np.uint32 if size == 4 else np.uint16).astype(np.uint32)
        self.host.copy_in(symbol, words, self.where, size)

    def read(self, symbol: str, count: int, dtype: str) -> np.ndarray[Any, Any]:
        """Copy ``[rows, cols, count]`` from the PEs."""
        size = np.dtype(dtype).itemsize
        words = np.zeros((self.where[3], self.where[2], count), np.uint32)
        self.host.copy_out(symbol, words, self.where, size)
        cells = words if size == 4 else words.astype(np.uint16)
        return cells.view(np.dtype(dtype))

    def launch(self, name: str) -> None:
        """Call a function on all PEs."""
        self.host.call(name)

    def stop(self) -> None:
        """Run to the end."""
        self.host.stop()


def simulate(
    sources: Mapping[str, str], manifest: dict[str, Any], arrays: Mapping[str, Any], arch: Arch = "wse3"
) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs of a program by name; ``arrays`` holds inputs and weights."""
    device = SimulatedDevice(compile_sources(sources, manifest, arch))
    results = run_program(manifest, dict(arrays), device)
    device.stop()
    return results
