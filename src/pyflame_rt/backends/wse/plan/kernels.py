"""What the PEs do, as data: kernels on buffers, in phases between which the host moves data."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.footprint import Footprint
    from pyflame_rt.backends.wse.plan.host_passes import Fold
    from pyflame_rt.backends.wse.plan.redistribution import CoordinateView
    from pyflame_rt.backends.wse.plan.sliding_windows import Side
    from pyflame_rt.backends.wse.plan.tiling import Grid, Tiling

__all__ = [
    "App",
    "Expr",
    "HostExpr",
    "KeptWeights",
    "Kernel",
    "Lit",
    "MapKernel",
    "MatMul",
    "Move",
    "Output",
    "PeBuffer",
    "Phase",
    "Put",
    "ReduceKernel",
    "Ref",
    "Slide",
    "Spread",
    "Take",
    "WaferPlan",
]

# A host expression is what run.py evaluates, as JSON: ["input", name], ["read", buffer], ["transpose", e, perm],
# ["reshape", e, shape], ["slice", e, [[start, stop, step], ...]], ["concat", axis, e...],
# ["windows", e, window, strides, dilations, pads, out, fill], ["pad", e, pairs, mode, fill], ["tile", e, counts],
# ["indices", e, sizes].
HostExpr: TypeAlias = list[Any]
BYTES = {"f32": 4, "u32": 4, "f16": 2, "u16": 2, "i16": 2, "i32": 4}
INTEGERS = ("i16", "i32")


@dataclass(eq=False, slots=True)
class PeBuffer:
    """A tile's place on every PE. ``slot`` is the array in memory that it uses, set by memory planning.

    Attributes:
        name: unique.
        dtype: ``f32``, ``f16``, ``i16``, ``i32`` or ``u16`` (truth values).
        tiling: of the tensor in it.
        value: name of the value in the graph.
        pinned: filled or read by the host, so that its memory is its own.
        shares: the buffer whose memory it looks at under another shape.
    """

    name: str
    dtype: str
    tiling: Tiling
    value: str
    pinned: bool = False
    shares: PeBuffer | None = None
    slot: str = ""

    @property
    def root(self) -> PeBuffer:
        """The buffer that owns the memory."""
        return self if self.shares is None else self.shares.root

    @property
    def nbytes(self) -> int:
        """Bytes on one PE, in whole words."""
        return -(-self.tiling.elements * BYTES[self.dtype] // 4) * 4


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand's element."""

    index: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Lit:
    """A number."""

    value: float
    dtype: str


@dataclass(frozen=True, slots=True)
class App:
    """A function of the scalar language applied to operands."""

    function: str
    args: tuple[Expr, ...]
    dtype: str
    attributes: tuple[tuple[str, Any], ...] = ()


Expr: TypeAlias = Ref | Lit | App


@dataclass(frozen=True, slots=True)
class MapKernel:
    """``out[i] = expr(operands[i])``, with broadcasting; nothing is sent."""

    label: str
    out: PeBuffer
    operands: tuple[PeBuffer, ...]
    expr: Expr

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return self.operands


