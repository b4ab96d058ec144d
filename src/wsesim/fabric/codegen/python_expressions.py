"""Python expressions for the typed expressions of a PE program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from wsesim.csl.program import typed_tree as T
from wsesim.csl.sema.types import (
    DsdType,
    EnumType,
    FloatType,
    FnType,
    HandleType,
    IntType,
    PtrType,
    SimpleType,
    size_of,
)
from wsesim.fabric import dsd as D
from wsesim.fabric.intrinsics import INTRINSICS
from wsesim.fabric.ops import OPS
from wsesim.fabric.pe import Dsr, Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.elaborated import PeProgram
    from wsesim.csl.sema.types import Type
    from wsesim.fabric.codegen.python_source import Code
    from wsesim.fabric.timing import Timing

__all__ = ["Expressions", "op_may_stall"]

_MEMORY_ONLY = ("mem1d_dsd", "mem4d_dsd", "circbuf_dsd")
_INT_VIEWS = {(8, False): "m8", (8, True): "mi8", (16, False): "m16", (16, True): "mi16", (32, False): "m32"}
_INT_VIEWS |= {(32, True): "mi32", (64, False): "m64", (64, True): "mi64"}


def _operands(op: T.DsdOp | T.MapOp) -> tuple[T.Expr, ...]:
    if isinstance(op, T.DsdOp):
        return (op.dest, *op.sources)
    return (*op.inputs, *((op.output,) if op.output is not None else ()))


def op_may_stall(op: T.DsdOp | T.MapOp) -> bool:
    """Whether the main thread may have to wait for an operation."""
    for operand in _operands(op):
        kind = operand.type
        if isinstance(kind, DsdType) and kind.name not in _MEMORY_ONLY:
            return True
        if isinstance(kind, HandleType) and kind.name.startswith("dsr"):
            return True
    return False


def wrapped(expr: str, kind: Type) -> str:
    """An integer expression reduced to its type's range."""
    if isinstance(kind, EnumType):
        kind = kind.base
    if isinstance(kind, IntType):
        if not kind.bits:
            return "0"
        mask = (1 << kind.bits) - 1
        if not kind.signed:
            return f"(({expr}) & {mask})"
        half = 1 << (kind.bits - 1)
        return f"((({expr}) + {half} & {mask}) - {half})"
    return f"(({expr}) & 65535)"


