"""Runs of pure statements become native functions.

A run is a sequence of statements of one block that only computes: scalars, memory, loops, vector operations between
memory operands, calls of functions of the same kind. The generated Python stays as it is beside it: it runs until a run
has become hot, when LLVM cannot take it, and as the check of it. Both give the same values, cycles and counts.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from wsesim.csl.program import typed_tree as T
from wsesim.csl.sema.types import FloatType, SimpleType
from wsesim.fabric.codegen.native_expressions import (
    ASSERTED,
    INDEX,
    LENGTHS,
    OUTSIDE,
    STOPPED,
    UNALIGNED,
    Region,
    Unsupported,
    is_float,
    is_vector,
    scalar_type,
)
from wsesim.fabric.codegen.native_ir import write_region
from wsesim.fabric.codegen.native_ops import NATIVE_OPS
from wsesim.fabric.errors import ProgramFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wsesim.csl.program.elaborated import Function, PeProgram
    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.pe import PE
    from wsesim.fabric.timing import Timing

__all__ = ["HOT", "NativeRun", "Planner", "enabled"]

HOT = 24  # Python runs of a region before it is compiled
_CHANGES = ("increment_dsd_offset", "set_dsd_length", "set_dsd_base_addr", "set_dsd_stride")


def enabled() -> bool:
    """Whether native code is wanted (``WSESIM_NATIVE=0`` turns it off) and llvmlite is there."""
    if os.environ.get("WSESIM_NATIVE", "1") == "0":
        return False
    return _llvm() is not None


@cache
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


# --- which statements ------------------------------------------------------------------------------------------------


class Planner:
    """Finds the runs of a program's functions."""

    def __init__(self, program: PeProgram) -> None:
        self.program = program
        self._pure: dict[str, bool] = {}

    def runs(self, body: tuple[T.Stmt, ...]) -> Iterator[tuple[T.Stmt, ...] | T.Stmt]:
        """The block again: statements, and tuples of statements that may become native."""
        run: list[T.Stmt] = []
        for stmt in body:
            if self._statement(stmt, ()):
                run.append(stmt)
                continue
            yield from self._finished(run)
            run = []
            yield stmt
        yield from self._finished(run)

    @staticmethod
    def _finished(run: list[T.Stmt]) -> Iterator[tuple[T.Stmt, ...] | T.Stmt]:
        if any(_heavy(s) for s in run):
            yield tuple(run)
        else:
            yield from run

    def region(self, run: tuple[T.Stmt, ...], function: Function) -> Region:
        """What goes into a run and what must come out of it."""
        inside = set(map(id, run))
        used = _locals(_walk(run))
        declared = {n.local for n in _walk(run) if isinstance(n, T.Let)}
        declared |= {n.local for n in _walk(run) if isinstance(n, T.ForRange)}
        assigned = {n.place for n in _walk(run) if isinstance(n, T.Assign) and isinstance(n.place, T.Local)} | declared
        elsewhere = _locals(_walk_without(function.body, inside))
        objects = {n.symbol for n in _walk(run) if isinstance(n, T.ObjectRef)}
        for symbol in self._callees(run):
            objects |= {n.symbol for n in _walk(self.program.functions[symbol].body) if isinstance(n, T.ObjectRef)}
        changed = {s for s in objects if not self.program.globals[s].const}
        order = lambda v: v.index  # noqa: E731
        return Region(
            run,
            tuple(sorted((used | assigned) - declared, key=order)),
            tuple(sorted(assigned & elsewhere, key=order)),
            tuple(sorted(objects)),
            tuple(sorted(changed)),
            any(isinstance(n, T.FrameAddr) for n in _walk(run)),
        )

    def _callees(self, run: Any) -> set[str]:
        found: set[str] = set()
        todo = [n.symbol for n in _walk(run) if isinstance(n, T.Call)]
        while todo:
            symbol = todo.pop()
            if symbol not in found:
                found.add(symbol)
                todo += [n.symbol for n in _walk(self.program.functions[symbol].body) if isinstance(n, T.Call)]
        return found

    def _function(self, symbol: str) -> bool:
        if symbol not in self._pure:
            self._pure[symbol] = False  # while it is looked at: recursion is not pure
            fn = self.program.functions[symbol]
            ret = fn.type.ret
            plain = _scalar(ret) or ret == SimpleType("void")
            params = all(_scalar(p.type) or is_vector(p.type) for p in fn.params)
            pure = not fn.frame_size and plain and params
            self._pure[symbol] = pure and all(self._statement(s, ("return",)) for s in fn.body)
        return self._pure[symbol]

    def _body(self, body: Iterable[T.Stmt], around: tuple[str, ...]) -> bool:
        return all(self._statement(s, around) for s in body)

    def _statement(self, stmt: T.Stmt, around: tuple[str, ...]) -> bool:
        """Whether a statement is pure; ``around`` names the loops and labels that jumps may go to."""
        match stmt:
            case T.Let(local, init):
                fits = _scalar(local.type) or is_vector(local.type)
                return fits and (init is None or self._value(init))
            case T.Assign(place, value):
                return self._place(place) and self._value(value)
            case T.ExprStmt(T.DsdOp() as op):
                return self._operation(op)
            case T.ExprStmt(expr):
                return self._expr(expr)
            case T.If(cond, then, other):
                return self._expr(cond) and self._body(then, around) and self._body(other, around)
            case T.While(cond, body, step, label):
                inner = (*around, "loop", f":{label}")
                return self._expr(cond) and self._body(body, inner) and self._body(step, ())
            case T.ForRange(local, start, stop, step, body, label):
                bounds = all(self._expr(x) for x in (start, stop, step)) and _scalar(local.type)
                return bounds and self._body(body, (*around, "loop", f":{label}"))
            case T.Block(body, label):
                return self._body(body, (*around, f":{label}") if label else around)
            case T.Switch(value, cases, default):
                arms = all(self._body(c.body, around) for c in cases)
                return self._expr(value) and arms and self._body(default, around)
            case T.Break(label) | T.Continue(label):
                return (f":{label}" if label else "loop") in around
            case T.Return(value):
                return "return" in around and (value is None or self._expr(value))
            case T.Assert(cond):
                return self._expr(cond)
            case _:
                return False

    def _place(self, place: T.Place) -> bool:
        match place:
            case T.Local():
                return _scalar(place.type) or is_vector(place.type)
            case T.ObjectRef(index=None):
                return is_vector(place.type)
            case T.MemRef(bits=None):
                indices = all(self._expr(i) for i, _, _ in place.indices)
                return _scalar(place.type) and self._expr(place.base) and indices
            case _:
                return False

    def _value(self, e: T.Expr) -> bool:
        return self._vector(e) if is_vector(e.type) else self._expr(e)

    def _expr(self, e: T.Expr) -> bool:
        match e:
            case T.Const() | T.GlobalAddr() | T.FrameAddr():
                return _scalar(e.type)
            case T.Load(place=place):
                return self._place(place) and _scalar(place.type)
            case T.AddressOf(place=place):
                return self._expr(place.base) and all(self._expr(i) for i, _, _ in place.indices)
            case T.Unary(operand=a) | T.Cast(operand=a):
                return _scalar(e.type) and _scalar(a.type) and self._expr(a)
            case T.Binary(left=a, right=b):
                good = _scalar(e.type) and not (e.op == "%" and isinstance(e.type, FloatType))
                return good and self._expr(a) and self._expr(b)
            case T.Compare(left=a, right=b) | T.Logical(left=a, right=b):
                return self._expr(a) and self._expr(b)
            case T.Select(cond=c, then=a, other=b):
                return _scalar(e.type) and self._expr(c) and self._expr(a) and self._expr(b)
            case T.Call(symbol=symbol, args=args):
                return self._function(symbol) and all(self._value(a) for a in args)
            case _:
                return False

    def _vector(self, e: T.Expr) -> bool:
        match e:
            case T.DsdConst(wavelet_index_offset=indexed):
                return not indexed
            case T.Load(place=place):
                return self._place(place)
            case T.DsdMake(const=const, base=base, offset=offset, extent=extent, stride=stride):
                parts = (x for x in (base, offset, extent, stride) if x is not None)
                return not const.wavelet_index_offset and all(self._expr(x) for x in parts)
            case T.Builtin(op=op, args=args):
                return op in _CHANGES and self._vector(args[0]) and all(self._expr(a) for a in args[1:])
            case _:
                return False

    def _operation(self, op: T.DsdOp) -> bool:
        if op.op not in NATIVE_OPS or op.options != T.OpOptions():
            return False
        if "h" in NATIVE_OPS[op.op].kinds and not _half():
            return False
        dest = self._vector(op.dest) if is_vector(op.dest.type) else _scalar(op.dest.type) and self._expr(op.dest)
        vectors = is_vector(op.dest.type) or any(is_vector(s.type) for s in op.sources)
        return dest and vectors and all(self._value(s) for s in op.sources)


