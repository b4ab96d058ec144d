"""Which variable owns which bytes of a PE's memory: what descriptors and copies are checked against.

A descriptor belongs to the variable that its base address lies in, also after its offset or length has changed. The
table is one array, so that native code can look into it: the owner of every 16-bit cell, then first byte and end of
every variable. Owner 0 is the whole memory: addresses that belong to no variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wsesim.csl.program.elaborated import MEMORY_BYTES

if TYPE_CHECKING:
    from wsesim.csl.program.elaborated import PeProgram

__all__ = ["CELLS", "Bounds"]

CELLS = 1 << 15  # 16-bit cells that a 16-bit address can name


class Bounds:
    """The variables of a PE program by address.

    Attributes:
        names: of the variables, by owner.
        ranges: first byte and end of each.
        table: owners of cells, then the ranges, for native code.
    """

    def __init__(self, unit: PeProgram) -> None:
        self.names = ["the memory of a PE"]
        self.ranges: list[tuple[int, int]] = [(0, MEMORY_BYTES)]
        self.symbols: dict[str, int] = {}
        owners = np.zeros(CELLS, np.int32)
        for symbol, item in unit.globals.items():
            if item.storage == "memory" and item.size:
                self._add(f"'{item.name}'", item.address, item.address + item.size, owners)
                self.symbols[symbol] = len(self.names) - 1
        if unit.memory.stack > 0:
            self._add("the stack", MEMORY_BYTES - unit.memory.stack, MEMORY_BYTES, owners)
        self.table = np.ascontiguousarray(np.concatenate([owners, np.array(self.ranges, np.int32).reshape(-1)]))
        self.base = self.table.ctypes.data
        self.owners: list[int] = owners.tolist()

    def _add(self, name: str, first: int, end: int, owners: np.ndarray) -> None:
        owners[first >> 1 : (end + 1) >> 1] = len(self.names)
        self.names.append(name)
        self.ranges.append((first, end))

    def owner(self, address: int) -> int:
        """The variable that an address lies in, 0 for none."""
        return self.owners[(address & 0xFFFF) >> 1]