@dataclass(frozen=True, slots=True)
class ReduceKernel:
    """Sum, maximum, minimum or product over dimensions; along cut ones the PEs combine their parts.

    ``out`` has the reduced dimensions with size 1. The result is divided by ``divide``.
    """

    label: str
    out: PeBuffer
    source: PeBuffer
    kind: Literal["sum", "max", "min", "prod"]
    dims: tuple[int, ...]
    divide: int = 1

    @property
    def axes(self) -> str:
        """The axes along which PEs combine."""
        used = "".join(self.source.tiling.axes[d] for d in self.dims)
        grid = self.source.tiling.grid
        return "".join(a for a in "xy" if a in used and grid.cuts(a) > 1)

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """How a product's right operand lies on PEs when most of it is zero: a list for each PE of what is kept.

    A list is words: how many of its entries are spare, the entries' places (16 bits each), their values.

    Attributes:
        by: an entry is a row of the tile (``rows``, its place that of the row), or one weight (``elements``, its row
            and column in 8 bits each).
        room: entries of a list, as many as the fullest one has.
        deep: rows of a tile.
        cols: columns of a tile.
        share: of the weights that are stored and sent.
    """

    by: Literal["rows", "elements"]
    room: int
    deep: int
    cols: int
    share: float = 1.0

    @property
    def first_value(self) -> int:
        """The word where values begin."""
        return 1 + -(-self.room // 2)

    @property
    def words(self) -> int:
        """Words of a list."""
        return self.first_value + self.room * (self.cols if self.by == "rows" else 1)


@dataclass(frozen=True, slots=True)
class MatMul:
    """Matrix product of ``[..., M, K]`` and ``[..., K, N]``.

    Attributes:
        how: ``summa`` sends blocks of both operands along rows and columns; ``shift`` passes them from neighbour to
            neighbour round rings; ``reduce`` multiplies what each PE has and adds up along the axis that cuts K.
        repeat: how many matrices there are.
        a_step: 1 when each has its own left operand, 0 when all share one.
        b_step: likewise for the right one.
        keep_a: the left operand's tiles are needed afterwards, so that ``shift`` may not use their memory.
        keep_b: likewise for the right one.
        kept: how the lists lie that ``b`` holds in place of tiles; None where it holds tiles.
    """

    label: str
    out: PeBuffer
    a: PeBuffer
    b: PeBuffer
    how: Literal["summa", "shift", "reduce"]
    repeat: int = 1
    a_step: int = 1
    b_step: int = 1
    keep_a: bool = True
    keep_b: bool = True
    kept: KeptWeights | None = None

    @property
    def k_axis(self) -> str:
        """The axis along which PEs add up; empty when there is only one of them."""
        axis = self.a.tiling.axes[-1]
        return axis if self.how == "reduce" and self.a.tiling.grid.cuts(axis) > 1 else ""

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class Take:
    """Elements by number along a dimension; along the axes that cut it the PEs add up what they found.

    Attributes:
        axis: the dimension of the source.
        each: the numbers have the result's shape, one for each element; otherwise they stand where the dimension was.
    """

    label: str
    out: PeBuffer
    source: PeBuffer
    index: PeBuffer
    axis: int
    each: bool

    @property
    def axes(self) -> str:
        """The axes along which PEs combine."""
        tiling = self.source.tiling
        return "".join(a for a in "xy" if a in tiling.axes[self.axis] and tiling.grid.cuts(a) > 1)

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return (self.source, self.index)


@dataclass(frozen=True, slots=True)
class Put:
    """A copy in which elements by number along a dimension are replaced, or combined with what is there."""

    label: str
    out: PeBuffer
    data: PeBuffer
    index: PeBuffer
    updates: PeBuffer
    axis: int
    each: bool
    reduction: str

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return (self.data, self.index, self.updates)


@dataclass(frozen=True, slots=True)
class Spread:
    """Elements go to other places, on other PEs: tiles are broadcast, and every PE keeps what belongs to it.

    Attributes:
        views: the changes of coordinates from the source to the result.
        fill: what the result holds before; None when nothing of it is left out.
    """

    label: str
    out: PeBuffer
    source: PeBuffer
    views: tuple[CoordinateView, ...]
    fill: float | None = None

    @property
    def axes(self) -> str:
        """The axes along which tiles are sent."""
        used, grid = "".join(self.source.tiling.axes), self.source.tiling.grid
        return "".join(a for a in "xy" if a in used and grid.cuts(a) > 1)

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Slide:
    """A convolution, or the maximum or sum of windows, over the last two dimensions, which are cut along y and x.

    Attributes:
        weight: on every PE; None for pooling.
        bias: likewise.
        kind: ``conv``, ``max`` or ``sum``.
        sides: how the window slides down and across.
    """

    label: str
    out: PeBuffer
    source: PeBuffer
    weight: PeBuffer | None
    bias: PeBuffer | None
    kind: str
    sides: tuple[Side, Side]

    @property
    def axes(self) -> str:
        """The axes along which edges are exchanged."""
        down, across = self.sides
        return "".join(a for a, s in (("x", across), ("y", down)) if s.cut and (s.low or s.high))

    def reads(self) -> tuple[PeBuffer, ...]:
        """What it reads."""
        return tuple(b for b in (self.source, self.weight, self.bias) if b is not None)


Kernel: TypeAlias = MapKernel | ReduceKernel | MatMul | Take | Put | Spread | Slide


@dataclass(frozen=True, slots=True)
class Move:
    """The host fills a buffer."""

    target: PeBuffer
    source: HostExpr
    reads: tuple[PeBuffer, ...] = ()


@dataclass(slots=True)
class Phase:
    """What happens from one call of the host to the next."""

    moves: list[Move] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Output:
    """A result: what the host computes from buffers."""

    name: str
    source: HostExpr
    dtype: str
    shape: tuple[int, ...]
    reads: tuple[PeBuffer, ...] = ()


@dataclass(slots=True)
class WaferPlan:
    """A program before it is written down.

    Attributes:
        slots: arrays on each PE: element type and number of elements.
        scratch: arrays that kernels use while they run.
        constants: weights by name, for the host.
        fold: how the program is run in passes, when it is.
        footprint: bytes of code, stack and data of a PE, where they were counted.
        notes: what there is to say of nodes, by name.
    """

    grid: Grid
    phases: list[Phase]
    outputs: list[Output]
    buffers: list[PeBuffer]
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    constants: dict[str, Any]
    slots: dict[str, tuple[str, int]] = field(default_factory=dict)
    scratch: dict[str, tuple[str, int]] = field(default_factory=dict)
    fold: Fold | None = None
    footprint: Footprint | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels in order."""
        return [k for phase in self.phases for k in phase.kernels]

    @property
    def data_bytes(self) -> int:
        """Bytes of data on one PE."""
        arrays = [*self.slots.values(), *self.scratch.values()]
        return sum(-(-count * BYTES[dtype] // 4) * 4 for dtype, count in arrays)