def _scalar(kind: Any) -> bool:
    if isinstance(kind, FloatType) and kind.name == "f16" and not _half():
        return False
    try:
        scalar_type(kind)
    except Unsupported:
        return False
    return True


def _heavy(stmt: T.Stmt) -> bool:
    """Whether a statement is worth a native call: a loop or a vector operation."""
    return any(isinstance(n, T.DsdOp | T.ForRange | T.While) for n in _walk(stmt))


def _walk(node: Any) -> Iterator[Any]:
    work = [node]
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            work.extend(item)
        elif type(item).__module__ == T.__name__:
            yield item
            work.extend(getattr(item, name) for name in item.__dataclass_fields__ if name not in ("pos", "type"))


def _walk_without(node: Any, skipped: set[int]) -> Iterator[Any]:
    work = [node]
    while work:
        item = work.pop()
        if id(item) in skipped:
            continue
        if isinstance(item, tuple):
            work.extend(item)
        elif type(item).__module__ == T.__name__:
            yield item
            work.extend(getattr(item, name) for name in item.__dataclass_fields__ if name not in ("pos", "type"))


def _locals(nodes: Iterable[Any]) -> set[T.Local]:
    return {n for n in nodes if isinstance(n, T.Local)}


# --- compiled runs ---------------------------------------------------------------------------------------------------


