"""Python source for PE programs.

Every function of an elaborated PE program becomes one Python function whose first argument is the PE; scalars are
Python numbers rounded to their type, memory is reached through typed views. A function that may wait for the fabric is
a generator: it yields the operation it waits for. Identical PEs share the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from wsesim import watch
from wsesim.csl.program import typed_tree as T
from wsesim.csl.sema.types import ArrayType, DsdType, FloatType, SimpleType, StructType
from wsesim.fabric.bounds import Bounds
from wsesim.fabric.codegen import native_runs as native
from wsesim.fabric.codegen import runtime_support as values
from wsesim.fabric.codegen.python_expressions import Expressions, op_may_stall
from wsesim.fabric.dsd import Mem
from wsesim.fabric.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wsesim.csl.program.elaborated import Function, PeProgram
    from wsesim.csl.sema.types import Type
    from wsesim.fabric.timing import Timing

__all__ = ["Code", "Compiled", "compile_program"]


@dataclass(frozen=True)
class Compiled:
    """One function: what to call, and whether it is a generator."""

    call: Any
    stalls: bool
    name: str
    params: tuple[Type, ...]


@dataclass
class Code:
    """The compiled functions of a PE program, its text and the CSL position of each line."""

    bounds: Bounds
    functions: dict[str, Compiled] = field(default_factory=dict)
    source: str = ""
    positions: list[T.Position] = field(default_factory=list)
    native: list[native.NativeRun] = field(default_factory=list)


def _walk(node: Any) -> Iterable[Any]:
    """Every tree node below ``node``."""
    work = [node]
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            work.extend(item)
        elif type(item).__module__ == T.__name__ and not isinstance(item, T.Position):
            yield item
            work.extend(getattr(item, name) for name in item.__dataclass_fields__ if name not in ("pos", "type"))


def stalling(program: PeProgram) -> set[str]:
    """Symbols of the functions that may wait for the fabric."""
    direct: set[str] = set()
    callees: dict[str, set[str]] = {}
    for symbol, fn in program.functions.items():
        callees[symbol] = set()
        for node in _walk(fn.body):
            if isinstance(node, T.Call):
                callees[symbol].add(node.symbol)
            elif isinstance(node, T.DsdOp):
                if not node.options.is_async and op_may_stall(node):
                    direct.add(symbol)
            elif isinstance(node, T.MapOp):
                callees[symbol].add(node.callback)
                if op_may_stall(node):
                    direct.add(symbol)
            elif isinstance(node, T.Builtin):
                callees[symbol].update(a.symbol for a in node.args if isinstance(a, T.FunctionRef))
    changed = True
    while changed:
        changed = False
        for symbol, called in callees.items():
            if symbol not in direct and called & direct:
                direct.add(symbol)
                changed = True
    return direct


def compile_program(program: PeProgram, timing: Timing, title: str, arch: int = 1, *, strict: bool = False) -> Code:
    """Python functions for a PE program, with native code for their hot pure parts; ``arch`` is 0 for WSE-2."""
    code = Code(Bounds(program))
    names = {symbol: f"fn{i}" for i, symbol in enumerate(program.functions)}
    stalls = stalling(program)
    space: dict[str, Any] = dict(values.NAMESPACE)
    space["OPS"] = OPS
    space["NO_MEM"], space["Mem"] = Mem(0, 0, 0), Mem
    writer = _PythonWriter(program, timing, names, stalls, space, code)
    writer.arch, writer.strict = arch, strict
    if native.enabled():
        writer.planner = native.Planner(program)
    for symbol, fn in program.functions.items():
        watch.poll()
        writer.function(symbol, fn)
    code.source = "\n".join(writer.lines) + "\n"
    exec(compile(code.source, f"<csl {title}>", "exec"), space)  # noqa: S102
    for symbol, fn in program.functions.items():
        params = tuple(p.type for p in fn.params)
        code.functions[symbol] = Compiled(space[names[symbol]], symbol in stalls, fn.name, params)
        space[names[symbol]].csl_name = fn.name
    return code


class _PythonWriter(Expressions):
    """Writes the functions of one program."""

    planner: native.Planner | None = None
    function_now: Function | None = None
    plain = False
    arch = 1
    strict = False

    # --- text ----------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)
        self.code.positions.append(self.pos)

    def function(self, symbol: str, fn: Function) -> None:
        """One function."""
        self.pos = fn.pos
        self.frame = fn.frame_size
        self.function_now = fn
        self.ranges.clear()
        params = ", ".join(["pe", *(self.local(p) for p in fn.params)])
        self.emit(f"def {self.names[symbol]}({params}):  # {fn.symbol}")
        self.depth += 1
        start = len(self.lines)
        if self.frame:
            self.emit(f"fp = push(pe, {self.frame})")
        self.block(fn.body)
        self.leave(None)
        if symbol in self.stalls:
            self.emit("yield")  # never reached: makes this a generator even when every wait was pruned
        views = [v for v in values.VIEWS if any(f"{v}[" in line for line in self.lines[start:])]
        if views:
            text = "    " + "; ".join(f"{v} = pe.{v}" for v in views)
            self.lines.insert(start, text)
            self.code.positions.insert(start, fn.pos)
        self.depth -= 1

    def leave(self, value: str | None) -> None:
        if not self.frame:
            self.emit("return" if value is None else f"return {value}")
            return
        if value is not None:
            self.emit(f"r = {value}")
        self.emit("pe.sp = fp")
        self.emit("return" if value is None else "return r")

    # --- statements ------------------------------------------------------------------------------------------------

    def block(self, body: tuple[T.Stmt, ...]) -> None:
        """Statements, preceded by the cycles of the straight-line part."""
        at = len(self.lines)
        saved, self.cost = self.cost, 0
        for part in self.planner.runs(body) if self.planner is not None and not self.plain else body:
            if isinstance(part, tuple):
                self.native_run(part)
            else:
                self.statement(part)
        if self.cost:
            self.lines.insert(at, "    " * self.depth + f"pe.t += {self.cost}")
            self.code.positions.insert(at, self.pos)
        if len(self.lines) == at:
            self.emit("pass")
        self.cost = saved

    def native_run(self, body: tuple[T.Stmt, ...]) -> None:
        """Statements that become native code when hot, beside their Python."""
        assert self.planner is not None
        assert self.function_now is not None
        region = self.planner.region(body, self.function_now)
        run = native.NativeRun(region, self.program, self.code.bounds, self.timing, self.arch, strict=self.strict)
        self.code.native.append(run)
        name = self.constant(run)
        self.emit(f"if {name}.ready or {name}.touch():")
        self.depth += 1
        for line in native.lines(run, name):
            self.emit(line)
        self.depth -= 1
        self.emit("else:")
        self.plain = True  # no runs inside a run
        self.nested(body)
        self.plain = False

    def statement(self, stmt: T.Stmt) -> None:
        """One statement."""
        self.pos = stmt.pos if stmt.pos != T.NOWHERE else self.pos
        match stmt:
            case T.Let(local, init):
                if init is not None:
                    self.emit(f"{self.local(local)} = {self.expr(init)}")
                else:
                    self.emit(f"{self.local(local)} = {self.undefined(local.type)}")
            case T.Assign(place, value):
                self.assign(place, value)
            case T.CopyBytes():
                self.copy(stmt)
            case T.ExprStmt(T.Load(place=T.MemRef() as place)) if isinstance(place.type, ArrayType | StructType):
                self.emit(self.address(place))  # nobody takes the value
            case T.ExprStmt(expr):
                self.emit(self.expr(expr))
            case T.Block(body, label):
                self.labelled(body, label)
            case T.If(cond, then, other):
                self.cost += self.timing.branch
                self.emit(f"if {self.expr(cond)}:")
                self.nested(then)
                if other:
                    self.emit("else:")
                    self.nested(other)
            case T.While():
                self.loop(stmt)
            case T.ForRange():
                self.for_range(stmt)
            case T.Switch():
                self.switch(stmt)
            case T.Break(label):
                self.jump("Break", label)
            case T.Continue(label):
                self.jump("Continue", label)
            case T.Return(value):
                self.leave(None if value is None else self.expr(value))
            case T.Assert(cond, text):
                self.emit(f"if not ({self.expr(cond)}): failed(pe, {text!r}, {str(stmt.pos)!r})")
            case _:
                assert_never(stmt)

    def nested(self, body: tuple[T.Stmt, ...]) -> None:
        self.depth += 1
        self.block(body)
        self.depth -= 1

    @staticmethod
    def undefined(kind: Type) -> str:
        if isinstance(kind, FloatType):
            return "0.0"
        if isinstance(kind, SimpleType) and kind.name == "bool":
            return "False"
        return "None" if isinstance(kind, DsdType) else "0"

    def assign(self, place: T.Place, value: T.Expr) -> None:
        match place:
            case T.Local():
                self.emit(f"{self.local(place)} = {self.expr(value)}")
            case T.ObjectRef(symbol=symbol, index=index):
                at = "0" if index is None else self.index(index, len(self.program.globals[symbol].objects))
                self.emit(f"pe.objects[{symbol!r}][{at}] = {self.expr(value)}")
            case T.MemRef(bits=None):
                self.cost += self.timing.memory_access
                self.emit(f"{self.cell(place)} = {self.stored(value)}")
            case T.MemRef(bits=bits):
                assert bits is not None
                self.emit(f"setbits(pe, {self.address(place)}, {bits[0]}, {bits[1]}, {self.expr(value)})")
            case _:
                assert_never(place)

    def stored(self, value: T.Expr) -> str:
        """A value about to be rounded by memory itself."""
        text = self.expr(value)
        kind = value.type
        if isinstance(kind, SimpleType) and kind.name == "bool":
            return f"(1 if {text} else 0)"  # NumPy's own bool does not fit a byte of memory
        if (
            isinstance(kind, FloatType)
            and kind.name == "f32"
            and isinstance(value, T.Binary)
            and text.startswith("F32(")
        ):
            return text[4:-1] if value.op != "%" else text
        return text

    def copy(self, stmt: T.CopyBytes) -> None:
        self.cost += max(1, stmt.size // 4)
        dest = self.address(stmt.dest)
        if isinstance(stmt.source, T.MemRef):
            self.emit(f"move(pe, {dest}, {self.address(stmt.source)}, {stmt.size})")
            return
        image = bytes(stmt.size) if stmt.source is None else stmt.source
        self.emit(f"fill(pe, {dest}, {self.constant(image, ('bytes', image))})")

    def labelled(self, body: tuple[T.Stmt, ...], label: str) -> None:
        if not label:
            for stmt in body:
                self.statement(stmt)
            if not body:
                self.emit("pass")
            return
        self.loops.append((f"block {label}", ()))
        self.emit("try:")
        self.nested(body)
        self.emit(f"except Break as _b:\n{'    ' * (self.depth + 1)}if _b.label != {label!r}: raise")
        self.code.positions.append(self.pos)
        self.loops.pop()

    def loop(self, stmt: T.While) -> None:
        self.emit("while True:")
        self.depth += 1
        self.emit(f"if not ({self.timed_expr(stmt.cond)}): break")
        self.emit("if pe.t > pe.due: pe.look()")
        self.loop_body(stmt.body, stmt.step, stmt.label)
        for step in stmt.step:
            self.statement(step)
        self.depth -= 1

    def timed_expr(self, expr: T.Expr) -> str:
        saved, self.cost = self.cost, self.timing.branch
        text = self.expr(expr)
        self.emit(f"pe.t += {self.cost}")
        self.cost = saved
        return text

    def for_range(self, stmt: T.ForRange) -> None:
        start, stop, step = self.expr(stmt.start), self.expr(stmt.stop), self.expr(stmt.step)
        self.emit(f"for {self.local(stmt.local)} in range({start}, {stop}, {step}):")
        self.ranges.pop(stmt.local.index, None)
        if isinstance(stmt.start, T.Const) and isinstance(stmt.stop, T.Const) and stmt.start.value >= 0:
            self.ranges[stmt.local.index] = int(max(stmt.start.value, stmt.stop.value - 1))
        self.depth += 1
        self.emit(f"pe.t += {self.timing.branch}")
        self.emit("if pe.t > pe.due: pe.look()")
        self.loop_body(stmt.body, (), stmt.label)
        self.depth -= 1

    def loop_body(self, body: tuple[T.Stmt, ...], step: tuple[T.Stmt, ...], label: str) -> None:
        """The body; a labelled loop that inner loops leave or continue by name is guarded by exceptions."""
        self.loops.append((f"loop {label}", step))
        inner = label and any(isinstance(n, T.Break | T.Continue) and n.label == label for n in _walk(body))
        if not inner:
            self.block(body)
            self.loops.pop()
            return
        pad = "    " * (self.depth + 1)
        self.emit("try:")
        self.nested(body)
        # Continue is a kind of Break, so it comes first.
        self.emit(f"except Continue as _b:\n{pad}if _b.label != {label!r}: raise")
        self.code.positions.append(self.pos)
        self.emit(f"except Break as _b:\n{pad}if _b.label != {label!r}: raise\n{pad}break")
        self.code.positions.extend([self.pos] * 2)
        self.loops.pop()

    def jump(self, what: str, label: str) -> None:
        kind = self.loops[-1] if self.loops else ("", ())
        if not label and kind[0].startswith("loop"):
            if what == "Continue":
                for step in kind[1]:
                    self.statement(step)
            self.emit("break" if what == "Break" else "continue")
            return
        self.emit(f"raise {what}({label!r})")

    def switch(self, stmt: T.Switch) -> None:
        self.cost += self.timing.branch
        self.emit(f"_s = {self.expr(stmt.value)}")
        word = "if"
        for case in stmt.cases:
            tests = [f"_s == {a}" if a == b else f"{a} <= _s <= {b}" for a, b in case.ranges]
            self.emit(f"{word} {' or '.join(tests) or 'False'}:")
            self.nested(case.body)
            word = "elif"
        if stmt.default:
            if word == "if":
                self.emit("if True:")
            else:
                self.emit("else:")
            self.nested(stmt.default)