class Expressions:
    """Writes expressions; statements build on it."""

    def __init__(
        self,
        program: PeProgram,
        timing: Timing,
        names: Mapping[str, str],
        stalls: set[str],
        space: dict[str, Any],
        code: Code,
    ) -> None:
        self.program = program
        self.timing = timing
        self.names = names
        self.stalls = stalls
        self.space = space
        self.code = code
        self.lines: list[str] = []
        self.depth = 0
        self.cost = 0
        self.frame = 0
        self.loops: list[tuple[str, tuple[T.Stmt, ...]]] = []
        self.pos = T.NOWHERE
        self.pool: dict[Any, str] = {}
        self.ranges: dict[int, int] = {}  # the largest value of loops' variables that start at zero or above

    def constant(self, value: Any, key: Any = None) -> str:
        """A name for an object that the code refers to."""
        key = id(value) if key is None else key
        name = self.pool.get(key)
        if name is None:
            name = self.pool[key] = f"k{len(self.pool)}"
            self.space[name] = value
        return name

    @staticmethod
    def local(var: T.Local) -> str:
        """Python name of a local."""
        return f"v{var.index}"

    # --- places ------------------------------------------------------------------------------------------------------

    @staticmethod
    def view(kind: Type) -> tuple[str, int]:
        """Name of the typed view and element size for a scalar type."""
        match kind:
            case FloatType(name="f32"):
                return "mf32", 4
            case FloatType(name="f16"):
                return "f16", 2
            case IntType():
                size = size_of(kind)
                return _INT_VIEWS[(size * 8, kind.signed)], size
            case EnumType(base=base):
                return Expressions.view(base)
            case SimpleType(name="bool"):
                return "m8", 1
            case PtrType() | HandleType() | SimpleType(name="direction"):
                return "m16", 2
            case _:
                raise TypeError(f"values of type {kind} cannot be kept in memory by the simulator")

    def static(self, ref: T.MemRef) -> int | None:
        """The byte address apart from the indices, if known."""
        match ref.base:
            case T.GlobalAddr(symbol=symbol, offset=offset):
                return self.program.globals[symbol].address + offset + ref.offset
            case T.Const(value=value):
                return int(value) + ref.offset
            case _:
                return None

    def address(self, ref: T.MemRef, *, taken: bool = False) -> str:
        """Byte address of a place; ``taken`` when the program only asks where it is."""
        static = self.static(ref)
        parts = [str(static)] if static is not None else [self.expr(ref.base)]
        if static is None and ref.offset:
            parts.append(str(ref.offset))
        for i, stride, extent in ref.indices:
            index = self.index(i, extent, past=taken)
            parts.append(index if stride == 1 else f"{index} * {stride}")
        self.cost += self.timing.scalar * len(ref.indices)
        return f"({' + '.join(parts)})"

    def index(self, e: T.Expr, extent: int | None, *, past: bool = False) -> str:
        """An index, checked where the array's size is known; ``past`` allows the place behind the last element."""
        text = f"({self.expr(e)})"
        if extent is None or self._inside(e, extent):
            return text
        return f"(_x if 0 <= (_x := {text}) < {extent + past} else out_of_bounds(_x, {extent}))"

    def _inside(self, e: T.Expr, extent: int) -> bool:
        """Whether an index is the variable of a loop that never leaves the array."""
        if not isinstance(e, T.Load | T.Cast):
            return False
        if isinstance(e, T.Cast):
            return isinstance(e.operand, T.Load) and self._inside(e.operand, extent) and extent <= 0x8000
        return isinstance(e.place, T.Local) and self.ranges.get(e.place.index, extent) < extent

    def cell(self, ref: T.MemRef) -> str:
        """Subscripted view of a scalar place."""
        view, size = self.view(ref.type)
        static = self.static(ref)
        aligned = all(stride % size == 0 for _, stride, _ in ref.indices)
        if static is not None and static % size == 0 and aligned:
            self.cost += self.timing.scalar * len(ref.indices)
            parts = [str(static // size)]
            for i, stride, extent in ref.indices:
                scale = stride // size
                index = self.index(i, extent)
                parts.append(index if scale == 1 else f"{index} * {scale}")
            return f"{view}[{' + '.join(parts)}]"
        if size == 1:
            return f"{view}[{self.address(ref)}]"
        if size == 2:
            return f"{view}[{self.address(ref)} >> 1]"
        return f"{view}[word({self.address(ref)}, {size})]"

    # --- expressions -------------------------------------------------------------------------------------------------

    def expr(self, e: T.Expr) -> str:
        """A Python expression with the value of ``e``."""
        match e:
            case T.Const():
                return self.literal(e)
            case T.GlobalAddr(symbol=symbol, offset=offset):
                return str(self.program.globals[symbol].address + offset)
            case T.FrameAddr(offset=offset):
                return f"(fp + {offset})"
            case T.FunctionRef(symbol=symbol):
                return self.names[symbol]
            case T.DsdConst():
                value = D.from_const(e, self.program.globals, self.code.bounds)
                home = getattr(value, "home", None)
                return self.constant(value, ("dsd", repr(value), getattr(value, "indexed", None), home))
            case T.Load(place=place):
                return self.load(place)
            case T.AddressOf(place=place):
                return self.address(place, taken=True)
            case T.Unary() | T.Binary() | T.Compare() | T.Logical() | T.Select():
                return self.arithmetic(e)
            case T.Cast():
                return self.cast(e)
            case T.Call():
                return self.call(e.symbol, [self.expr(a) for a in e.args])
            case T.DsdMake():
                return self.make(e)
            case T.DsdOp():
                return self.operation(e)
            case T.MapOp():
                return self.map(e)
            case T.Builtin():
                return self.builtin(e)
            case _:
                assert_never(e)

    def literal(self, e: T.Const) -> str:
        """A constant."""
        kind = e.type
        if isinstance(kind, HandleType) and kind.name.startswith("dsr"):
            file = kind.name.replace("dsr_fifo_", "dsr_")
            return self.constant(Dsr(file, int(e.value)), ("dsr", file, e.value))
        if isinstance(kind, FloatType):
            value = float(e.value)
            if value != value or value in (float("inf"), float("-inf")):
                return f'float("{value}")'
            return repr(value)
        if isinstance(kind, SimpleType) and kind.name == "bool":
            return str(bool(e.value))
        return str(int(e.value)) if e.value >= 0 else f"({int(e.value)})"

    def load(self, place: T.Place) -> str:
        """Value of a place."""
        match place:
            case T.Local():
                return self.local(place)
            case T.ObjectRef(symbol=symbol, index=index):
                at = "0" if index is None else self.index(index, len(self.program.globals[symbol].objects))
                return f"pe.objects[{symbol!r}][{at}]"
            case T.MemRef(bits=None):
                self.cost += self.timing.memory_access
                text = self.cell(place)
                return f"({text} != 0)" if isinstance(place.type, SimpleType) and place.type.name == "bool" else text
            case T.MemRef(bits=bits):
                assert bits is not None
                signed = isinstance(place.type, IntType) and place.type.signed
                return f"getbits(pe, {self.address(place)}, {bits[0]}, {bits[1]}, {signed})"
            case _:
                assert_never(place)

    def rounded(self, text: str, kind: Type) -> str:
        """An arithmetic result in its type."""
        if isinstance(kind, FloatType):
            return f"{_rounder(kind)}({text})"
        return wrapped(text, kind)

    def arithmetic(self, e: T.Unary | T.Binary | T.Compare | T.Logical | T.Select) -> str:
        """Operators."""
        self.cost += self.timing.scalar
        match e:
            case T.Unary(op="!", operand=a):
                return f"(not {self.expr(a)})"
            case T.Unary(op=op, operand=a):
                return self.rounded(f"{op}{self.expr(a)}", e.type)
            case T.Binary(op=op, left=a, right=b):
                return self.binary(e, op, self.expr(a), self.expr(b))
            case T.Compare(op=op, left=a, right=b):
                return f"({self.expr(a)} {op} {self.expr(b)})"
            case T.Logical(op=op, left=a, right=b):
                return f"({self.expr(a)} {op} {self.expr(b)})"
            case T.Select(cond=c, then=a, other=b):
                return f"({self.expr(a)} if {self.expr(c)} else {self.expr(b)})"
            case _:
                assert_never(e)

    def binary(self, e: T.Binary, op: str, a: str, b: str) -> str:
        """One arithmetic operator."""
        if isinstance(e.type, FloatType):
            if op == "/":
                self.cost += self.timing.divide
                return f"{_rounder(e.type)}(fdiv({a}, {b}))"
            if op == "%":
                return f"{_rounder(e.type)}(fmod({a}, {b}))"
            return f"{_rounder(e.type)}({a} {op} {b})"
        if op in ("/", "%"):
            self.cost += self.timing.divide
            return wrapped(f"{'idiv' if op == '/' else 'irem'}(pe, {a}, {b})", e.type)
        if op in ("<<", ">>"):
            return wrapped(f"{'shl' if op == '<<' else 'shr'}({a}, {b})", e.type)
        if op in ("&", "|", "^"):
            return f"({a} {op} {b})"
        return wrapped(f"{a} {op} {b}", e.type)

    def cast(self, e: T.Cast) -> str:
        """A conversion."""
        a, source, target = self.expr(e.operand), e.operand.type, e.type
        if e.kind in ("pointer", "handle"):
            return a
        if e.kind == "bits":
            return f"bits({a}, {_code(source)!r}, {_code(target)!r})"
        self.cost += self.timing.scalar
        if isinstance(target, SimpleType) and target.name == "bool":
            return f"(({a}) != 0)"
        if isinstance(target, FloatType):
            return f"{_rounder(target)}({a})"
        if isinstance(source, FloatType):
            return wrapped(f"truncate({a})", target)
        return wrapped(f"int({a})" if isinstance(source, SimpleType) else a, target)

    def call(self, symbol: str, args: list[str]) -> str:
        """A call, through the generator when the callee may wait."""
        self.cost += self.timing.call
        text = f"{self.names[symbol]}({', '.join(['pe', *args])})"
        return f"(yield from {text})" if symbol in self.stalls else text

    # --- descriptors -----------------------------------------------------------------------------------------------

    def make(self, e: T.DsdMake) -> str:
        """A descriptor with run-time fields."""
        self.cost += self.timing.dsr_load
        const = self.constant(D.from_const(e.const, self.program.globals, self.code.bounds))
        size = size_of(e.const.elem) if e.const.elem is not None else 2
        parts = [
            f"{name}={self.expr(part)}"
            for name, part in (
                ("base", e.base),
                ("offset", e.offset),
                ("extent", e.extent),
                ("stride", e.stride),
                ("color", e.color),
                ("queue", e.queue),
            )
            if part is not None
        ]
        return f"make_dsd({', '.join(['pe.bounds', const, str(size), *parts])})"

    def options(self, o: T.OpOptions) -> str:
        """An ``Options`` object: one constant when nothing varies."""

        def handle(x: T.Expr | None) -> str:
            return "None" if x is None else f"({str(x.type)!r}, {self.expr(x)})"

        fields = {"asynchronous": str(o.is_async)}
        if o.activate is not None:
            fields["activate"] = self.expr(o.activate)
        if o.unblock is not None:
            fields["unblock"] = handle(o.unblock)
        if o.on_control is not None:
            then = "None" if o.on_control.activate is None else self.expr(o.on_control.activate)
            fields["on_control"] = f"({then}, {handle(o.on_control.unblock)})"
        if o.index is not None:
            fields["index"] = self.expr(o.index)
        if o.save_address:
            fields["save_address"] = "True"
        if o.ut_id is not None:
            fields["ut_id"] = self.expr(o.ut_id)
        text = f"Options({', '.join(f'{k}={v}' for k, v in fields.items())})"
        parts = [o.activate, o.unblock, o.index, o.ut_id]
        parts += [o.on_control.activate, o.on_control.unblock] if o.on_control is not None else []
        if all(p is None or isinstance(p, T.Const) for p in parts):
            return self.constant(eval(text, {"Options": Options}), ("options", text))
        return text

    def operation(self, e: T.DsdOp) -> str:
        """A DSD operation."""
        spec = self.constant(OPS[e.op], ("op", e.op))
        dest = self.expr(e.dest)
        sources = [self.expr(s) for s in e.sources]
        given = f"({', '.join(sources)},)"
        if not op_may_stall(e):
            index = f", {self.expr(e.options.index)}" if e.options.index is not None else ""
            return f"pe.mem_op({spec}, {dest}, {given}{index})"
        text = f"pe.run_op({spec}, {dest}, {given}, {self.options(e.options)})"
        if e.options.is_async:
            return text
        return f"(r if (r := {text}) is True or r is False else (yield r))"

    def map(self, e: T.MapOp) -> str:
        """``@map``."""
        inputs = f"({', '.join(self.expr(i) for i in e.inputs)},)" if e.inputs else "()"
        kinds = tuple(_code(p.type) for p in self.program.functions[e.callback].params)
        returned = self.program.functions[e.callback].type.ret
        ret = _code(returned) if e.output is not None else ""
        out = "None" if e.output is None else self.expr(e.output)
        name = self.names[e.callback]
        args = f"pe, {name}, {inputs}, {out}, {kinds!r}, {ret!r}"
        if e.callback in self.stalls or op_may_stall(e):
            return f"(yield from map_stream({args}, {e.callback in self.stalls}))"
        return f"map_memory({args})"

    def builtin(self, e: T.Builtin) -> str:
        """A run-time builtin."""
        args = [self.expr(a) for a in e.args]
        self.cost += self.timing.scalar
        match e.op:
            case "activate":
                return f"pe.activate({args[0]})"
            case "block" | "unblock":
                return f"pe.{e.op}({str(e.args[0].type)!r}, {args[0]})"
            case "load_to_dsr":
                options = self.options(e.options or T.OpOptions())
                return f"pe.load_dsr({args[0]}, {args[1]}, {options})"
            case "increment_dsd_offset":
                return f"increment({args[0]}, {args[1]}, {size_of(e.types[0])})"
            case "set_dsd_base_addr":
                return f"set_dsd_base_addr(pe.bounds, {', '.join(args)})"
            case "set_dsd_length" | "set_dsd_stride":
                return f"{e.op}({', '.join(args)})"
            case "intrinsic":
                return self.intrinsic(e, args)
            case _:
                return f"rt_{e.op}({', '.join(['pe', *args])})"

    def intrinsic(self, e: T.Builtin, args: list[str]) -> str:
        """An operation of our libraries."""
        fn = INTRINSICS.get(e.intrinsic)
        if fn is None:
            raise KeyError(f"no intrinsic {e.intrinsic!r}")
        name = self.constant(fn, ("intrinsic", e.intrinsic))
        texts = [repr(t) for t in e.texts]
        text = f"{name}({', '.join(['pe', *texts, *args])})"
        if e.intrinsic.startswith("math."):
            self.cost += self.timing.math_call
        if isinstance(e.type, FloatType):
            return f"{_rounder(e.type)}({text})"
        return text


def _rounder(kind: FloatType) -> str:
    return {"f32": "F32", "f16": "F16", "bf16": "BF16", "cb16": "CB16"}[kind.name]


def _code(kind: Type) -> str:
    """Short code of a scalar type: f16, f32, i16, u32, b, ..."""
    match kind:
        case FloatType(name=name):
            return name
        case IntType(bits=bits, signed=signed):
            return f"{'i' if signed else 'u'}{size_of(kind) * 8}" if bits else "u8"
        case EnumType(base=base):
            return _code(base)
        case SimpleType(name="bool"):
            return "b"
        case FnType():
            return "fn"
        case _:
            return "u16"