@cache
def _features() -> tuple[str, str, bool]:
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    arm = llvm.get_process_triple().startswith(("aarch64", "arm64"))
    return llvm.get_host_cpu_name(), features.flatten(), arm or bool(features.get("f16c"))


def _half() -> bool:
    """Whether conversions between f16 and f32 are instructions here."""
    return _features()[2]


_LOCK = threading.RLock()
_FUNCTIONS: dict[str, int] = {}
_ENGINES: list[Any] = []


def _address(ir: str, name: str) -> int:
    """Address of the optimised function of an IR module; the same text is compiled once."""
    with _LOCK:
        if name not in _FUNCTIONS:
            llvm = _llvm()
            cpu, features, _ = _features()
            machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
                cpu=cpu, features=features, opt=2
            )
            module = llvm.parse_assembly(ir)
            module.verify()
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
            engine = llvm.create_mcjit_compiler(module, machine)
            for outside in (f for f in module.functions if f.is_declaration and f.name in _OUTSIDE):
                engine.add_global_mapping(outside, _OUTSIDE[outside.name])
            engine.finalize_object()
            _ENGINES.append(engine)  # keeps the code
            _FUNCTIONS[name] = engine.get_function_address(name)
        return _FUNCTIONS[name]


# --- stopping from outside -------------------------------------------------------------------------------------------

_raised = threading.local()


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_int64)
def _look(pe: PE, cycles: int) -> int:
    """What loops of native code ask: 0 to go on. An exception cannot pass through them, so it waits behind them."""
    try:
        pe.look(cycles)
    except BaseException as problem:  # noqa: BLE001
        _raised.problem = problem
        return 1
    return 0


_OUTSIDE = {
    "wsesim_look": ctypes.cast(_look, ctypes.c_void_p).value,
    "PyErr_CheckSignals": ctypes.cast(ctypes.pythonapi.PyErr_CheckSignals, ctypes.c_void_p).value,
}


