"""Statements run by the compiler: comptime blocks, layout blocks, functions called at compile time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

from wsesim import watch
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.calls import Calls
from wsesim.csl.sema.coerce import coerce
from wsesim.csl.sema.core import Cell, CellRef
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.values import CV, VOID_VALUE, ArrayValue, RangeValue
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wsesim.csl.syntax.source import Position

__all__ = ["Execute"]

# None: go on; otherwise ("return", value), ("break", label, value) or ("continue", label).
Signal: TypeAlias = tuple[str, str, CV | None] | None

STEP_LIMIT = 50_000_000


class Execute(Calls):
    """Comptime statements."""

    def run_block(self, block: s.Block) -> None:
        """A top-level comptime or layout block."""
        self.scopes = [{}]
        for statement in block.body:
            self.unit.attempt(lambda x=statement: self._top_statement(x))

    def _top_statement(self, statement: s.Stmt) -> None:
        signal = self.run(statement)
        if signal is not None:
            stop("misplaced-jump", f"{signal[0]} outside a function or loop", statement.pos)

    def run_function(self, body: s.Block) -> CV | None:
        """A function body; the value it returns."""
        signal = self._sequence(body.body)
        if signal is None or signal[0] != "return":
            return None
        return signal[2]

    def _sequence(self, body: tuple[s.Stmt, ...]) -> Signal:
        self.scopes.append({})
        try:
            for statement in body:
                signal = self.run(statement)
                if signal is not None:
                    return signal
            return None
        finally:
            self.scopes.pop()

    def run(self, node: s.Stmt) -> Signal:
        """One statement."""
        match node:
            case s.ExpressionStmt(expr):
                self.eval(expr)
            case s.Assignment():
                self._assign(node)
            case s.VarDecl():
                self._declare(node)
            case s.IfStmt():
                return self._if(node)
            case s.Block(body, label):
                return self._block(body, label)
            case s.ForStmt():
                return self._for(node)
            case s.WhileStmt():
                return self._while(node)
            case s.SwitchStmt(value, arms):
                return self._switch(value, arms)
            case s.ReturnStmt(value):
                return self._return(value, node.pos)
            case s.BreakStmt(label, value):
                return ("break", label, None if value is None else self.comptime(value))
            case s.ContinueStmt(label):
                return ("continue", label, None)
            case s.ComptimeBlock(body):
                return self._sequence(body.body)
            case s.Comment():
                return None
            case _:
                assert_never(node)
        return None

    def _block(self, body: tuple[s.Stmt, ...], label: str) -> Signal:
        signal = self._sequence(body)
        if signal is not None and label and signal[:2] == ("break", label):
            return None
        return signal

    def _return(self, value: s.Expr | None, pos: Position) -> Signal:
        if value is None:
            if self.ret not in (None, t.VOID):
                stop("missing-return", f"the function returns {self.ret}", pos)
            return ("return", "", VOID_VALUE)
        found = self.comptime(value)
        if self.ret is not None:
            found = coerce(found, self.ret, value.pos, "the return value")
        assert isinstance(found, CV)
        return ("return", "", found)

    def _declare(self, node: s.VarDecl) -> None:
        kind = self.type(node.type) if node.type is not None else None
        if node.init is None:
            if kind is None or node.const:
                stop("missing-initializer", f"'{node.name}' needs an initial value", node.pos)
            undefined = self.default_value(kind)
            self.declare(node.name, Cell(kind, None if undefined is None else CV(kind, undefined)), node.pos)
            return
        value = self.comptime(node.init)
        if kind is not None:
            value = coerce(value, kind, node.init.pos, f"'{node.name}'")
        assert isinstance(value, CV)
        if node.const:
            self.declare(node.name, value, node.pos)
            return
        declared = kind if kind is not None else value.type
        loose = declared is t.COMPTIME_STRUCT
        self.declare(node.name, Cell(None if loose else declared, self.copy_value(value)), node.pos)

    # --- assignment ---

    def _assign(self, node: s.Assignment) -> None:
        place = self.reach(node.target)
        if not isinstance(place, CellRef):
            if isinstance(place, tree.MemRef | tree.ObjectRef | tree.Local):
                stop("comptime-store", "a run-time variable cannot be changed at compile time", node.pos)
            stop("const-write", "the left side is a constant", node.pos, "declare it with var")
        self.store_cell(place, node)

    def store_cell(self, place: CellRef, node: s.Assignment) -> None:
        """Assigns to a comptime variable."""
        value = self.comptime(node.value)
        if node.op != "=":
            result = self.apply(node.op[:-1], self.read_cell(place, node.pos), value, node.pos)
            assert isinstance(result, CV)
            value = result
        cell = place.cell
        if cell.const:
            stop("const-write", "the left side is a constant", node.pos, "declare it with var")
        if not place.path:
            kind = cell.type
            converted = value if kind is None else coerce(value, kind, node.value.pos)
            assert isinstance(converted, CV)
            cell.value = self.copy_value(converted)
            return
        converted = coerce(value, place.type, node.value.pos) if place.type is not t.COMPTIME_STRUCT else value
        assert isinstance(converted, CV)
        holder = cell.value
        for step in place.path[:-1]:
            assert holder is not None
            holder = CV(holder.type.elem, holder.value[step]) if isinstance(step, int) else holder.value[step]  # type: ignore[attr-defined]
        assert holder is not None
        last = place.path[-1]
        if isinstance(last, int):
            holder.value.items[last] = converted.value
        else:
            holder.value[last] = converted

    # --- control flow ---

    def _if(self, node: s.IfStmt) -> Signal:
        cond = self.comptime_condition(node.cond)
        chosen = node.then if cond else node.other
        return None if chosen is None else self.run(chosen)

    def comptime_condition(self, node: s.Expr) -> bool:
        """A condition known now."""
        found = self.condition(node)
        if not isinstance(found, CV):
            self.not_comptime(node.pos, "this condition")
        return found.value

    def _tick(self, pos: Position) -> None:
        self.unit.steps += 1
        if not self.unit.steps % 64:
            watch.poll()
        if self.unit.steps > STEP_LIMIT:
            stop(
                "comptime-limit", f"more than {STEP_LIMIT} loop iterations at compile time", pos, "is the loop endless?"
            )

    def _loop_signal(self, signal: Signal, label: str) -> tuple[bool, Signal]:
        """Whether to leave the loop, and what to pass on."""
        if signal is None:
            return False, None
        kind, target, _ = signal
        mine = not target or target == label
        if kind == "break" and mine:
            return True, None
        if kind == "continue" and mine:
            return False, None
        return True, signal

    def _while(self, node: s.WhileStmt) -> Signal:
        while self.comptime_condition(node.cond):
            self._tick(node.pos)
            leave, signal = self._loop_signal(self.run(node.body), node.label)
            if leave:
                return signal
            if node.step is not None:
                self.run(node.step)
        return None

    def _for(self, node: s.ForStmt) -> Signal:
        iterable = self.comptime(node.iterable, "what a comptime loop runs over")
        for index, item in enumerate(self.iterate(iterable, node.iterable.pos)):
            self._tick(node.pos)
            scope = {node.item: item}
            if node.index is not None:
                scope[node.index] = CV(t.U16, index)
            self.scopes.append(scope)  # type: ignore[arg-type]
            try:
                leave, signal = self._loop_signal(self.run(node.body), node.label)
            finally:
                self.scopes.pop()
            if leave:
                return signal
        return None

    def iterate(self, value: CV, pos: Position) -> Iterator[CV]:
        """The elements of a comptime-known range, array or tuple."""
        match value.value:
            case RangeValue(elem, start, stop=end, step=step):
                if not (isinstance(start, CV) and isinstance(end, CV) and isinstance(step, CV)):
                    self.not_comptime(pos, "the bounds of this range")
                return (CV(elem, i) for i in range(start.value, end.value, step.value))
            case ArrayValue():
                assert isinstance(value.type, t.ArrayType)
                elem = value.type.elem
                return (CV(elem, x) for x in value.value.items)
            case dict() if all(k.isdecimal() for k in value.value):
                return iter(value.value.values())
            case _:
                stop("not-iterable", f"cannot loop over a value of type {value.type}", pos, "use @range or an array")
        return None

    def _switch(self, value: s.Expr, arms: tuple[s.SwitchArm, ...]) -> Signal:
        arm = self.choose(self.comptime(value), arms, value.pos)
        if arm is None:
            return None
        if isinstance(arm.body, s.Stmt):
            return self.run(arm.body)
        self.eval(arm.body)
        return None

    def choose(self, value: CV, arms: tuple[s.SwitchArm, ...], pos: Position) -> s.SwitchArm | None:
        """The arm for a comptime-known value."""
        default = None
        for arm in arms:
            if not arm.items:
                default = arm
            for low, high in self.arm_ranges(arm, value.type):
                if low <= value.value <= high:
                    return arm
        if default is None:
            self.check_exhaustive(value.type, arms, pos)
        return default

    def arm_ranges(self, arm: s.SwitchArm, kind: t.Type) -> list[tuple[int, int]]:
        """The values of an arm as inclusive pairs."""
        found = []
        for item in arm.items:
            low, high = item if isinstance(item, tuple) else (item, item)
            ends = [coerce(self.comptime(x, "a case"), kind, x.pos, "a case") for x in (low, high)]
            found.append((int(ends[0].value), int(ends[1].value)))  # type: ignore[union-attr]
        return found

    def check_exhaustive(self, kind: t.Type, arms: tuple[s.SwitchArm, ...], pos: Position) -> None:
        """Every value must have an arm."""
        if any(not arm.items for arm in arms):
            return
        covered: set[int] = set()
        for arm in arms:
            for low, high in self.arm_ranges(arm, kind):
                covered.update(range(low, min(high, low + 70000) + 1))
        if isinstance(kind, t.EnumType):
            missing = [name for name, value in kind.members if value not in covered]
            if missing:
                stop("switch-not-exhaustive", f"no arm for {', '.join(missing)}", pos, "add an else arm")
        elif isinstance(kind, t.IntType) and (kind.bits > 16 or len(covered) < 1 << kind.bits):
            stop("switch-not-exhaustive", f"the arms do not cover every value of {kind}", pos, "add an else arm")

    # --- values of blocks ---

    def comptime_block_value(self, block: s.Block) -> CV:
        """A block used as a value, run now."""
        signal = self._sequence(block.body)
        if signal is None:
            return VOID_VALUE
        if signal[:2] == ("break", block.label):
            return VOID_VALUE if signal[2] is None else signal[2]
        stop("misplaced-jump", f"{signal[0]} out of a block that is used as a value", block.pos)
        return None
