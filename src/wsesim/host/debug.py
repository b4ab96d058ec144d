"""Looking into a program that has stopped (``cerebras.sdk.debug.debug_util``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wsesim.fabric.errors import HostError
from wsesim.host.sdkruntime import stopped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wsesim.host.session import HostSession

__all__ = ["debug_util"]


class debug_util:
    """Variables and traces of the last run of a compiled program in this process; coordinates are the fabric's."""

    def __init__(self, bindir: Any, cmaddr: str | None = None) -> None:
        if cmaddr:
            raise HostError(f"cmaddr={cmaddr!r}: this is a simulator, it cannot reach a CS system")
        key = str(Path(str(bindir)).resolve())
        if key not in stopped:
            raise HostError(
                f"{bindir}: no run of this program has stopped in this process; call SdkRuntime.stop() first"
            )
        self._session: HostSession = stopped[key]

    def _place(self, x: int, y: int) -> tuple[int, int]:
        dx, dy = self._session.machine.program.fabric_offsets
        return x - dx, y - dy

    def get_symbol(self, col: int, row: int, symbol: str, dtype: Any) -> NDArray[Any]:
        """A variable of a PE."""
        return self._session.read_symbol(*self._place(col, row), symbol, dtype)

    def read_trace(self, col: int, row: int, name: str) -> list[Any]:
        """What a PE recorded with ``<debug>`` under a key."""
        place = self._place(col, row)
        pe = self._session.machine.pes.get(place)
        if pe is None:
            raise HostError(f"there is no PE at fabric coordinates ({col}, {row})")
        return list(pe.library.get(("trace", name), []))