class NativeRun:
    """One run of one machine: counts its Python executions, then compiles itself."""

    __slots__ = (
        "arch",
        "asserts",
        "bounds",
        "count",
        "floats",
        "fn",
        "ints",
        "program",
        "ready",
        "region",
        "strict",
        "timing",
    )

    def __init__(
        self, region: Region, program: PeProgram, bounds: Bounds, timing: Timing, arch: int, *, strict: bool = False
    ) -> None:
        self.strict = strict
        self.region, self.program, self.bounds, self.timing, self.arch = region, program, bounds, timing, arch
        self.asserts: list[T.Assert] = []
        self.count = 0
        self.ready = False
        self.fn: Any = None
        size = 3 + sum(3 if is_vector(v.type) else 1 for v in region.outputs) + 3 * len(region.objects_out)
        self.ints = (ctypes.c_int64 * size)()
        self.floats = (ctypes.c_double * max(1, len(region.outputs)))()

    def touch(self) -> bool:
        """Counts one execution; True when the native code is ready."""
        self.count += 1
        if self.count == HOT:
            self._compile()
        return self.ready

    def _compile(self) -> None:
        region = self.region
        try:
            text, self.asserts = write_region(
                region, self.program, self.bounds, self.timing, self.arch, "@", strict=self.strict
            )
        except Unsupported:
            return
        name = "r" + hashlib.sha256(text.encode()).hexdigest()[:24]
        address = _address(text.replace('"@"', f'"{name}"'), name)
        kinds: list[Any] = [ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * region.frame
        for var in region.inputs:
            kinds += [ctypes.c_int64] * 3 if is_vector(var.type) else [_c_type(var)]
        kinds += [ctypes.c_int64] * 3 * len(region.objects_in) + [ctypes.c_void_p, ctypes.c_void_p]
        self.fn = ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(address)
        self.ready = True

    def fault(self, pe: PE, code: int) -> None:
        """Raises what a code of the native function means."""
        if code >= ASSERTED:
            failed = self.asserts[code - ASSERTED]
            said = f": {failed.text}" if failed.text else ""
            raise ProgramFault(f"{failed.pos}: assertion failed on {pe.where}{said}", placed=True)
        if code == STOPPED:
            raise _raised.__dict__.pop("problem")
        texts = {
            INDEX: "an index is outside its array",
            LENGTHS: "the vectors of an operation differ in length",
            OUTSIDE: "an access lies outside its variable or the memory of a PE",
            UNALIGNED: "a 32-bit value is not aligned",
        }
        raise ProgramFault(f"{pe.where}: {texts.get(code, 'integer division by zero')}")


def _c_type(var: T.Local) -> Any:
    return ctypes.c_double if is_float(var.type) else ctypes.c_int64


def lines(run: NativeRun, name: str) -> list[str]:
    """Python lines that call a compiled run and take its results back."""
    region = run.region
    args = ["pe", "pe.base", "pe.bounds.base", *(["fp"] if region.frame else [])]
    for var in region.inputs:
        local = f"v{var.index}"
        if is_vector(var.type):
            args += [f"{local}.addr | {local}.home << 16", f"{local}.length", f"{local}.stride"]
        else:
            args.append(f"float({local})" if is_float(var.type) else local)
    before = []
    for i, symbol in enumerate(region.objects_in):
        before.append(f"_d{i} = pe.objects[{symbol!r}][0] or NO_MEM")
        args += [f"_d{i}.addr | _d{i}.home << 16", f"_d{i}.length", f"_d{i}.stride"]
    args += [f"{name}.ints", f"{name}.floats"]
    out = [
        *(f"v{v.index} = v{v.index} or NO_MEM" for v in region.inputs if is_vector(v.type)),
        *before,
        f"_c = {name}.fn({', '.join(args)})",
        f"if _c: {name}.fault(pe, _c)",
        f"_i = {name}.ints; pe.t += _i[0]; pe.ops_run += _i[1]",
        "if _i[2]: pe.went_beyond()",
    ]
    at, fat = 3, 0
    for var in region.outputs:
        if is_vector(var.type):
            out.append(f"v{var.index} = {_mem(at)}")
            at += 3
        elif is_float(var.type):
            out.append(f"v{var.index} = {name}.floats[{fat}]")
            fat += 1
        else:
            boolean = isinstance(var.type, SimpleType) and var.type.name == "bool"
            out.append(f"v{var.index} = {f'_i[{at}] != 0' if boolean else f'_i[{at}]'}")
            at += 1
    for symbol in region.objects_out:
        out.append(f"pe.objects[{symbol!r}][0] = {_mem(at)}")
        at += 3
    return out


def _mem(at: int) -> str:
    """A descriptor that native code gave back: address and owner share a number."""
    return f"Mem(_i[{at}] & 65535, _i[{at + 1}], _i[{at + 2}], False, _i[{at}] >> 16)"
