"""Row kernels as vector LLVM IR.

A pass over a row is a loop of whole vectors and one masked vector for the rest. A light reduction takes several vectors
a turn, so that additions need not wait for each other, and masked ones for the rest. Elsewhere more vectors a turn gave
nothing in time and doubled that of compilation.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir import instructions as ops
from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.kernel_program import Map, Reduce, Scalar, itemsize, roots_of, walk
from pyflame_rt.backends.cpu.ir.loops import least, loop
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Expr, Reduction, RowKernel, Store
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["SIGNATURE", "RowSpace", "emit_rows"]

SIGNATURE = "void @{name}(ptr %bufs, ptr %params, i64 %begin, i64 %end)"
_LIGHT = 24  # nodes of a body that is worth repeating
_UNROLL = 4
_BLOCK = 256  # turns whose sum is rounded by itself


def emit_rows(kernel: RowKernel, name: str, host: Host | None = None) -> str:
    """The module of a row kernel, as text."""
    builder = Builder(host or this_host())
    builder.begin()
    _RowEmitter(kernel, builder).emit()
    builder.end(SIGNATURE.format(name=name))
    return builder.text()


@dataclass(frozen=True)
class _Place:
    """Where an operand is in this row: its address and inner stride."""

    pointer: str
    stride: str


class RowSpace:
    """Walks rows [begin, end) of an outer space in row-major order, keeping one offset per operand."""

    def __init__(self, b: Builder, dims: Sequence[str], strides: Sequence[Sequence[str]]) -> None:
        self._b, self._dims, self._strides = b, dims, strides

    def open(self) -> list[str]:
        """Start the loop; gives the offsets of the row."""
        b, rank = self._b, len(self._dims)
        empty, start, self._done = b.op("icmp sge i64 %begin, %end"), b.label("start"), b.label("finished")
        b.branch(empty, self._done, start)
        b.place(start)
        position = self._split(rank)
        offsets = [self._offset(position, strides) for strides in self._strides]
        # When axis k wraps, an offset moves by the stride of axis k - 1 and back over the whole of axis k.
        self._carries = [
            ["", *(b.integer(f"sub {s[k - 1]}, {b.integer(f'mul {self._dims[k]}, {s[k]}')}") for k in range(1, rank))]
            for s in self._strides
        ]
        self._loop, origin = b.label("row"), b.block
        b.jump(self._loop)
        b.place(self._loop)
        self._row = b.phi("i64", ("%begin", origin))
        self._position = [b.phi("i64", (p, origin)) for p in position]
        self._offsets = [b.phi("i64", (o, origin)) for o in offsets]
        return self._offsets

    @property
    def position(self) -> list[str]:
        """The multi-index of the row."""
        return self._position

    @property
    def row(self) -> str:
        """The number of the row."""
        return self._row

    def _split(self, rank: int) -> list[str]:
        position, rest = ["0"] * rank, "%begin"
        for k in range(rank - 1, 0, -1):
            position[k] = self._b.integer(f"urem {rest}, {self._dims[k]}")
            rest = self._b.integer(f"udiv {rest}, {self._dims[k]}")
        position[0] = rest
        return position

    def _offset(self, position: Sequence[str], strides: Sequence[str]) -> str:
        total = "0"
        for index, stride in zip(position, strides, strict=True):
            total = self._b.integer(f"add {total}, {self._b.integer(f'mul {index}, {stride}')}")
        return total

    def close(self) -> None:
        """Go to the next row; after the last, leave the function."""
        b, rank = self._b, len(self._dims)
        offsets = [b.integer(f"add {o}, {s[-1]}") for o, s in zip(self._offsets, self._strides, strict=True)]
        position = list(self._position)
        position[-1] = b.integer(f"add {position[-1]}, 1")
        for k in range(rank - 1, 0, -1):
            wraps = b.op(f"icmp eq i64 {position[k]}, {self._dims[k]}")
            position[k] = b.op(f"select i1 {wraps}, i64 0, i64 {position[k]}")
            position[k - 1] = b.integer(f"add {position[k - 1]}, {b.op(f'zext i1 {wraps} to i64')}")
            for which, carries in enumerate(self._carries):
                step = b.op(f"select i1 {wraps}, i64 {carries[k]}, i64 0")
                offsets[which] = b.integer(f"add {offsets[which]}, {step}")
        row = b.integer(f"add {self._row}, 1")
        news = (row, *position, *offsets)
        for phi, value in zip((self._row, *self._position, *self._offsets), news, strict=True):
            b.add_incoming(phi, value, b.block)
        b.branch(b.op(f"icmp slt i64 {row}, %end"), self._loop, self._done)
        b.place(self._done)
        b.do("ret void")


class _RowEmitter:
    def __init__(self, kernel: RowKernel, builder: Builder) -> None:
        self.kernel, self.b = kernel, builder
        widest = max((itemsize(o.dtype) for o in kernel.operands), default=4)
        used = [itemsize(node.dtype) for stage in kernel.stages for node in walk(roots_of(stage))]
        self.wide = Lanes(builder, builder.host.lanes(max(widest, *used, 1)))
        self.one = Lanes(builder, 1)
        self.flags = "contract " if kernel.fast else ""
        self.scalars: dict[str, V] = {}
        self.places: list[_Place] = []
        self._bounds: dict[tuple[str, str, int], str] = {}
        self.n = ""

    def emit(self) -> None:
        b, rank, operands = self.b, self.kernel.outer_rank, self.kernel.operands
        bases = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(len(operands))]
        self.n = b.load_i64("%params", 0)
        dims = [b.load_i64("%params", 1 + k) for k in range(rank)]
        cursor, strides, inner = 1 + rank, [], []
        for operand in operands:
            strides.append([b.load_i64("%params", cursor + k) for k in range(rank)])
            inner.append(b.load_i64("%params", cursor + rank) if operand.inner == "strided" else "1")
            cursor += rank + (operand.inner == "strided")
        if rank == 0:
            self.places = [_Place(base, stride) for base, stride in zip(bases, inner, strict=True)]
            self._stages("%begin", "%end")
            b.do("ret void")
            return
        for unroll in (1, _UNROLL):
            self.bound("0", self.n, unroll)
        rows = RowSpace(b, dims, strides)
        offsets = rows.open()
        # Frozen, the address is opaque to LLVM's loop analyses, which else spend a third of the compile time on it.
        self.places = [
            _Place(b.op(f"freeze ptr {b.element(ops.stored(operand.dtype), base, offset)}"), stride)
            for operand, base, offset, stride in zip(operands, bases, offsets, inner, strict=True)
        ]
        self._stages("0", self.n)
        rows.close()

    def bound(self, low: str, high: str, unroll: int) -> str:
        """Where a loop of so many vectors a turn stops, between low and high; computed once."""
        key = (low, high, unroll)
        if key not in self._bounds:
            b = self.b
            whole = b.integer(f"and {b.integer(f'sub {high}, {low}')}, {-unroll * self.wide.lanes}")
            self._bounds[key] = b.integer(f"add {low}, {whole}")
        return self._bounds[key]

    def _stages(self, low: str, high: str) -> None:
        for stage in self.kernel.stages:
            match stage:
                case Map(stores):
                    _Pass(self, stage, stores, ()).emit(low, high)
                case Reduce(reductions, stores):
                    _Pass(self, stage, stores, reductions).emit(low, high)
                case Scalar(name, value, store):
                    self.scalars[name] = self.invariant(value, {})
                    if store is not None:
                        self._store_scalar(store, self.scalars[name])

    def _store_scalar(self, operand: int, value: V) -> None:
        result = ops.to_memory(value, self.kernel.operands[operand].dtype)
        self.b.do(f"store {result.kind} {result.name}, ptr {self.places[operand].pointer}, align 1")

    def invariant(self, root: Expr, known: dict[int, V]) -> V:
        """An expression that is the same for the whole row, on one lane."""
        for node in walk([root]):
            if id(node) not in known:
                args = [known[id(a)] for a in node.args]
                known[id(node)] = ops.emit(node, args, self.flags) if args else self._leaf(node)
        return known[id(root)]

    def constant(self, node: Expr, at: Lanes) -> V:
        """A constant in every lane."""
        assert node.value is not None
        assert not isinstance(node.value, str)
        return at.const(ops.element(node.dtype), node.value)

    def _leaf(self, node: Expr) -> V:
        match node.op:
            case "const":
                return self.constant(node, self.one)
            case "scalar":
                return self.scalars[str(node.value)]
            case "count":
                return ops.convert(V(self.one, "i64", self.n), "int64", node.dtype)
            case _:
                assert isinstance(node.value, int)
                operand, place = self.kernel.operands[node.value], self.places[node.value]
                kind = ops.stored(operand.dtype)
                return ops.from_memory(self.one.wrap(kind, f"load {kind}, ptr {place.pointer}, align 1"), operand.dtype)


class _Pass:
    """One loop over the inner axis."""

    def __init__(
        self, rows: _RowEmitter, stage: Map | Reduce, stores: Sequence[Store], folds: Sequence[Reduction]
    ) -> None:
        self.rows, self.b, self.at = rows, rows.b, rows.wide
        self.stores, self.folds = stores, folds
        self.nodes = list(walk(roots_of(stage)))
        self.fixed: dict[int, V] = {}
        light = len(self.nodes) <= _LIGHT and not any(node.op in ops.HEAVY for node in self.nodes)
        self.unroll = _UNROLL if light and folds and not stores else 1

    def emit(self, low: str, high: str) -> None:
        self._hoist()
        self.high = high
        accumulators = [[self._identity(fold) for fold in self.folds] for _ in range(self.unroll)]
        middle = self.rows.bound(low, high, self.unroll)
        accumulators = (
            self._blocks(low, middle, accumulators) if self._rounds() else self._loop(low, middle, accumulators)
        )
        accumulators = self._rest(middle, accumulators)
        for position, fold in enumerate(self.folds):
            total = self._total(fold, [chunk[position] for chunk in accumulators])
            self.rows.scalars[fold.name] = total

    def _hoist(self) -> None:
        """Compute what does not change along the row, once, and spread it over lanes."""
        varying: set[int] = set()
        for node in self.nodes:
            moving = node.op == "index" or any(id(a) in varying for a in node.args)
            if node.op == "load":
                assert isinstance(node.value, int)
                moving = self.rows.kernel.operands[node.value].inner != "zero"
            if moving:
                varying.add(id(node))
        known: dict[int, V] = {}
        roots = {id(root) for root in (*(s.value for s in self.stores), *(f.value for f in self.folds))}
        needed = {id(a) for node in self.nodes if id(node) in varying for a in node.args} | roots
        for node in self.nodes:
            if id(node) in varying or id(node) not in needed:
                continue
            value = self.rows.invariant(node, known)
            # A constant is a splat literal; what is computed is spread over the lanes.
            literal = self.rows.constant(node, self.at) if node.op == "const" else None
            self.fixed[id(node)] = literal or self.at.splat(value.elem, value.name)
        self.varying = [node for node in self.nodes if id(node) in varying]

    def _rounds(self) -> bool:
        """Whether a long row's fold gathers rounding errors: a sum of floats does."""
        return any(fold.kind == "sum" and ops.element(fold.value.dtype) in ("float", "double") for fold in self.folds)

    def _blocks(self, low: str, high: str, totals: list[list[V]]) -> list[list[V]]:
        """The loop in blocks that are folded from nothing: a running sum of millions loses what is added last."""
        b, folds = self.b, self.folds
        size = _BLOCK * len(totals) * self.at.lanes

        def block(start: str, before: list[V]) -> list[V]:
            stop = least(b, b.integer(f"add {start}, {size}"), high)
            parts = self._loop(start, stop, [[self._identity(fold) for fold in folds] for _ in totals])
            each = zip(list(folds) * len(totals), before, chain.from_iterable(parts), strict=True)
            return [self._fold(fold, old, part, None) for fold, old, part in each]

        flat = loop(b, low, high, size, list(chain.from_iterable(totals)), block)
        return [flat[i : i + len(folds)] for i in range(0, len(flat), len(folds))]

    def _loop(self, low: str, high: str, accumulators: list[list[V]], *, masked: bool = False) -> list[list[V]]:
        """Turns of as many vectors as there are accumulators."""
        b = self.b
        loop, done, origin = b.label("loop"), b.label("done"), b.block
        b.branch(b.op(f"icmp slt i64 {low}, {high}"), loop, done)
        b.place(loop)
        i = b.phi("i64", (low, origin))
        phis = [[self._phi(v, origin) for v in chunk] for chunk in accumulators]
        news = self._body(i, phis, self._mask(i) if masked else None)
        following = b.integer(f"add {i}, {len(accumulators) * self.at.lanes}")
        b.add_incoming(i, following, b.block)
        for phi, value in _pairs(phis, news):
            b.add_incoming(phi.name, value.name, b.block)
        last = b.block
        b.branch(b.op(f"icmp slt i64 {following}, {high}"), loop, done)
        b.place(done)
        return self._join(accumulators, news, origin, last)

    def _rest(self, low: str, accumulators: list[list[V]]) -> list[list[V]]:
        if self.unroll > 1:
            return self._loop(low, self.high, accumulators[:1], masked=True) + accumulators[1:]
        b = self.b
        tail, done, origin = b.label("tail"), b.label("done"), b.block
        b.branch(b.op(f"icmp slt i64 {low}, {self.high}"), tail, done)
        b.place(tail)
        news = self._body(low, accumulators, self._mask(low))
        last = b.block
        b.jump(done)
        b.place(done)
        return self._join(accumulators, news, origin, last)

    def _mask(self, i: str) -> V:
        """The lanes from element i on that are elements."""
        left = self.b.op(f"trunc i64 {self.b.integer(f'sub {self.high}, {i}')} to i32")
        return self.at.iota("0", "i32").cmp("slt", self.at.splat("i32", left))

    def _phi(self, value: V, origin: str) -> V:
        return V(self.at, value.elem, self.b.phi(value.kind, (value.name, origin)))

    def _join(self, before: list[list[V]], after: list[list[V]], origin: str, last: str) -> list[list[V]]:
        return [
            [
                V(self.at, a.elem, self.b.phi(a.kind, (a.name, origin), (c.name, last)))
                for a, c in zip(x, y, strict=True)
            ]
            for x, y in zip(before, after, strict=True)
        ]

    def _body(self, i: str, accumulators: list[list[V]], mask: V | None) -> list[list[V]]:
        """Several vectors from element i on: all loads, then all arithmetic, then all stores."""
        b, lanes = self.b, self.at.lanes
        starts = [i] + [b.integer(f"add {i}, {k * lanes}") for k in range(1, len(accumulators))]
        loaded = [
            {id(node): self._load(node, start, mask) for node in self.varying if node.op == "load"} for start in starts
        ]
        computed = [self._compute(known, start) for known, start in zip(loaded, starts, strict=True)]
        for known, start in zip(computed, starts, strict=True):
            for store in self.stores:
                self._store(store, known[id(store.value)], start, mask)
        return [
            [self._fold(fold, old, known[id(fold.value)], mask) for fold, old in zip(self.folds, chunk, strict=True)]
            for chunk, known in zip(accumulators, computed, strict=True)
        ]

    def _compute(self, known: dict[int, V], start: str) -> dict[int, V]:
        known |= self.fixed
        for node in self.varying:
            if node.op == "index":
                known[id(node)] = self.at.iota(start)
            elif node.op != "load":
                known[id(node)] = ops.emit(node, [known[id(a)] for a in node.args], self.rows.flags)
        return known

    def _identity(self, fold: Reduction) -> V:
        return self.at.const(ops.element(fold.value.dtype), ops.identity(fold.kind, fold.value.dtype))

    def _fold(self, fold: Reduction, old: V, value: V, mask: V | None) -> V:
        if mask is not None:
            value = mask.where(value, self._identity(fold))
        return ops.combine(fold.kind, fold.value.dtype, old, value)

    def _total(self, fold: Reduction, parts: list[V]) -> V:
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [ops.combine(fold.kind, fold.value.dtype, a, c) for a, c in pairs]
        value = parts[0]
        while value.at.lanes > 1:
            half = Lanes(self.b, value.at.lanes // 2)
            low, high = (_half(value, half, k) for k in (0, half.lanes))
            value = ops.combine(fold.kind, fold.value.dtype, low, high)
        return value

    def _load(self, node: Expr, start: str, mask: V | None) -> V:
        assert isinstance(node.value, int)
        operand, place = self.rows.kernel.operands[node.value], self.rows.places[node.value]
        kind = ops.stored(operand.dtype)
        if operand.inner == "unit":
            address = self.b.element(kind, place.pointer, start)
            value = self._load_unit(kind, address, mask)
        elif mask is None:
            names = [self.b.op(f"load {kind}, ptr {a}, align 1") for a in self._addresses(kind, place, start)]
            value = self.at.gather_lanes(kind, names)
        else:
            pointers = self._pointers(kind, place, start)
            value = V(self.at, kind, self._masked_load("gather", kind, self.at.type("ptr"), pointers, mask))
        return ops.from_memory(value, operand.dtype)

    def _load_unit(self, kind: str, address: str, mask: V | None) -> V:
        if mask is None:
            return self.at.wrap(kind, f"load {self.at.type(kind)}, ptr {address}, align 1")
        return V(self.at, kind, self._masked_load("load", kind, "ptr", address, mask))

    def _masked_load(self, how: str, kind: str, pointer: str, address: str, mask: V) -> str:
        vector = self.at.type(kind)
        suffix = f"{self.at.suffix(kind)}.{'p0' if pointer == 'ptr' else self.at.suffix('ptr')}"
        args = [(pointer, address), ("i32", "1"), (mask.kind, mask.name), (vector, "zeroinitializer")]
        return self.b.call(vector, f"llvm.masked.{how}.{suffix}", args)

    def _store(self, store: Store, value: V, start: str, mask: V | None) -> None:
        operand, place = self.rows.kernel.operands[store.operand], self.rows.places[store.operand]
        value = ops.to_memory(value, operand.dtype)
        kind = value.elem
        if operand.inner == "strided":
            self._store_strided(value, place, start, mask)
            return
        address = self.b.element(kind, place.pointer, start)
        if mask is None:
            self.b.do(f"store {value.kind} {value.name}, ptr {address}, align 1")
            return
        args = [(value.kind, value.name), ("ptr", address), ("i32", "1"), (mask.kind, mask.name)]
        self.b.call("void", f"llvm.masked.store.{self.at.suffix(kind)}.p0", args)

    def _store_strided(self, value: V, place: _Place, start: str, mask: V | None) -> None:
        if mask is None:
            for lane, address in enumerate(self._addresses(value.elem, place, start)):
                self.b.do(f"store {value.elem} {self.at.lane(value, lane)}, ptr {address}, align 1")
            return
        pointers, kind = self._pointers(value.elem, place, start), self.at.type("ptr")
        args = [(value.kind, value.name), (kind, pointers), ("i32", "1"), (mask.kind, mask.name)]
        self.b.call("void", f"llvm.masked.scatter.{self.at.suffix(value.elem)}.{self.at.suffix('ptr')}", args)

    def _addresses(self, kind: str, place: _Place, start: str) -> list[str]:
        address = self.b.element(kind, place.pointer, self.b.integer(f"mul {start}, {place.stride}"))
        result = [address]
        while len(result) < self.at.lanes:
            result.append(self.b.element(kind, result[-1], place.stride))
        return result

    def _pointers(self, kind: str, place: _Place, start: str) -> str:
        offsets = self.at.iota(start) * self.at.splat("i64", place.stride)
        return self.b.op(f"getelementptr {kind}, ptr {place.pointer}, {offsets.kind} {offsets.name}")


def _half(value: V, half: Lanes, first: int) -> V:
    if half.lanes == 1:
        return V(half, value.elem, value.at.lane(value, first))
    order = ", ".join(f"i32 {first + k}" for k in range(half.lanes))
    return half.wrap(
        value.elem, f"shufflevector {value.kind} {value.name}, {value.kind} poison, <{half.lanes} x i32> <{order}>"
    )


def _pairs(a: list[list[V]], b: list[list[V]]) -> list[tuple[V, V]]:
    return [pair for x, y in zip(a, b, strict=True) for pair in zip(x, y, strict=True)]
