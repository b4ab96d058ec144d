"""What a caller can ask of the generator, and what it gives back."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

__all__ = ["DATA_BUDGET", "PRODUCTS", "TARGETS", "CodeGenOptions", "CodeGenResult"]

# Bytes for data on one PE. Code, stack and the host interface share the 48 KB with it.
DATA_BUDGET = 38 * 1024
PRODUCTS = ("auto", "broadcast", "shift")
TARGETS = {"wse2": (750, 994), "wse3": (755, 1170)}  # PEs a program may use: columns and rows


@dataclass(slots=True)
class CodeGenOptions:
    """How CSL is generated.

    Attributes:
        optimize: fuse elementwise operators, use vector instructions and let buffers share memory. False gives one loop
            and one buffer for each operator.
        generate_debug_info: name the operators, values and shapes behind each part, and let the PEs keep a trace of the
            stages they went through, in ``debug_stage``.
        emit_comments: explain the generated text.
        output_dir: where files go.
        target: ``wse2`` or ``wse3``.
        fabric_width: columns of PEs to use; 0 takes what the layouts ask for, or the smallest square that fits.
        fabric_height: rows of PEs, likewise.
        runtime_address: address of a system for ``run.py``; empty takes ``CEREBRAS_RUNTIME_ADDRESS``, or the simulator.
        memory_budget: bytes for data on one PE.
        products: how matrices are multiplied: ``broadcast`` sends blocks along rows and columns (SUMMA), ``shift``
            passes them from neighbour to neighbour (on square grids, and on a single row or column), ``auto`` takes
            what the cost model says is faster. Products with a vector need neither.
        max_passes: how often a program that does not fit may run, each time on a part of its tensors; 1 refuses it.

    Example:
        >>> options = CodeGenOptions()
        >>> options.optimize, options.generate_debug_info, options.emit_comments
        (True, False, True)
    """

    optimize: bool = True
    generate_debug_info: bool = False
    emit_comments: bool = True
    output_dir: str | os.PathLike[str] = "./pyflame_csl_output"
    target: str = "wse2"
    fabric_width: int = 0
    fabric_height: int = 0
    runtime_address: str = ""
    memory_budget: int = DATA_BUDGET
    max_passes: int = 1024
    products: str = "auto"

    def check(self) -> None:
        """Refuse what cannot be meant."""
        if self.target not in TARGETS:
            raise InputError(f"target {self.target!r} is not known. Targets: {', '.join(TARGETS)}")
        widest = TARGETS[self.target]
        for name, most in (("fabric_width", widest[0]), ("fabric_height", widest[1])):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
                raise InputError(f"{name} must be a number of PEs from 1 to {most}, or 0 for automatic; got {count!r}")
        budget = self.memory_budget
        if not isinstance(budget, int) or not 256 <= budget <= 48 * 1024:
            raise InputError(f"memory_budget must be 256 to 49152 bytes, got {budget!r}")
        if self.products not in PRODUCTS:
            raise InputError(f"products must be one of {', '.join(PRODUCTS)}, got {self.products!r}")
        passes = self.max_passes
        if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
            raise InputError(f"max_passes must be a whole number from 1 on, got {passes!r}")

    @property
    def address(self) -> str:
        """Address of the system to run on; empty for the simulator."""
        return self.runtime_address or os.environ.get("CEREBRAS_RUNTIME_ADDRESS", "")


@dataclass(slots=True)
class CodeGenResult:
    """What the generator made.

    Attributes:
        success: False when no program could be made; ``error_message`` says why.
        output_dir: where the files are; empty when none were written.
        generated_files: their paths.
        error_message: why there is no program.
        sources: text of each file by name.
        manifest: what ``manifest.json`` holds: grid, memory, symbols, ids, host steps.

    Example:
        >>> CodeGenResult(False, error_message="no").success
        False
    """

    success: bool
    output_dir: str = ""
    generated_files: list[str] = field(default_factory=list)
    error_message: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
