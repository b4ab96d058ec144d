"""3x3 convolutions by Winograd's minimal filtering.

Tiles of 4x4 results from 6x6 inputs take 36 products instead of 144. Their six points are 0, 3/4, -3/4, 3/2, -3/2 and
infinity: all coefficients of the transforms are exact in float32, and over sums of 64 to 256 channels the error is some
two times that of the direct sum (with 0, 1, -1, 2, -2 it is five times). Tiles of 2x2 results (points 0, 1, -1 and
infinity) take 16 products instead of 36 and less memory for the filters: the better choice for deep, small images.

An infinity or a NaN in the input makes NaNs of the whole tile it falls into.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import (
    Loop,
    add,
    buffers,
    each,
    floats,
    least,
    load_vector,
    mul,
    store_vector,
    when,
)
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import (
    PLAIN,
    Finish,
    Tile,
    accumulate,
    each_tile,
    row_pointers,
    store_sums,
)
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "WINOGRAD_PARAMS",
    "WinogradKernel",
    "combined",
    "filter_lines",
    "filter_matrix",
    "spread_gradient",
    "spread_image",
]

_P, _Q = 0.75, 1.5
_FINITE = {4: (0.0, _P, -_P, _Q, -_Q), 2: (0.0, 1.0, -1.0)}
WINOGRAD_PARAMS = (
    "depth", "columns", "height", "width", "out_height", "out_width", "tiles_y", "tiles_x", "tiles", "block",
    "panels", "group", "groups", "pad_y", "pad_x", "source_image", "source_y", "source_x", "slot", "apart",
    "result_image", "result_y", "result_x",
)  # fmt: skip


@cache
def filter_matrix(out: int) -> np.ndarray[Any, Any]:
    """The map from the nine weights of a filter to its products, for tiles of ``out`` x ``out`` results.

    Example:
        >>> filter_matrix(2).shape, filter_matrix(4).shape
        ((16, 9), (36, 9))
    """
    line = filter_lines(out)
    return np.kron(line, line)


def filter_lines(out: int) -> np.ndarray[Any, Any]:
    """The map from three weights in a line to the points.

    Example:
        >>> filter_lines(2).tolist()
        [[-1.0, -0.0, -0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    points = _FINITE[out]
    rows = [[p**k / np.prod([p - q for q in points if q != p]) for k in range(3)] for p in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class WinogradKernel:
    """A 3x3 convolution of stride 1, channels last.

    bufs: source, zeros (one per channel), packed filters, scratch, operands of the finish, result. params:
    WINOGRAD_PARAMS, then the strides (image, line, pixel) of every operand of the finish, zeros for one with an element
    for each column: operands of both kinds have the same code. Filters are packed by panels of columns,
    in each panel the products one after the other. rows: items, that is blocks of tiles times groups of panels,
    groups fastest. An item transforms its tiles (once for all its neighbours in the same call) into a scratch slot of
    ``slot`` floats, the one numbered begin / ``apart``: calls under way at the same time begin so many items apart.

    With ``run``, products are summed over so many channels at a time, and those sums added: the error of sums over all
    channels one after the other is most of what the method loses.
    """

    tile: Tile
    out: int = 4
    finish: Finish = PLAIN
    run: int = 0

    @property
    def products(self) -> int:
        """Products of one tile."""
        return (self.out + 2) ** 2

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        t, f = self.tile, self.finish
        return f"winograd{self.out} {t.rows}x{t.vectors} run{self.run} {len(f.operands)} {f.structure}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Winograd(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def slot(self, lanes: int, block: int, depth: int) -> int:
        """Floats of one scratch slot."""
        return self.products * (block * depth + (block + self.tile.rows) * self.tile.vectors * lanes)


class _Winograd:
    def __init__(self, kernel: WinogradKernel, b: Builder) -> None:
        self.kernel, self.b, self.tile = kernel, b, kernel.tile
        self.out, self.side, self.number = kernel.out, kernel.out + 2, kernel.products
        self.at = Lanes(b, b.host.lanes(4))
        self.width = self.tile.vectors * self.at.lanes
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(WINOGRAD_PARAMS)}
        after = len(WINOGRAD_PARAMS)
        self.strides = [
            tuple(b.load_i64("%params", after + 3 * operand + k) for k in range(3))
            for operand in range(len(kernel.finish.operands))
        ]

    def emit(self) -> None:
        b, p = self.b, self.p
        self.source, self.zeros, self.filters, scratch, *self.operands, self.result = buffers(
            b, 5 + len(self.kernel.finish.operands)
        )
        self.places = b.op(f"alloca [{self.number} x ptr], align 64")
        self.temp = b.op(f"alloca [{self.number * self.at.lanes} x float], align 64")
        self.spread = floats(b, scratch, mul(b, b.integer(f"udiv %begin, {p['apart']}"), p["slot"]))
        self.sums = floats(b, self.spread, mul(b, mul(b, p["block"], p["depth"]), self.number))
        # Rows of one product in the scratch: the block's tiles and room for the overhang of the last register tile.
        self.apart = mul(b, add(b, p["block"], self.tile.rows), self.width)
        loop = Loop(b, "%begin", "%end", 1, [("i64", "-1")])
        item, (before,) = loop.open()
        block, group = b.integer(f"sdiv {item}, {p['groups']}"), b.integer(f"srem {item}, {p['groups']}")
        low = mul(b, block, p["block"])
        count = least(b, b.integer(f"sub {p['tiles']}, {low}"), p["block"])
        with when(b, b.op(f"icmp ne i64 {block}, {before}")), Loop(b, "0", count) as t:
            self._transform_tile(t, add(b, low, t))
        first = mul(b, group, p["group"])
        with Loop(b, first, least(b, add(b, first, p["group"]), p["panels"])) as panel:
            self._multiply(panel, count)
            column = mul(b, panel, self.width)
            left = b.integer(f"sub {p['columns']}, {column}")
            with Loop(b, "0", count) as t:
                self._gather_tile(t, add(b, low, t), column, left)
        loop.close([block])

    # ------------------------------------------------------------------ inputs

    def _position(self, tile: str) -> tuple[str, str, str]:
        """Image, first line and first column of a tile of results."""
        b, p = self.b, self.p
        x, line = b.integer(f"urem {tile}, {p['tiles_x']}"), b.integer(f"udiv {tile}, {p['tiles_x']}")
        y, image = b.integer(f"urem {line}, {p['tiles_y']}"), b.integer(f"udiv {line}, {p['tiles_y']}")
        return image, mul(b, y, self.out), mul(b, x, self.out)

    def _transform_tile(self, slot: str, tile: str) -> None:
        b, p = self.b, self.p
        image, y, x = self._position(tile)
        y, x = b.integer(f"sub {y}, {p['pad_y']}"), b.integer(f"sub {x}, {p['pad_x']}")
        self._find_places(image, y, x)
        target = floats(b, self.spread, mul(b, slot, p["depth"]))
        apart = mul(b, p["block"], p["depth"])
        with Loop(b, "0", p["depth"], self.at.lanes) as c:
            self._transform_channels(c, floats(b, target, c), apart)

    def _find_places(self, image: str, y: str, x: str) -> None:
        """Addresses of the pixels of a tile; the zeros stand for those outside."""
        b, p = self.b, self.p
        base = floats(b, self.source, mul(b, image, p["source_image"]))
        columns = [add(b, x, j) for j in range(self.side)]
        inside = [b.op(f"icmp ult i64 {c}, {p['width']}") for c in columns]
        offsets = [mul(b, c, p["source_x"]) for c in columns]

        def find(i: str) -> None:
            line = add(b, y, i)
            good = b.op(f"icmp ult i64 {line}, {p['height']}")
            start = mul(b, line, p["source_y"])
            for j in range(self.side):
                place = floats(b, base, add(b, start, offsets[j]))
                both = b.op(f"and i1 {good}, {inside[j]}")
                chosen = b.op(f"select i1 {both}, ptr {place}, ptr {self.zeros}")
                b.do(f"store ptr {chosen}, ptr {b.element('ptr', self.places, self._number(i, j))}")

        each(b, self.side, find)

    def _number(self, i: str | int, j: str | int, width: int = 0, unit: int = 1) -> str:
        """The place of element j of line i in a square of points, or in lines of ``width``."""
        b = self.b
        return mul(b, add(b, mul(b, str(i), width or self.side), j), unit)

    def _transform_channels(self, channel: str, target: str, apart: str) -> None:
        b, at, lanes = self.b, self.at, self.at.lanes

        def line(i: str) -> None:
            values = []
            for j in range(self.side):
                place = b.op(f"load ptr, ptr {b.element('ptr', self.places, self._number(i, j))}")
                values.append(load_vector(at, floats(b, place, channel)))
            for j, value in enumerate(spread_image(values)):
                store_vector(at, value, floats(b, self.temp, self._number(i, j, unit=lanes)))

        def column(j: str) -> None:
            places = [floats(b, self.temp, self._number(i, j, unit=lanes)) for i in range(self.side)]
            for i, value in enumerate(spread_image([load_vector(at, place) for place in places])):
                store_vector(at, value, floats(b, target, mul(b, apart, self._number(i, j))))

        each(b, self.side, line)
        each(b, self.side, column)

    # ------------------------------------------------------------------ products

    def _multiply(self, panel: str, count: str) -> None:
        b, p = self.b, self.p
        size = mul(b, p["depth"], self.width)
        filters = floats(b, self.filters, mul(b, panel, mul(b, size, self.number)))
        apart = mul(b, p["block"], p["depth"])
        with Loop(b, "0", str(self.number)) as point:
            weights = floats(b, filters, mul(b, point, size))
            source = floats(b, self.spread, mul(b, point, apart))
            target = floats(b, self.sums, mul(b, point, self.apart))
            each_tile(
                b,
                self.tile,
                "0",
                count,
                lambda size, row, rest: self._product(size, row, rest, source, weights, target),
            )

    def _product(self, size: int, row: str, rest: str, source: str, weights: str, target: str) -> None:
        b, depth, run = self.b, self.p["depth"], self.kernel.run
        pointers = row_pointers(b, size, least(b, rest, size), source, row, depth)
        start = floats(b, target, mul(b, row, self.width))
        if not run:
            self._sum(pointers, weights, depth, start, "false")
            return
        with Loop(b, "0", depth, run) as k:
            some = [floats(b, pointer, k) for pointer in pointers]
            count = least(b, b.integer(f"sub {depth}, {k}"), run)
            self._sum(some, floats(b, weights, mul(b, k, self.width)), count, start, b.op(f"icmp ne i64 {k}, 0"))

    def _sum(self, pointers: Sequence[str], weights: str, depth: str, target: str, more: str) -> None:
        """Products of so many channels, stored, or if ``more`` added to those that are there."""
        at = self.at
        sums = ["zeroinitializer"] * (len(pointers) * self.tile.vectors)
        sums, _ = accumulate(at, self.tile, pointers, weights, depth, sums)
        store_sums(at, [V(at, "float", total) for total in sums], target, more)

    # ------------------------------------------------------------------ results

    def _gather_tile(self, slot: str, tile: str, column: str, left: str) -> None:
        b, p, lanes = self.b, self.p, self.at.lanes
        image, y, x = self._position(tile)
        source = floats(b, self.sums, mul(b, slot, self.width))
        bounds = (
            least(b, b.integer(f"sub {p['out_height']}, {y}"), self.out),
            least(b, b.integer(f"sub {p['out_width']}, {x}"), self.out),
        )
        here = self._start(self.result, image, y, x, ("result_image", "result_y", "result_x"))
        theirs = [floats(b, o, self._offset(image, y, x, s)) for o, s in zip(self.operands, self.strides, strict=True)]
        # A loop, not so many copies of its body: they would be most of the module.
        with Loop(b, "0", least(b, left, self.width), lanes) as v:
            self._gather_lanes(floats(b, source, v))
            at_column = add(b, column, v)
            starts = [floats(b, place, at_column) for place in (here, *theirs)]
            self._store_lanes(starts, bounds, b.integer(f"sub {left}, {v}"))

    def _offset(self, image: str, y: str, x: str, strides: Sequence[str]) -> str:
        b = self.b
        return add(b, add(b, mul(b, image, strides[0]), mul(b, y, strides[1])), mul(b, x, strides[2]))

    def _start(self, base: str, image: str, y: str, x: str, names: Sequence[str]) -> str:
        return floats(self.b, base, self._offset(image, y, x, [self.p[n] for n in names]))

    def _gather_lanes(self, source: str) -> None:
        """The results of one vector of columns, into the temporary."""
        b, at, lanes = self.b, self.at, self.at.lanes

        def line(i: str) -> None:
            places = [floats(b, source, mul(b, self.apart, self._number(i, j))) for j in range(self.side)]
            for j, value in enumerate(_collected([load_vector(at, place) for place in places])):
                store_vector(at, value, floats(b, self.temp, self._number(i, j, self.out, lanes)))

        each(b, self.side, line)
        columns = []
        for j in range(self.out):
            values = [load_vector(at, floats(b, self.temp, (i * self.out + j) * lanes)) for i in range(self.side)]
            columns.append(_collected(values))
        for j, results in enumerate(columns):
            for i, value in enumerate(results):
                store_vector(at, value, floats(b, self.temp, (i * self.out + j) * lanes))

    def _store_lanes(self, starts: Sequence[str], bounds: tuple[str, str], left: str) -> None:
        """Finish the results that lie inside the image."""
        b, at = self.b, self.at
        wide, narrow, done = b.label("wide"), b.label("narrow"), b.label("stored")
        forms = ((wide, False), (narrow, True))
        if b.brief:
            forms = forms[1:]
            b.jump(narrow)
        else:
            b.branch(b.op(f"icmp sge i64 {left}, {at.lanes}"), wide, narrow)
        for label, masked in forms:
            b.place(label)
            mask = at.iota("0", "i64").cmp("slt", at.splat("i64", left)) if masked else None
            with Loop(b, "0", bounds[0]) as i, Loop(b, "0", bounds[1]) as j:
                self._store_result(starts, i, j, mask)
            b.jump(done)
        b.place(done)

    def _store_result(self, starts: Sequence[str], i: str, j: str, mask: V | None) -> None:
        b, at, p = self.b, self.at, self.p
        position = mul(b, add(b, mul(b, i, self.out), j), at.lanes)
        value = load_vector(at, floats(b, self.temp, position))

        def operand(which: int) -> V:
            strides = self.strides[which]
            moved = add(b, mul(b, i, strides[1]), mul(b, j, strides[2]))
            return load_vector(at, floats(b, starts[1 + which], moved), mask)

        moved = add(b, mul(b, i, p["result_y"]), mul(b, j, p["result_x"]))
        store_vector(at, self.kernel.finish.apply(value, operand), floats(b, starts[0], moved), mask)


def spread_image(d: Sequence[V]) -> list[V]:
    """Inputs in a line as values at the points."""
    if len(d) == 4:
        return [d[2] - d[0], d[2] + d[1], d[2] - d[1], d[3] - d[1]]
    at, p, q = d[0].at, _P * _P, _Q * _Q
    even, odd = at.fma(d[2], -q, d[4]), at.fma(d[1], -q, d[3])
    even2, odd2 = at.fma(d[2], -p, d[4]), at.fma(d[1], -p, d[3])
    return [
        at.fma(d[0], p * q, at.fma(d[2], -(p + q), d[4])),
        at.fma(odd, _P, even),
        at.fma(odd, -_P, even),
        at.fma(odd2, _Q, even2),
        at.fma(odd2, -_Q, even2),
        at.fma(d[1], p * q, at.fma(d[3], -(p + q), d[5])),
    ]


def _collected(m: Sequence[V]) -> list[V]:
    """Results in a line from values at the points."""
    if len(m) == 4:
        return [m[0] + m[1] + m[2], m[1] - m[2] + m[3]]
    at = m[0].at
    plus, minus = m[1] + m[2], m[1] - m[2]
    plus2, minus2 = m[3] + m[4], m[3] - m[4]
    return [
        m[0] + plus + plus2,
        at.fma(minus2, _Q, minus * _P),
        at.fma(plus2, _Q**2, plus * _P**2),
        at.fma(minus2, _Q**3, at.fma(minus, _P**3, m[5])),
    ]


def spread_gradient(y: Sequence[V]) -> list[V]:
    """Results in a line as values at the points: the transpose of what collects results."""
    if len(y) == 2:
        return [y[0], y[0] + y[1], y[0] - y[1], y[1]]
    at = y[0].at
    pairs = []
    for point in (_P, _Q):
        even = at.fma(y[2], point**2, y[0])
        odd = at.fma(y[3], point**3, y[1] * point)
        pairs += [even + odd, even - odd]
    return [y[0], *pairs, y[3]]


def combined(values: Sequence[V], factors: Sequence[float]) -> V:
    """The sum of values by factors, those of zero left out."""
    total: V | None = None
    for value, factor in zip(values, factors, strict=True):
        if factor:
            total = value * float(factor) if total is None else value.at.fma(value, float(factor), total)
    assert total is not None
    return total
