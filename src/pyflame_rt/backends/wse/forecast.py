"""How long a simulated run will take, told beforehand: one PE runs alone, and the rest is multiplication."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.plan.predict import first_tile
from pyflame_rt.graph.records import dataclass
from wsesim.csl.program.driver import compile_texts
from wsesim.fabric.timing import TIMING
from wsesim.model import PredictionError, estimate, measure_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.backends.wse.plan.kernels import WaferPlan
    from wsesim.csl.program.driver import Arch

__all__ = ["LONG_SECONDS", "Forecast", "forecast"]

log = logging.getLogger("pyflame_rt")
LONG_SECONDS = 60.0
_LARGE = 4000  # kernels on PEs: fewer of them are done before a forecast of them would be
# What a machine of the year 2024 needs on one core; a factor of two either way.
_PE_SECONDS, _OPERATION_SECONDS, _COLLECTIVE_SECONDS = 6e-4, 4e-6, 1.5e-4


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is expected to need.

    Attributes:
        pes: processing elements.
        passes: how often the program runs over parts of the data.
        cycles: of the wafer, all passes together.
        seconds: of this machine, to simulate it.

    Example:
        >>> Forecast(3600, 1, 2.5e6, 300.0).text
        'a simulated run on 3,600 PEs takes about 2,500,000 cycles of the wafer and 5 minutes here'
    """

    pes: int
    passes: int
    cycles: float
    seconds: float

    @property
    def text(self) -> str:
        """One clause for people."""
        minutes = max(1, round(self.seconds / 60))
        return (
            f"a simulated run on {self.pes:,} PEs takes about {self.cycles:,.0f} cycles of the wafer and "
            f"{minutes:,} minute{'s' if minutes > 1 else ''} here"
        )

    def say(self) -> None:
        """Warn when it takes long."""
        if self.seconds > LONG_SECONDS:
            log.warning(
                "%s; `pyflame-rt wafer MODEL --grid RxC` predicts without running, timeout_ms and cancel() stop a run",
                self.text,
            )


def forecast(plan: WaferPlan, sources: Mapping[str, str], arch: Arch) -> Forecast | None:
    """The forecast of a program; None for small ones, and for those that the model does not cover."""
    rows, cols = plan.grid.rows, plan.grid.cols
    passes = plan.fold.passes if plan.fold is not None else 1
    if rows * cols * len(plan.kernels) * passes < _LARGE:
        return None
    texts: dict[str, Any] = {"layout.csl": first_tile(sources["layout.csl"], rows, cols)}
    texts |= {name: text for name, text in sources.items() if name.endswith(".csl") and name not in texts}
    alone = compile_texts(texts, arch=arch, memcpy=True, channels=1, strict=True, partial=True)
    calls = [f"phase{i}" for i in range(len(plan.phases))]
    try:
        guess = estimate(alone, calls, timing=TIMING, costs=measure_lines(arch, TIMING))
    except PredictionError as problem:
        log.info("no forecast of the run: %s", problem)
        return None
    each = _PE_SECONDS + guess.operations * _OPERATION_SECONDS + sum(guess.collectives.values()) * _COLLECTIVE_SECONDS
    return Forecast(rows * cols, passes, guess.total_cycles * passes, each * rows * cols * passes)
