"""Products of 8-bit rows, or of pixels under the taps of a convolution, with packed 8-bit weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.instructions import stored
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, least, mul
from pyflame_rt.backends.cpu.kernels.tiles.integer_finish import SUMS, IntegerFinish, Places, store_tile
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, pixel_pointers, row_pointers
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host
    from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import Dots

__all__ = ["PIXEL_PARAMS", "ROW_PARAMS", "IntegerKernel"]

ROW_PARAMS = ("rows", "columns", "run", "block", "stride", "source_stride")
PIXEL_PARAMS = (
    "rows", "columns", "run", "block", "stride", "taps",
    "width", "height", "step_x", "step_y", "step_image", "group_panels", "group_depth",
)  # fmt: skip
_UNROLL = 4


@dataclass(frozen=True)
class IntegerKernel:
    """Result[row, column] = finish(sum of (source[row, k] - zero) * (weights[k, column] - shift[column])).

    bufs: source, packed weights, for each column (padded to whole panels) the sum of its weights less as many shifts,
    the zero point of the source, with ``shifted`` the shifts as int32 (padded too), operands of the finish, results.
    params: ROW_PARAMS, or PIXEL_PARAMS for a convolution; then the row strides of "full" operands; then, for a
    convolution, the offset of each tap. ``run`` counts whole groups of the depth that lie together; ``tail`` bytes
    follow them. rows: items, that is blocks of rows times panels, panels fastest. Strides count elements.

    With ``signed`` the source is int8. Sums are exact: they wrap where 32 bits do not hold them.
    """

    source: Literal["rows", "pixels"]
    dots: Dots
    tile: Tile
    tail: int = 0
    signed: bool = False
    shifted: bool = False
    finish: IntegerFinish = SUMS

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        t, form = self.tile, f"{'s' if self.signed else 'u'}8{' shifted' if self.shifted else ''}"
        form = f"{self.source} {self.dots.kind}{self.dots.lanes} {t.rows}x{t.vectors} +{self.tail} {form}"
        return f"integers {form} {self.finish.structure}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _Product(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Product:
    def __init__(self, kernel: IntegerKernel, b: Builder) -> None:
        self.kernel, self.b, self.tile, self.dots = kernel, b, kernel.tile, kernel.dots
        self.at = Lanes(b, kernel.dots.lanes)
        self.width = self.tile.vectors * self.at.lanes
        names = PIXEL_PARAMS if kernel.source == "pixels" else ROW_PARAMS
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(names)}
        cursor = len(names)
        self.strides = []
        for operand in kernel.finish.operands:
            self.strides.append(b.load_i64("%params", cursor) if operand.reach == "full" else "0")
            cursor += operand.reach == "full"
        self.taps = b.element("i64", "%params", str(cursor))

    def emit(self) -> None:
        b, p, kernel = self.b, self.p, self.kernel
        fixed, count = 5 if kernel.shifted else 4, len(kernel.finish.operands)
        found = buffers(b, fixed + count + len(kernel.finish.results))
        self.source, self.weights, self.column_sums, zero = found[:4]
        self.shifts = found[4] if kernel.shifted else ""
        self.operands, self.results = found[fixed : fixed + count], found[fixed + count :]
        point = b.op(f"load i8, ptr {zero}, align 1")
        wide = b.op(f"{'sext' if kernel.signed else 'zext'} i8 {point} to i32")
        self.zero = self.at.splat("i32", b.op(f"add i32 {wide}, {128 if kernel.signed else 0}"))
        self.spill = b.op(f"alloca [{self.tile.rows * self.width} x i32], align 64")
        self.panels = b.integer(f"sdiv {add(b, p['columns'], self.width - 1)}, {self.width}")
        groups = add(b, p["run"], 1) if kernel.tail else p["run"]
        if kernel.source == "pixels":
            groups = mul(b, groups, p["taps"])
        self.panel_bytes = mul(b, groups, self.width * self.dots.group_bytes)
        with Loop(b, "%begin", "%end") as item:
            self._item(item)

    def _item(self, item: str) -> None:
        b, p = self.b, self.p
        pixels = self.kernel.source == "pixels"
        total = p["group_panels"] if pixels else self.panels
        block, panel = b.integer(f"sdiv {item}, {total}"), b.integer(f"srem {item}, {total}")
        weights = b.element("i8", self.weights, mul(b, panel, self.panel_bytes))
        source, local, first = self.source, panel, "0"
        if pixels:
            group, local = b.integer(f"sdiv {panel}, {self.panels}"), b.integer(f"srem {panel}, {self.panels}")
            first = mul(b, group, p["columns"])
            source = b.element("i8", source, mul(b, group, p["group_depth"]))
        inside = mul(b, local, self.width)
        first, left = add(b, first, inside), b.integer(f"sub {p['columns']}, {inside}")
        low = mul(b, block, p["block"])
        high = least(b, add(b, low, p["block"]), p["rows"])
        starts = self._starts(mul(b, panel, self.width))
        with Loop(b, low, high, self.tile.rows) as row:
            self._tile(row, b.integer(f"sub {high}, {row}"), source, weights, starts, first, left, panel)

    def _per_column(self, base: str, first: str) -> list[V]:
        b, at = self.b, self.at
        places = [b.element("i32", base, add(b, first, v * at.lanes)) for v in range(self.tile.vectors)]
        return [at.wrap("i32", f"load {at.type('i32')}, ptr {place}, align 4") for place in places]

    def _starts(self, first: str) -> list[V]:
        """What sums begin with: less the zero point times the sum of the column."""
        return [-(total * self.zero) for total in self._per_column(self.column_sums, first)]

    def _tile(
        self, row: str, rest: str, source: str, weights: str, starts: list[V], first: str, left: str, panel: str
    ) -> None:
        b, p, size = self.b, self.p, self.tile.rows
        valid = least(b, rest, size)
        operands = tuple(
            base
            if operand.reach == "single"
            else self._element(operand.dtype, base, first if operand.reach == "column" else self._at(row, s, first))
            for operand, base, s in zip(self.kernel.finish.operands, self.operands, self.strides, strict=True)
        )
        place = self._at(row, p["stride"], first)
        pairs = zip(self.results, self.kernel.finish.results, strict=True)
        results = tuple(self._element(dtype, base, place) for base, dtype in pairs)
        sums = [v.name for v in starts] * size + ["zeroinitializer"] * (size if self.kernel.shifted else 0)
        if self.kernel.source == "rows":
            pointers = row_pointers(b, size, valid, source, row, p["source_stride"], "i8")
            sums, _ = self._run(pointers, weights, sums)
        else:
            sums = self._taps(pixel_pointers(b, p, size, row, valid, source, "i8"), weights, sums)
        totals = [V(self.at, "i32", s) for s in sums]
        if self.kernel.shifted:
            totals = self._less_shifts(totals, mul(b, panel, self.width))
        places = Places(results, p["stride"], operands, tuple(self.strides))
        store_tile(self.at, self.tile, totals, self.kernel.finish, places, self.spill, valid, left)

    def _at(self, row: str, stride: str, first: str) -> str:
        return add(self.b, mul(self.b, row, stride), first)

    def _element(self, dtype: str, base: str, position: str) -> str:
        return self.b.element(stored(dtype), base, position)

    def _less_shifts(self, totals: list[V], first: str) -> list[V]:
        """Sums less the shift of the column times the sum of the row."""
        vectors, shifts = self.tile.vectors, self._per_column(self.shifts, first)
        count = self.tile.rows * vectors
        return [total - shifts[k % vectors] * totals[count + k // vectors] for k, total in enumerate(totals[:count])]

    def _run(self, pointers: list[str], panel: str, sums: list[str]) -> tuple[list[str], str]:
        """Add the products of one run of the depth; returns the sums and where the panel goes on."""
        b, vector = self.b, self.at.type("i32")
        size = self.width * self.dots.group_bytes
        carried = [("ptr", panel), *((vector, s) for s in sums)]
        run = self.p["run"]
        whole = "0" if b.brief else b.integer(f"and {run}, {-_UNROLL}")
        for low, high, step in (("0", whole, _UNROLL), (whole, run, 1)):
            if high == "0":
                continue
            loop = Loop(b, low, high, step, carried)
            k, (place, *values) = loop.open()
            starts = [b.element("i32", pointer, k) for pointer in pointers]
            for u in range(step):
                words = [b.op(f"load i32, ptr {b.element('i32', s, str(u))}, align 1") for s in starts]
                values = self._turn(words, b.element("i8", place, str(u * size)), values)
            ended = loop.close([b.element("i8", place, str(step * size)), *values])
            carried = [("ptr", ended[0]), *((vector, v) for v in ended[1:])]
        place, values = carried[0][1], [value for _, value in carried[1:]]
        if self.kernel.tail:
            words = [self._last(b.element("i32", pointer, run)) for pointer in pointers]
            values, place = self._turn(words, place, values), b.element("i8", place, str(size))
        return values, place

    def _turn(self, words: list[str], panel: str, sums: list[str]) -> list[str]:
        kernel = self.kernel
        return self.dots.turn(self.at, self.tile, words, panel, sums, signed=kernel.signed, rows=kernel.shifted)

    def _last(self, pointer: str) -> str:
        """The bytes that are left of a row; signed ones are moved up later, so what is missing must come out as 0."""
        b, tail = self.b, self.kernel.tail
        empty = 0x80808080 & ~((1 << 8 * tail) - 1) if self.kernel.signed else 0
        word = str(empty - (1 << 32) if empty >> 31 else empty)
        for k in range(tail):
            byte = b.op(f"load i8, ptr {b.element('i8', pointer, str(k))}, align 1")
            wide = b.op(f"shl i32 {b.op(f'zext i8 {byte} to i32')}, {8 * k}")
            word = b.op(f"or i32 {word}, {wide}")
        return word

    def _taps(self, pointers: list[str], weights: str, sums: list[str]) -> list[str]:
        b, vector = self.b, self.at.type("i32")
        loop = Loop(b, "0", self.p["taps"], 1, [("ptr", weights), *((vector, s) for s in sums)])
        tap, (panel, *values) = loop.open()
        offset = b.op(f"load i64, ptr {b.element('i64', self.taps, tap)}")
        moved = [b.element("i8", pointer, offset) for pointer in pointers]
        values, panel = self._run(moved, panel, values)
        return loop.close([panel, *values])[1:]
