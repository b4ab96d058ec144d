"""Places, expressions and vector operations of native runs, as LLVM IR.

The generated Python is the reference: every value, every cycle and every count is the same. Integers are 64 bits wide
and reduced to their type after each operation, floats are rounded after each operation, vectors are walked element by
element. An access outside memory, an unaligned one and a division by zero end the function with a code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

import llvmlite.ir as ir

from wsesim.csl.program import typed_tree as T
from wsesim.csl.sema.types import DsdType, EnumType, FloatType, HandleType, IntType, PtrType, SimpleType, Type, size_of
from wsesim.fabric.bounds import CELLS
from wsesim.fabric.codegen.native_ops import NATIVE_OPS, element_size, emit_op
from wsesim.fabric.dsd import Mem, from_const
from wsesim.fabric.memory import MEMORY_BYTES
from wsesim.fabric.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wsesim.csl.program.elaborated import Function, PeProgram
    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.timing import Timing

__all__ = [
    "ASSERTED",
    "INDEX",
    "LENGTHS",
    "LOOK_CYCLES",
    "OUTSIDE",
    "STOPPED",
    "UNALIGNED",
    "ZERO_DIVISION",
    "Loop",
    "NativeExpressions",
    "Region",
    "Unsupported",
    "is_float",
    "is_vector",
    "scalar_type",
]

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR: Any = ir.PointerType()
OUTSIDE, UNALIGNED, ZERO_DIVISION, STOPPED, INDEX, LENGTHS = 1, 2, 3, 4, 5, 6
ASSERTED = 16  # and above: which of the region's assertions
LOOK_CYCLES = 1 << 21  # of native loops between two looks at the watchdog: a few milliseconds


class Unsupported(Exception):
    """This piece of the program stays Python."""


@dataclass(frozen=True)
class Region:
    """Statements that become one function: locals and descriptor globals go in and come out."""

    body: tuple[T.Stmt, ...]
    inputs: tuple[T.Local, ...]
    outputs: tuple[T.Local, ...]
    objects_in: tuple[str, ...]
    objects_out: tuple[str, ...]
    frame: bool


def is_vector(kind: Type) -> bool:
    """Whether a value is a one-dimensional memory descriptor."""
    return isinstance(kind, DsdType) and kind.name == "mem1d_dsd"


def is_float(kind: Type) -> bool:
    """Whether a value is ``f16`` or ``f32``."""
    return isinstance(kind, FloatType) and kind.name in ("f16", "f32")


def scalar_type(kind: Type) -> ir.Type:
    """The register type of a scalar."""
    match kind:
        case FloatType(name="f32"):
            return F32
        case FloatType(name="f16"):
            return F16
        case SimpleType(name="bool"):
            return I1
        case IntType(bits=bits) if 0 < bits <= 32:
            return I64
        case EnumType() | PtrType() | SimpleType(name="direction"):
            return I64
        case HandleType(name=name) if not name.startswith(("dsr", "xdsr", "sr")):
            return I64
        case _:
            raise Unsupported(str(kind))


@dataclass
class Loop:
    """A loop or labelled block that jumps may leave or continue."""

    label: str
    leave: ir.Block
    again: ir.Block
    step: tuple[T.Stmt, ...] = ()
    head: ir.Block | None = None  # where a `continue` goes that has run the step itself
    is_block: bool = False


@dataclass
class _Frame:
    """One function being written: the region, or a callee."""

    function: ir.Function
    builder: ir.IRBuilder
    places: dict[Any, Any] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    faults: dict[int, ir.Block] = field(default_factory=dict)
    result: Any = None
    leave: ir.Block | None = None


class NativeExpressions:
    """What statements are made of."""

    def __init__(
        self, program: PeProgram, bounds: Bounds, timing: Timing, arch: int, name: str, *, strict: bool
    ) -> None:
        self.program, self.bounds, self.timing, self.arch, self.name = program, bounds, timing, arch, name
        self.module = ir.Module(name)
        self.cost = 0
        self.active: list[str] = []
        self.frame_pointer: Any = None
        self.memory: Any = None
        self.cycles: Any = None
        self.ops: Any = None
        self.asserts: list[T.Assert] = []
        self.loose: Any = None
        self.strict = strict
        self.pe: Any = None
        self.table: Any = None
        self.due: Any = None

    def block(self, body: tuple[T.Stmt, ...]) -> None:
        """Statements (given by the statement writer)."""
        raise NotImplementedError

    def enter(self, function: ir.Function) -> _Frame:
        """A function's first block."""
        self.frame = _Frame(function, ir.IRBuilder(function.append_basic_block("entry")))
        return self.frame

    @property
    def b(self) -> ir.IRBuilder:
        """The builder."""
        return self.frame.builder

    def _slot(self, kind: ir.Type) -> Any:
        with self.b.goto_entry_block():
            return self.b.alloca(kind)

    def _local(self, var: T.Local) -> Any:
        key = var.index
        if key not in self.frame.places:
            kinds = [I64] * 3 if is_vector(var.type) else [scalar_type(var.type)]
            cells = [self._slot(k) for k in kinds]
            self.frame.places[key] = cells if is_vector(var.type) else cells[0]
        return self.frame.places[key]

    def _object(self, symbol: str) -> Any:
        if symbol not in self.frame.places:
            self.frame.places[symbol] = [self._slot(I64) for _ in range(3)]
        return self.frame.places[symbol]

    def _store_vector(self, cells: list[Any], parts: Sequence[Any]) -> None:
        for cell, part in zip(cells, parts, strict=True):
            self.b.store(part, cell)

    def _load_vector(self, cells: list[Any]) -> list[Any]:
        return [self.b.load(cell, typ=I64) for cell in cells]

    # --- faults and counts -----------------------------------------------------------------------------------------

    def fault_unless(self, ok: Any, code: int) -> None:
        """Leaves the region with a code when a condition does not hold."""
        frame = self.frame
        if code not in frame.faults:
            frame.faults[code] = frame.function.append_basic_block(f"fault{code}")
            ir.IRBuilder(frame.faults[code]).ret(I32(code))
        following = frame.function.append_basic_block()
        self.b.cbranch(ok, following, frame.faults[code])
        self.b.position_at_end(following)

    @property
    def terminated(self) -> bool:
        """Whether the block being written has ended with a jump."""
        return self.b.block is not None and self.b.block.is_terminated

    def add(self, cell: Any, amount: Any) -> None:
        """Adds to a counter."""
        self.b.store(self.b.add(self.b.load(cell, typ=I64), amount), cell)

    def look(self) -> None:
        """In loops: every so many cycles, handlers of signals and the watchdog may stop the run."""
        b = self.b
        now = b.load(self.cycles, typ=I64)
        ok = self._slot(I1)
        b.store(I1(1), ok)
        with b.if_then(b.icmp_signed(">", now, b.load(self.due, typ=I64)), likely=False):
            b.store(b.add(now, I64(LOOK_CYCLES)), self.due)
            going = b.icmp_signed("==", b.call(self._outside("PyErr_CheckSignals"), []), I32(0))
            b.store(going, ok)
            with b.if_then(going):
                asked = b.call(self._outside("wsesim_look", PTR, I64), [self.pe, now])
                b.store(b.icmp_signed("==", asked, I32(0)), ok)
        self.fault_unless(b.load(ok, typ=I1), STOPPED)

    def _outside(self, name: str, *kinds: Any) -> ir.Function:
        """A function of this process."""
        found = self.module.globals.get(name)
        return found if found is not None else ir.Function(self.module, ir.FunctionType(I32, kinds), name)

    # --- places ----------------------------------------------------------------------------------------------------

    def address(self, ref: T.MemRef, *, taken: bool = False) -> Any:
        """Byte address of a place; ``taken`` when the program only asks where it is."""
        at: Any = self.expr(ref.base)
        if ref.offset:
            at = self.b.add(at, I64(ref.offset))
        for index, stride, extent in ref.indices:
            number = self.expr(index)
            if extent is not None:
                self.fault_unless(self.b.icmp_unsigned("<", number, I64(extent + taken)), INDEX)
            at = self.b.add(at, self.b.mul(number, I64(stride)))
        self.cost += self.timing.scalar * len(ref.indices)
        return at

    def cell(self, ref: T.MemRef) -> tuple[Any, int]:
        """Checked pointer to a scalar, and its size."""
        size = size_of(ref.type)
        at = self.address(ref)
        if size == 2:
            at = self.b.and_(at, I64(-2))
        self.fault_unless(self.b.icmp_unsigned("<=", at, I64(MEMORY_BYTES - size)), OUTSIDE)
        if size == 4:
            self.fault_unless(self.b.icmp_signed("==", self.b.and_(at, I64(3)), I64(0)), UNALIGNED)
        return self.b.gep(self.memory, [at], source_etype=I8), size

    def _to_memory(self, value: Any, size: int) -> Any:
        if value.type in (F16, F32):
            return value
        if value.type == I1:
            return self.b.zext(value, I8)
        return self.b.trunc(value, ir.IntType(size * 8))

    def _from_memory(self, pointer: Any, kind: Type, size: int) -> Any:
        wanted = scalar_type(kind)
        if wanted in (F16, F32):
            return self.b.load(pointer, typ=wanted, align=2)
        raw = self.b.load(pointer, typ=ir.IntType(size * 8), align=min(size, 2))
        if wanted == I1:
            return self.b.icmp_signed("!=", raw, ir.Constant(raw.type, 0))
        base = kind.base if isinstance(kind, EnumType) else kind
        signed = isinstance(base, IntType) and base.signed
        return self.b.sext(raw, I64) if signed else self.b.zext(raw, I64)

    # --- expressions -----------------------------------------------------------------------------------------------

    def expr(self, e: T.Expr) -> Any:
        """A scalar value."""
        match e:
            case T.Const(type=kind, value=value):
                wanted = scalar_type(kind)
                return ir.Constant(wanted, float(value) if wanted in (F16, F32) else int(value))
            case T.GlobalAddr(symbol=symbol, offset=offset):
                return I64(self.program.globals[symbol].address + offset)
            case T.FrameAddr(offset=offset):
                if self.frame_pointer is None or self.active:
                    raise Unsupported("a frame in a callee")
                return self.b.add(self.frame_pointer, I64(offset))
            case T.Load(place=T.Local() as var):
                return self.b.load(self._local(var), typ=scalar_type(var.type))
            case T.Load(place=T.MemRef(bits=None) as ref):
                self.cost += self.timing.memory_access
                pointer, size = self.cell(ref)
                return self._from_memory(pointer, ref.type, size)
            case T.AddressOf(place=place):
                return self.address(place, taken=True)
            case T.Unary() | T.Binary() | T.Compare() | T.Logical() | T.Select():
                self.cost += self.timing.scalar
                return self._arithmetic(e)
            case T.Cast():
                return self._cast(e)
            case T.Call():
                return self._call(e)
            case _:
                raise Unsupported(type(e).__name__)

    def wrapped(self, value: Any, kind: Type) -> Any:
        """An integer reduced to the range of its type."""
        base = kind.base if isinstance(kind, EnumType) else kind
        if not isinstance(base, IntType):
            return self.b.and_(value, I64(0xFFFF))
        narrow = self.b.trunc(value, ir.IntType(base.bits))
        return self.b.sext(narrow, I64) if base.signed else self.b.zext(narrow, I64)

    def _arithmetic(self, e: T.Unary | T.Binary | T.Compare | T.Logical | T.Select) -> Any:
        b = self.b
        match e:
            case T.Unary(op="!", operand=a):
                return b.not_(self.expr(a))
            case T.Unary(op="-", operand=a) if is_float(e.type):
                return b.fneg(self.expr(a))
            case T.Unary(op=op, operand=a):
                value = self.expr(a)
                return self.wrapped(b.neg(value) if op == "-" else b.not_(value), e.type)
            case T.Binary():
                return self._binary(e)
            case T.Compare(op=op, left=left, right=right):
                x, y = self.expr(left), self.expr(right)
                if x.type in (F16, F32):
                    return b.fcmp_unordered("!=", x, y) if op == "!=" else b.fcmp_ordered(op, x, y)
                return b.icmp_signed(op, b.zext(x, I64), b.zext(y, I64)) if x.type == I1 else b.icmp_signed(op, x, y)
            case T.Logical(op=op, left=left, right=right):
                return self._lazy(self.expr(left), right if op == "and" else None, right if op == "or" else None, I1)
            case T.Select(cond=cond, then=then, other=other):
                return self._lazy(self.expr(cond), then, other, scalar_type(e.type))
            case _:
                assert_never(e)

    def _lazy(self, cond: Any, then: T.Expr | None, other: T.Expr | None, kind: ir.Type) -> Any:
        """One of two values, only the chosen one evaluated; None stands for the condition itself."""
        cell = self._slot(kind)
        function = self.frame.function
        yes, no, end = (function.append_basic_block() for _ in range(3))
        self.b.cbranch(cond, yes, no)
        for start, part in ((yes, then), (no, other)):
            self.b.position_at_end(start)
            self.b.store(cond if part is None else self.expr(part), cell)
            self.b.branch(end)
        self.b.position_at_end(end)
        return self.b.load(cell, typ=kind)

    def _binary(self, e: T.Binary) -> Any:
        b, op = self.b, e.op
        x, y = self.expr(e.left), self.expr(e.right)
        if is_float(e.type):
            if op == "%":
                raise Unsupported("float remainder")
            if op == "/":
                self.cost += self.timing.divide
            wide = F32 if x.type == F16 else F64
            method = {"+": b.fadd, "-": b.fsub, "*": b.fmul, "/": b.fdiv}[op]
            return b.fptrunc(method(b.fpext(x, wide), b.fpext(y, wide)), x.type)
        if op in ("/", "%"):
            self.cost += self.timing.divide
            self.fault_unless(b.icmp_signed("!=", y, I64(0)), ZERO_DIVISION)
            return self.wrapped(b.sdiv(x, y) if op == "/" else b.srem(x, y), e.type)
        if op in ("<<", ">>"):
            inside = b.icmp_unsigned("<", y, I64(64))
            count = b.select(inside, y, I64(63))
            if op == ">>":
                return self.wrapped(b.ashr(x, count), e.type)
            return self.wrapped(b.select(inside, b.shl(x, count), I64(0)), e.type)
        method = {"+": b.add, "-": b.sub, "*": b.mul, "&": b.and_, "|": b.or_, "^": b.xor}[op]
        value = method(x, y)
        return value if op in ("&", "|", "^") else self.wrapped(value, e.type)

    def _cast(self, e: T.Cast) -> Any:
        b, value, target = self.b, self.expr(e.operand), scalar_type(e.type)
        if e.kind in ("pointer", "handle"):
            return value
        if e.kind == "bits":
            return self._bits(value, e.operand.type, e.type, target)
        self.cost += self.timing.scalar
        if target == I1:
            zero = ir.Constant(value.type, 0)
            return b.fcmp_unordered("!=", value, zero) if value.type in (F16, F32) else b.icmp_signed("!=", value, zero)
        if target in (F16, F32):
            if value.type in (F16, F32):
                return value if value.type == target else (b.fpext if target == F32 else b.fptrunc)(value, target)
            return b.fptrunc(b.sitofp(b.zext(value, I64) if value.type == I1 else value, F64), target)
        if value.type in (F16, F32):
            # Beyond 62 bits a float32 has only zeros in the low half; not-a-number and infinities become zero too.
            wide = b.fpext(value, F64)
            small = b.and_(
                b.fcmp_ordered("<", wide, ir.Constant(F64, 2.0**62)),
                b.fcmp_ordered(">", wide, ir.Constant(F64, -(2.0**62))),
            )
            safe = b.select(small, wide, ir.Constant(F64, 0.0))
            return self.wrapped(b.fptosi(safe, I64), e.type)
        return self.wrapped(b.zext(value, I64) if value.type == I1 else value, e.type)

    def _bits(self, value: Any, source: Type, kind: Type, target: ir.Type) -> Any:
        if value.type == I1 or target == I1:
            raise Unsupported("bits of a bool")
        if value.type in (F16, F32):
            if target in (F16, F32):
                return value
            value = self.b.zext(self.b.bitcast(value, ir.IntType(size_of(source) * 8)), I64)
        elif target in (F16, F32):
            return self.b.bitcast(self.b.trunc(value, ir.IntType(size_of(kind) * 8)), target)
        return self.wrapped(value, kind)

    # --- calls -----------------------------------------------------------------------------------------------------

    def _call(self, e: T.Call) -> Any:
        """A callee's body in place: its parameters and locals are cells of their own."""
        callee = self.program.functions[e.symbol]
        if e.symbol in self.active or len(self.active) > 6 or callee.frame_size:
            raise Unsupported("a recursive call or one with a frame")
        self.cost += self.timing.call
        given = [self.vector(a) if is_vector(a.type) else self.expr(a) for a in e.args]
        return self._inline(callee, given)

    def _inline(self, callee: Function, given: list[Any]) -> Any:
        frame = self.frame
        kept = (frame.places, frame.loops, frame.result, frame.leave)
        outer = {k: v for k, v in frame.places.items() if isinstance(k, str)}  # globals stay the same
        frame.places, frame.loops = outer, []
        void = callee.type.ret == SimpleType("void")
        frame.result = None if void else self._slot(scalar_type(callee.type.ret))
        frame.leave = frame.function.append_basic_block()
        self.active.append(callee.symbol)
        for var, value in zip(callee.params, given, strict=True):
            if is_vector(var.type):
                self._store_vector(self._local(var), value)
            else:
                self.b.store(value, self._local(var))
        self.block(callee.body)
        if not self.terminated:
            self.b.branch(frame.leave)
        self.b.position_at_end(frame.leave)
        result = frame.result
        self.active.pop()
        found = {k: v for k, v in frame.places.items() if isinstance(k, str)}
        frame.places, frame.loops, frame.result, frame.leave = kept
        frame.places.update(found)
        return None if void else self.b.load(result, typ=scalar_type(callee.type.ret))

    def _return(self, value: T.Expr | None) -> None:
        frame = self.frame
        if frame.leave is None:
            raise Unsupported("a return out of the region")
        if value is not None:
            self.b.store(self.expr(value), frame.result)
        self.b.branch(frame.leave)

    # --- descriptors -----------------------------------------------------------------------------------------------

    def vector(self, e: T.Expr) -> list[Any]:
        """A descriptor: address with the owner above its 16 bits, length, stride."""
        match e:
            case T.DsdConst(wavelet_index_offset=False) if is_vector(e.type):
                const = from_const(e, self.program.globals, self.bounds)
                assert isinstance(const, Mem)
                return [I64(const.addr | const.home << 16), I64(const.length), I64(const.stride)]
            case T.Load(place=T.Local() as var):
                return self._load_vector(self._local(var))
            case T.Load(place=T.ObjectRef(symbol=symbol, index=None)):
                return self._load_vector(self._object(symbol))
            case T.DsdMake():
                return self._make(e)
            case T.Builtin():
                return self._changed(e)
            case _:
                raise Unsupported(type(e).__name__)

    def _make(self, e: T.DsdMake) -> list[Any]:
        self.cost += self.timing.dsr_load
        parts = self.vector(e.const)
        if e.base is not None:
            parts[0] = self._owned(self.expr(e.base))
        if e.offset is not None:
            size = size_of(e.const.elem) if e.const.elem is not None else 2
            parts[0] = self._moved(parts[0], self.expr(e.offset), size)
        if e.extent is not None:
            parts[1] = self.expr(e.extent)
        if e.stride is not None:
            parts[2] = self.expr(e.stride)
        return parts

    def _moved(self, address: Any, by: Any, size: int) -> Any:
        moved = self.b.and_(self.b.add(address, self.b.mul(by, I64(size))), I64(0xFFFF))
        return self.b.or_(self.b.and_(address, I64(~0xFFFF)), moved)

    def _owned(self, address: Any) -> Any:
        """An address with its owner."""
        b = self.b
        plain = b.and_(address, I64(0xFFFF))
        return b.or_(plain, b.shl(self._entry(b.lshr(plain, I64(1))), I64(16)))

    def _entry(self, index: Any) -> Any:
        """A number of the table of variables."""
        b = self.b
        return b.sext(b.load(b.gep(self.table, [index], source_etype=I32), typ=I32), I64)

    def _changed(self, e: T.Builtin) -> list[Any]:
        parts = self.vector(e.args[0])
        value = self.expr(e.args[1]) if len(e.args) > 1 else None
        self.cost += self.timing.scalar
        match e.op:
            case "increment_dsd_offset":
                parts[0] = self._moved(parts[0], value, size_of(e.types[0]))
            case "set_dsd_length":
                parts[1] = value
            case "set_dsd_base_addr":
                parts[0] = self._owned(value)
            case "set_dsd_stride":
                parts[2] = value
            case _:
                raise Unsupported(e.op)
        return parts

    # --- vector operations -----------------------------------------------------------------------------------------

    def operation(self, e: T.DsdOp) -> None:
        """A DSD operation whose operands lie in memory."""
        spec, rule = OPS[e.op], NATIVE_OPS.get(e.op)
        if rule is None or e.options.index is not None:
            raise Unsupported(f"@{e.op}")
        pointer = isinstance(e.dest.type, PtrType)
        target = [self._owned(self.expr(e.dest)), None, I64(0)] if pointer else self.vector(e.dest)
        sources = [self.vector(s) if is_vector(s.type) else self.expr(s) for s in e.sources]
        vectors = [s for s in sources if isinstance(s, list)]
        count = vectors[0][1] if vectors else target[1]
        if count is None:
            raise Unsupported("an operation without a vector")
        self.add(self.ops, I64(1))
        self.add(self.cycles, I64(self.timing.dsd_issue))
        b = self.b
        if self.strict:
            for part in vectors if pointer else [target, *vectors]:
                self.fault_unless(b.icmp_signed("==", part[1], count), LENGTHS)
        with b.if_then(b.icmp_signed("!=", count, I64(0))):
            sizes = [element_size(kind) for kind in rule.kinds]
            plain = [
                self._checked(part, count, size) if isinstance(part, list) else part
                for part, size in zip([target, *sources], sizes, strict=True)
            ]
            emit_op(b, self.memory, rule, plain[0], plain[1:], count, self.module)
            strides = [x[2] for x in ([] if pointer else [target]) + vectors]
            width = self._width(spec.width[self.arch], strides)
            rounded = b.sdiv(b.add(count, b.sub(width, I64(1))), width)
            self.add(self.cycles, rounded)

    def _checked(self, part: list[Any], count: Any, size: int) -> list[Any]:
        """The descriptor with its plain address, when all its elements lie in its variable.

        Outside strict mode those beyond it are only noted, as long as they stay in memory.
        """
        b = self.b
        near = b.and_(part[0], I64(0xFFFF))
        far = b.add(near, b.mul(b.sub(count, I64(1)), b.mul(part[2], I64(size))))
        entry = b.add(b.shl(b.lshr(part[0], I64(16)), I64(1)), I64(CELLS))
        low = self._entry(entry)
        last = b.sub(self._entry(b.add(entry, I64(1))), I64(size))
        inside: Any = I1(1)
        for address in (near, far):
            good = b.and_(b.icmp_signed(">=", address, low), b.icmp_signed("<=", address, last))
            inside = b.and_(inside, good)
        if not self.strict:
            self.add(self.loose, b.zext(b.not_(inside), I64))
            inside = b.and_(
                b.icmp_unsigned("<=", near, I64(MEMORY_BYTES - size)),
                b.icmp_unsigned("<=", far, I64(MEMORY_BYTES - size)),
            )
        self.fault_unless(inside, OUTSIDE)
        return [near, *part[1:]]

    def _width(self, full: int, strides: list[Any]) -> Any:
        """The rule of ``timing.simd_width`` on run-time strides."""
        width: Any = I64(full)
        if full == 1:
            return width
        b = self.b
        one: Any = I1(0)
        for stride in strides:
            plain = b.icmp_unsigned("<=", stride, I64(1))
            rest = b.and_(stride, I64(7))
            is_zero = b.and_(b.not_(plain), b.icmp_signed("==", rest, I64(0)))
            odd = b.or_(b.icmp_signed("==", rest, I64(1)), b.icmp_signed("==", rest, I64(7)))
            limit = b.select(odd, I64(2), b.select(b.icmp_signed("==", rest, I64(4)), I64(4), I64(full)))
            limit = b.select(plain, I64(full), limit)
            width = b.select(b.icmp_signed("<", limit, width), limit, width)
            one = b.or_(one, is_zero)
        return b.select(one, I64(1), width)
