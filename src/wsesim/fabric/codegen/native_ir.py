"""LLVM IR of a native run: one function that takes locals and descriptors in and gives them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import llvmlite.ir as ir

from wsesim.csl.program import typed_tree as T
from wsesim.fabric.codegen.native_expressions import (
    ASSERTED,
    F16,
    F32,
    F64,
    I1,
    I32,
    I64,
    LOOK_CYCLES,
    PTR,
    Loop,
    NativeExpressions,
    Region,
    Unsupported,
    is_float,
    is_vector,
    scalar_type,
)

if TYPE_CHECKING:
    from wsesim.csl.program.elaborated import PeProgram
    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.timing import Timing

__all__ = ["write_region"]


def write_region(
    region: Region, program: PeProgram, bounds: Bounds, timing: Timing, arch: int, name: str, *, strict: bool
) -> tuple[str, list[T.Assert]]:
    """The IR module of a region: ``i32 name(pe, mem, bounds, [frame], inputs..., ptr out_i64, ptr out_f64)``."""
    writer = _NativeWriter(program, bounds, timing, arch, name, strict=strict)
    return writer.region(region), writer.asserts


class _NativeWriter(NativeExpressions):
    # --- frames ----------------------------------------------------------------------------------------------------

    def region(self, region: Region) -> str:
        """The whole module."""
        kinds: list[Any] = [PTR, PTR, PTR] + ([I64] if region.frame else [])
        for var in region.inputs:
            kinds += [I64] * 3 if is_vector(var.type) else [F64 if is_float(var.type) else I64]
        kinds += [I64] * 3 * len(region.objects_in) + [PTR, PTR]
        function = ir.Function(self.module, ir.FunctionType(I32, kinds), self.name)
        args = list(function.args)
        self.pe, self.memory, self.table = (args.pop(0) for _ in range(3))
        self.memory.add_attribute("noalias")
        out_f, out_i = args.pop(), args.pop()
        self.frame_pointer = args.pop(0) if region.frame else None
        frame = self.enter(function)
        b = frame.builder
        self.cycles, self.ops, self.loose = (self._slot(I64) for _ in range(3))
        for cell in (self.cycles, self.ops, self.loose):
            b.store(I64(0), cell)
        self.due = self._slot(I64)
        b.store(I64(LOOK_CYCLES), self.due)
        for var in region.inputs:
            self._take_input(var, args)
        for symbol in region.objects_in:
            self._store_vector(self._object(symbol), [args.pop(0) for _ in range(3)])
        self.block(region.body)
        self._write_outputs(region, out_i, out_f)
        b.ret(I32(0))
        return str(self.module)

    def _take_input(self, var: T.Local, args: list[Any]) -> None:
        if is_vector(var.type):
            self._store_vector(self._local(var), [args.pop(0) for _ in range(3)])
            return
        value, kind = args.pop(0), scalar_type(var.type)
        if kind in (F16, F32):
            value = self.b.fptrunc(value, kind)
        elif kind == I1:
            value = self.b.icmp_signed("!=", value, I64(0))
        self.b.store(value, self._local(var))

    def _write_outputs(self, region: Region, out_i: Any, out_f: Any) -> None:
        ints: list[Any] = [self.b.load(cell, typ=I64) for cell in (self.cycles, self.ops, self.loose)]
        floats: list[Any] = []
        for var in region.outputs:
            if is_vector(var.type):
                ints += self._load_vector(self._local(var))
                continue
            kind = scalar_type(var.type)
            value = self.b.load(self._local(var), typ=kind)
            if kind in (F16, F32):
                floats.append(self.b.fpext(value, F64))
            else:
                ints.append(self.b.zext(value, I64) if kind == I1 else value)
        for symbol in region.objects_out:
            ints += self._load_vector(self._object(symbol))
        for i, value in enumerate(ints):
            self.b.store(value, self.b.gep(out_i, [I64(i)], source_etype=I64))
        for i, value in enumerate(floats):
            self.b.store(value, self.b.gep(out_f, [I64(i)], source_etype=F64))

    # --- statements ------------------------------------------------------------------------------------------------

    def block(self, body: tuple[T.Stmt, ...]) -> None:
        """Statements; their straight-line cycles are added at the start."""
        saved, self.cost = self.cost, 0
        cost = ir.Constant(I64, 0)
        self.add(self.cycles, cost)
        for stmt in body:
            if self.terminated:
                break
            self.statement(stmt)
        cost.constant = self.cost
        self.cost = saved

    def statement(self, stmt: T.Stmt) -> None:
        """One statement."""
        match stmt:
            case T.Let(local, init):
                if init is not None:
                    self._assign_local(local, init)
                elif is_vector(local.type):
                    self._store_vector(self._local(local), [I64(0)] * 3)
                else:
                    kind = scalar_type(local.type)
                    self.b.store(ir.Constant(kind, 0.0 if kind in (F16, F32) else 0), self._local(local))
            case T.Assign(place, value):
                self.assign(place, value)
            case T.ExprStmt(T.DsdOp() as op):
                self.operation(op)
            case T.ExprStmt(expr):
                self.expr(expr)
            case T.If(cond, then, other):
                self.cost += self.timing.branch
                self._if(self.expr(cond), then, other)
            case T.While():
                self._while(stmt)
            case T.ForRange():
                self._for(stmt)
            case T.Block(body, label):
                self._block(body, label)
            case T.Switch():
                self._switch(stmt)
            case T.Break(label) | T.Continue(label):
                self._jump(isinstance(stmt, T.Break), label)
            case T.Return(value):
                self._return(value)
            case T.Assert(cond):
                self.asserts.append(stmt)
                self.fault_unless(self.expr(cond), ASSERTED + len(self.asserts) - 1)
            case T.CopyBytes():
                raise Unsupported(type(stmt).__name__)
            case _:
                assert_never(stmt)

    def _assign_local(self, local: T.Local, value: T.Expr) -> None:
        if is_vector(local.type):
            self._store_vector(self._local(local), self.vector(value))
        else:
            found = self.expr(value)
            self.b.store(found, self._local(local))

    def assign(self, place: T.Place, value: T.Expr) -> None:
        """``place = value``."""
        match place:
            case T.Local():
                self._assign_local(place, value)
            case T.ObjectRef(symbol=symbol, index=None) if is_vector(place.type):
                self._store_vector(self._object(symbol), self.vector(value))
            case T.MemRef(bits=None):
                self.cost += self.timing.memory_access
                # Python evaluates the right side first.
                found = self.expr(value)
                pointer, size = self.cell(place)
                self.b.store(self._to_memory(found, size), pointer, align=min(size, 2))
            case _:
                raise Unsupported("this assignment")

    def _if(self, cond: Any, then: tuple[T.Stmt, ...], other: tuple[T.Stmt, ...]) -> None:
        function = self.frame.function
        yes, no, end = (function.append_basic_block() for _ in range(3))
        self.b.cbranch(cond, yes, no if other else end)
        self._branch_body(yes, then, end)
        if other:
            self._branch_body(no, other, end)
        else:
            ir.IRBuilder(no).unreachable()
        self.b.position_at_end(end)

    def _branch_body(self, start: ir.Block, body: tuple[T.Stmt, ...], end: ir.Block) -> None:
        self.b.position_at_end(start)
        self.block(body)
        if not self.terminated:
            self.b.branch(end)

    def _while(self, stmt: T.While) -> None:
        function = self.frame.function
        head, body, step, end = (function.append_basic_block() for _ in range(4))
        self.b.branch(head)
        self.b.position_at_end(head)
        saved, self.cost = self.cost, self.timing.branch
        cost = ir.Constant(I64, 0)
        self.add(self.cycles, cost)
        cond = self.expr(stmt.cond)
        cost.constant = self.cost
        self.cost = saved
        self.b.cbranch(cond, body, end)
        self.frame.loops.append(Loop(stmt.label, end, step, stmt.step, head))
        self.b.position_at_end(body)
        self.look()
        self.block(stmt.body)
        if not self.terminated:
            self.b.branch(step)
        self.frame.loops.pop()
        self.b.position_at_end(step)
        for inner in stmt.step:
            self.statement(inner)
        self.b.branch(head)
        self.b.position_at_end(end)

    def _for(self, stmt: T.ForRange) -> None:
        function = self.frame.function
        start, stop, step = self.expr(stmt.start), self.expr(stmt.stop), self.expr(stmt.step)
        cell, var = self._slot(I64), self._local(stmt.local)
        self.b.store(start, cell)
        head, body, again, end = (function.append_basic_block() for _ in range(4))
        self.b.branch(head)
        self.b.position_at_end(head)
        now = self.b.load(cell, typ=I64)
        up = self.b.icmp_signed("<", now, stop)
        down = self.b.icmp_signed(">", now, stop)
        forward = self.b.icmp_signed(">", step, I64(0))
        self.b.cbranch(self.b.select(forward, up, down), body, end)
        self.b.position_at_end(body)
        self.b.store(now, var)
        self.add(self.cycles, I64(self.timing.branch))
        self.look()
        self.frame.loops.append(Loop(stmt.label, end, again))
        self.block(stmt.body)
        self.frame.loops.pop()
        if not self.terminated:
            self.b.branch(again)
        self.b.position_at_end(again)
        self.b.store(self.b.add(self.b.load(cell, typ=I64), step), cell)
        self.b.branch(head)
        self.b.position_at_end(end)

    def _block(self, body: tuple[T.Stmt, ...], label: str) -> None:
        if not label:
            for stmt in body:
                if not self.terminated:
                    self.statement(stmt)
            return
        end = self.frame.function.append_basic_block()
        self.frame.loops.append(Loop(label, end, end, is_block=True))
        self.block(body)
        self.frame.loops.pop()
        if not self.terminated:
            self.b.branch(end)
        self.b.position_at_end(end)

    def _jump(self, is_break: bool, label: str) -> None:
        loops = [x for x in self.frame.loops if (x.label == label if label else not x.is_block)]
        if not loops:
            raise Unsupported("a jump out of the region")
        loop = loops[-1]
        if is_break:
            self.b.branch(loop.leave)
            return
        if not label and loop.step:  # as the generated Python: the step is written out before the jump
            for step in loop.step:
                self.statement(step)
            assert loop.head is not None
            self.b.branch(loop.head)
            return
        self.b.branch(loop.again)

    def _switch(self, stmt: T.Switch) -> None:
        self.cost += self.timing.branch
        value = self.expr(stmt.value)
        end = self.frame.function.append_basic_block()
        for case in stmt.cases:
            test: Any = I1(0)
            for low, high in case.ranges:
                inside = self.b.and_(
                    self.b.icmp_signed(">=", value, I64(low)), self.b.icmp_signed("<=", value, I64(high))
                )
                test = self.b.or_(test, inside)
            yes, no = (self.frame.function.append_basic_block() for _ in range(2))
            self.b.cbranch(test, yes, no)
            self._branch_body(yes, case.body, end)
            self.b.position_at_end(no)
        if stmt.default:
            self.block(stmt.default)
        if not self.terminated:
            self.b.branch(end)
        self.b.position_at_end(end)
