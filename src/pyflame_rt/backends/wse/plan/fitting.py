"""A plan that fits a PE's memory: on the grid asked for, on the smallest square, or in passes over the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.options import TARGETS
from pyflame_rt.backends.wse.plan.footprint import MEMORY, measure, surely_fits
from pyflame_rt.backends.wse.plan.host_passes import families, folded
from pyflame_rt.backends.wse.plan.kernels import MatMul, Slide, Spread
from pyflame_rt.backends.wse.plan.lowering import lower, opened, sliding
from pyflame_rt.backends.wse.plan.memory import plan_memory
from pyflame_rt.backends.wse.plan.sliding_windows import SLIDING
from pyflame_rt.backends.wse.plan.tiling import Grid
from pyflame_rt.graph.errors import MemoryLimitError
from wsesim import watch

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.options import CodeGenOptions
    from pyflame_rt.backends.wse.plan.host_passes import Family
    from pyflame_rt.backends.wse.plan.kernels import WaferPlan
    from pyflame_rt.backends.wse.plan.primitives import Flat

__all__ = ["make_plan"]


def make_plan(flat: Flat, options: CodeGenOptions, grid: tuple[int, int] | None = None) -> WaferPlan:
    """A plan that fits the memory of each PE.

    On the grid asked for, else on the smallest square. What does not fit is run in passes over the host where parts of
    it are independent of each other.

    Raises:
        MemoryLimitError: it does not fit; the message says what it needs and which grid would do.
    """
    windows = any(step.op in SLIDING for step in flat.steps)
    return _Fitting(opened(flat.copy()), options, flat if windows else None).run(grid)


def _hungry(plan: WaferPlan) -> bool:
    """Whether a plan has kernels that could do with less memory."""
    return any(isinstance(k, Spread) or (isinstance(k, MatMul) and k.how == "shift") for k in plan.kernels)


class _Fitting:
    def __init__(self, flat: Flat, options: CodeGenOptions, windows: Flat | None = None) -> None:
        self.flat = flat
        self.windows = windows  # the graph before its windows were opened
        self.options = options

    def run(self, grid: tuple[int, int] | None) -> WaferPlan:
        rows, cols = self.options.fabric_height, self.options.fabric_width
        if not rows and not cols and grid is not None:
            rows, cols = grid
        if not rows and not cols:
            found = self._smallest(self.flat)
            if found is not None:
                return found
        asked = Grid(rows or 1, cols or 1) if rows or cols else self._largest()
        plan = self._plan(self.flat, asked)
        if self._fits(plan):
            return plan
        parts = self._in_passes(asked)
        if parts is not None:
            return parts
        raise MemoryLimitError(self._refusal(plan, bool(rows or cols)))

    def _plan(self, flat: Flat, grid: Grid) -> WaferPlan:
        """Data moves on the fabric where its tiles, on their way, leave room for the rest."""
        if flat is self.flat and self.windows is not None and self.options.optimize:
            plan = self._lowered(sliding(self.windows, grid), grid, True, self.options.products)
            if any(isinstance(k, Slide) for k in plan.kernels) and self._fits(plan):
                return plan
        plans = (self._lowered(flat, grid, spread, products) for spread, products in self._ways())
        plan = next(plans)
        for other in plans:
            if not _hungry(plan) or self._fits(plan):
                return plan
            plan = other
        return plan

    def _ways(self) -> list[tuple[bool, str]]:
        """Whether data moves on the fabric, and how matrices are multiplied: the fastest first, the leanest last."""
        given = self.options
        if given.products != "auto":
            return [(spread, given.products) for spread in ((True, False) if given.optimize else (False,))]
        return [(True, "auto"), (True, "broadcast"), (False, "broadcast")] if given.optimize else [(False, "broadcast")]

    def _lowered(self, flat: Flat, grid: Grid, spread: bool, products: str) -> WaferPlan:
        watch.poll()
        plan = lower(flat, grid, optimize=self.options.optimize, spread=spread, products=products)
        return plan_memory(plan, share=self.options.optimize)

    def _largest(self) -> Grid:
        side = min(TARGETS[self.options.target])
        return Grid(side, side)

    def _fits(self, plan: WaferPlan) -> bool:
        """Whether data keeps to its budget, and leaves room for code and stack."""
        watch.poll()
        if plan.data_bytes > self.options.memory_budget:
            return False
        if surely_fits(plan):
            return True
        plan.footprint = measure(plan, self.options)
        return plan.footprint.total <= MEMORY

    def _smallest(self, flat: Flat) -> WaferPlan | None:
        """The smallest square grid with room: doubled until it fits, then halved back."""
        most = self._largest().rows
        low, high = 0, 1
        best = self._plan(flat, Grid(1, 1))
        while not self._fits(best):
            if high == most:
                return None
            low, high = high, min(2 * high, most)
            best = self._plan(flat, Grid(high, high))
        while high - low > 1:
            middle = (low + high) // 2
            plan = self._plan(flat, Grid(middle, middle))
            if self._fits(plan):
                high, best = middle, plan
            else:
                low = middle
        return best

    # --- passes ----------------------------------------------------------------------------------------------------

    def _in_passes(self, grid: Grid) -> WaferPlan | None:
        """The plan with the fewest passes that fits; None when no dimension can be cut far enough."""
        best: WaferPlan | None = None
        for family in families(self.flat):
            most = min(family.size, self.options.max_passes)
            if best is not None and best.fold is not None:
                most = min(most, best.fold.passes - 1)
            plan = self._fewest(grid, family, most)
            best = plan or best
        return best

    def _fewest(self, grid: Grid, family: Family, most: int) -> WaferPlan | None:
        low, high = 1, 2
        plan = None
        while high <= most and plan is None:
            plan = self._part(grid, family, high)
            if plan is None:
                low, high = high, high * 2 if high == most else min(2 * high, most)
        if plan is None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            found = self._part(grid, family, middle)
            if found is None:
                low = middle
            else:
                high, plan = middle, found
        return plan

    def _part(self, grid: Grid, family: Family, passes: int) -> WaferPlan | None:
        part, fold = folded(self.flat, family, passes)
        plan = self._plan(part, grid)
        if not self._fits(plan):
            return None
        whole = {n: (self.flat.dtype(n).label, self.flat.shape(n)) for n in self.flat.inputs}
        return replace(plan, fold=fold, inputs=whole)

    # --- refusal ---------------------------------------------------------------------------------------------------

    def _refusal(self, plan: WaferPlan, asked: bool) -> str:
        counted = plan.footprint
        if counted is None:
            need, limit = f"{plan.data_bytes} bytes", f"the budget for data is {self.options.memory_budget} bytes"
        else:
            need = (
                f"{counted.total} bytes (data {counted.data}, code about {counted.code}, stack {counted.stack}, "
                f"reserved {counted.reserve})"
            )
            limit = f"a PE has {MEMORY} bytes"
        if not asked:
            return f"the program needs {need} on each PE even on {plan.grid} PEs, {limit}"
        fitting = self._smallest(self.flat)
        where = (
            f"the smallest square grid that fits is {fitting.grid}"
            if fitting
            else "no grid of the target is large enough"
        )
        return f"the program needs {need} on each of {plan.grid} PEs, {limit}; {where}"
