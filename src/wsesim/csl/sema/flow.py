"""Control flow of run-time code: branches, loops, switches, blocks with a value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.assignments import Storing
from wsesim.csl.sema.coerce import coerce, peer_type
from wsesim.csl.sema.core import ConstLocal, Reached
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.values import CV, VOID_VALUE, Operand, RangeValue
from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.source import NOWHERE, Position

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Flow"]


class Flow(Storing):
    """Branches and loops."""

    block_targets: dict[str, list[Any]]

    def statements(self, body: tuple[s.Stmt, ...]) -> tuple[tree.Stmt, ...]:
        """A block's statements in a scope of their own (given by the statement walker)."""
        raise NotImplementedError

    def body_of(self, node: s.Stmt) -> tuple[tree.Stmt, ...]:
        """The statements of a branch or loop body."""
        return self.statements(node.body if isinstance(node, s.Block) and not node.label else (node,))

    def at_compile_time(self, action: Callable[[], Any]) -> None:
        """Runs a comptime part of a function now."""
        self.comptime_depth += 1
        try:
            if action() is not None:
                stop("misplaced-jump", "a comptime block inside a function cannot jump out of it", NOWHERE)
        finally:
            self.comptime_depth -= 1

    # --- control flow ---

    def if_statement(self, node: s.IfStmt) -> None:
        """``if``; a comptime-known condition leaves one branch."""
        cond = self.condition(node.cond)
        if isinstance(cond, CV):
            chosen = node.then if cond.value else node.other
            if chosen is not None:
                self._inline(chosen)
            return
        then = self.body_of(node.then)
        other = self.body_of(node.other) if node.other is not None else ()
        self.emit(tree.If(cond, then, other, pos=node.pos))

    def _inline(self, node: s.Stmt) -> None:
        """A chosen branch, without the branch."""
        for stmt in self.body_of(node):
            self.emit(stmt)

    def block_statement(self, body: tuple[s.Stmt, ...], label: str, pos: Position) -> None:
        """A block, with or without a label."""
        if not label:
            for stmt in self.statements(body):
                self.emit(stmt)
            return
        self._with_label(label, pos, lambda: self.emit(tree.Block(self.statements(body), label, pos=pos)))

    def _with_label(self, label: str, pos: Position, action: Callable[[], None], loop: bool = False) -> None:
        builder = self.builder
        assert builder is not None
        if label and label in builder.labels:
            stop("duplicate-name", f"label '{label}' is already in use", pos)
        builder.labels.append(label)
        builder.loops += loop
        try:
            action()
        finally:
            builder.labels.pop()
            builder.loops -= loop

    def check_label(self, label: str, pos: Position, word: str) -> None:
        """The target of a jump must enclose it."""
        builder = self.builder
        assert builder is not None
        if label and label not in builder.labels:
            stop("unknown-label", f"there is no enclosing loop or block '{label}'", pos)
        if not label and not builder.loops:
            stop("misplaced-jump", f"{word} outside a loop", pos)

    def break_statement(self, label: str, value: s.Expr | None, pos: Position) -> None:
        """``break``, which may carry the value of a block."""
        self.check_label(label, pos, "break")
        target = self.block_targets.get(label) if label else None
        if target is not None:
            target.append((None if value is None else self.eval(value), pos))
            self.emit(tree.Break(label, pos=pos))
            return
        if value is not None:
            stop("type-mismatch", "this block or loop has no value", pos)
        self.emit(tree.Break(label, pos=pos))

    def while_statement(self, node: s.WhileStmt) -> None:
        """``while``."""
        if node.is_comptime:
            self.at_compile_time(lambda: self.run(node))
            return
        cond = self.guarded(lambda: self.condition(node.cond))
        if isinstance(cond, CV) and not cond.value:
            return

        def build() -> None:
            body = self.body_of(node.body)
            step = self.statements((node.step,)) if node.step is not None else ()
            self.emit(tree.While(self.runtime(cond, node.pos), body, step, node.label, pos=node.pos))

        self._with_label(node.label, node.pos, build, loop=True)

    def for_statement(self, node: s.ForStmt) -> None:
        """``for`` over a range, an array or comptime-only values."""
        if node.is_comptime:
            self.at_compile_time(lambda: self.run(node))
            return
        iterable = self.reach(node.iterable)
        if isinstance(iterable, CV) and isinstance(iterable.value, RangeValue):
            self._with_label(node.label, node.pos, lambda: self._range_loop(iterable.value, node), loop=True)
        elif isinstance(iterable.type, t.ArrayType) and not t.is_comptime_only(iterable.type):
            self._with_label(node.label, node.pos, lambda: self._array_loop(iterable, node), loop=True)
        else:
            self._unrolled(self.fetch(iterable, node.pos), node)

    def _range_loop(self, bounds: RangeValue, node: s.ForStmt) -> None:
        elem = bounds.elem
        if elem is t.COMPTIME_INT:
            self._unrolled(CV(t.RangeType(elem), bounds), node)
            return
        assert self.builder is not None
        local = self.builder.local(node.item, elem)
        parts = [self.runtime(coerce(x, elem, node.iterable.pos), node.pos) for x in (bounds.start, bounds.stop)]
        step = self.runtime(coerce(bounds.step, _step_type(elem), node.iterable.pos), node.pos)
        scope: dict[str, Any] = {node.item: self._loop_variable(local, node)}
        index = None
        if node.index is not None:
            index = self.builder.local(node.index, t.U16)
            self.emit(tree.Let(index, tree.Const(t.U16, 0), pos=node.pos))
            scope[node.index] = ConstLocal(index)
        self.scopes.append(scope)
        try:
            body = (*self._into_frame(local, scope, node), *self.body_of(node.body))
        finally:
            self.scopes.pop()
        if index is not None:
            if _continues(body):
                stop("unsupported", "continue in a range loop with an index is not supported", node.pos)
            one = tree.Binary(t.U16, "+", tree.Load(t.U16, index), tree.Const(t.U16, 1))
            body = (*body, tree.Assign(index, one, pos=node.pos))
        self.emit(tree.ForRange(local, parts[0], parts[1], step, body, node.label, pos=node.pos))

    def _loop_variable(self, local: tree.Local, node: s.ForStmt) -> Any:
        assert self.builder is not None
        if node.item in self.builder.in_frame:
            return self.builder.slot(local.type, const=True)
        return ConstLocal(local)

    def _into_frame(self, local: tree.Local, scope: dict[str, Any], node: s.ForStmt) -> tuple[tree.Stmt, ...]:
        slot = scope[node.item]
        if isinstance(slot, ConstLocal):
            return ()
        place = replace(self.slot_place(slot, node.pos), const=False)
        return (tree.Assign(place, tree.Load(local.type, local), pos=node.pos),)

    def _array_loop(self, iterable: Reached, node: s.ForStmt) -> None:
        kind = iterable.type
        assert isinstance(kind, t.ArrayType)
        assert self.builder is not None
        index = self.builder.local(node.index or "$index", t.U16)
        if len(kind.dims) != 1:
            stop("unsupported", "only one-dimensional arrays can be looped over", node.pos)
        element = s.Index(node.iterable, (node.iterable,), pos=node.pos)
        place = self.element(iterable, [tree.Load(t.U16, index)], element)
        item = self.builder.local(node.item, kind.elem)
        scope: dict[str, Any] = {node.item: ConstLocal(item)}
        if node.index is not None:
            scope[node.index] = ConstLocal(index)
        self.scopes.append(scope)
        try:
            body = self.body_of(node.body)
        finally:
            self.scopes.pop()
        first = tree.Let(item, self.runtime(self.fetch(place, node.pos), node.pos), pos=node.pos)
        zero, one, end = (tree.Const(t.U16, x) for x in (0, 1, kind.dims[0]))
        self.emit(tree.ForRange(index, zero, end, one, (first, *body), node.label, pos=node.pos))

    def _unrolled(self, iterable: Operand, node: s.ForStmt) -> None:
        """A loop over comptime-only values: one copy of the body per element."""
        if not isinstance(iterable, CV):
            stop(
                "not-iterable", f"cannot loop over a value of type {iterable.type}", node.pos, "use @range or an array"
            )
        for index, item in enumerate(self.iterate(iterable, node.iterable.pos)):
            scope: dict[str, Any] = {node.item: item}
            if node.index is not None:
                scope[node.index] = CV(t.U16, index)
            self.scopes.append(scope)
            try:
                body = self.body_of(node.body)
            finally:
                self.scopes.pop()
            if _jumps(body):
                stop("unsupported", "break or continue in an unrolled loop is not supported", node.pos)
            for stmt in body:
                self.emit(stmt)

    def switch_statement(self, node: s.SwitchStmt) -> None:
        """``switch``."""
        value = self.eval(node.value)
        if isinstance(value, CV):
            arm = self.choose(value, node.arms, node.pos)
            if arm is not None:
                self._inline(_as_stmt(arm.body))
            return
        self.check_exhaustive(value.type, node.arms, node.pos)
        cases, default, seen = [], (), set[tuple[int, int]]()
        for arm in node.arms:
            body = self.body_of(_as_stmt(arm.body))
            if not arm.items:
                default = body
                continue
            ranges = tuple(self.arm_ranges(arm, value.type))
            if seen & set(ranges):
                stop("duplicate-value", "a case value appears twice", arm.pos)
            seen |= set(ranges)
            cases.append(tree.SwitchCase(ranges, body))
        self.emit(tree.Switch(value, tuple(cases), default, pos=node.pos))

    def switch_value(self, node: s.SwitchExpr, kind: t.Type | None = None) -> Operand:
        """``switch`` used as a value, of type ``kind`` when one is wanted."""
        value = self.eval(node.value)
        if isinstance(value, CV):
            arm = self.choose(value, node.arms, node.pos)
            return VOID_VALUE if arm is None else self.eval(_as_expr(arm.body))
        self.check_exhaustive(value.type, node.arms, node.pos)
        branches: list[tuple[list[tuple[int, int]], Operand]] = []
        for arm in node.arms:
            body = _as_expr(arm.body)
            found = self.guarded(lambda b=body: self.eval(b) if kind is None else self.eval_to(b, kind))
            branches.append((self.arm_ranges(arm, value.type), found))
        branches.sort(key=lambda b: not b[0])  # else last
        if kind is None:
            kind = branches[0][1].type
            for _, found in branches[1:]:
                kind = peer_type(tree.Const(kind, 0), found, node.pos, "switch")
        result = coerce(branches[-1][1], kind, node.pos)
        for ranges, found in reversed(branches[:-1]):
            result = self.select(_in_ranges(value, ranges), coerce(found, kind, node.pos), result, node.pos)
        return result

    # --- blocks as values ---

    def block_value(self, block: s.Block) -> Operand:
        """A labelled block used as a value."""
        if self.at_comptime:
            return self.comptime_block_value(block)
        builder = self.builder
        assert builder is not None
        if not builder.may_emit:
            stop("unsupported", "a block inside a conditional value is not supported", block.pos)
        results: list[tuple[Operand | None, Position]] = []
        self.block_targets[block.label] = results

        def build() -> None:
            self.emit(tree.Block(self.statements(block.body), block.label, pos=block.pos))

        try:
            self._with_label(block.label, block.pos, build)
        finally:
            self.block_targets.pop(block.label)
        return self._block_result(block, results)

    def _block_result(self, block: s.Block, results: list[Any]) -> Operand:
        values = [v for v, _ in results if v is not None]
        if not values:
            return VOID_VALUE
        if len(values) == 1 and isinstance(values[0], CV):
            return values[0]
        kind = values[0].type
        for value in values[1:]:
            kind = peer_type(tree.Const(kind, 0), value, block.pos, "break")
        assert self.builder is not None
        local = self.builder.local(block.label or "$block", kind)
        assigned = {i: coerce(v, kind, pos) for i, (v, pos) in enumerate(results) if v is not None}
        # The assignments go right before the breaks, inside the block that was just built.
        self.builder.out[-1] = _assign_before_breaks(self.builder.out[-1], block.label, local, assigned, self, results)
        self.builder.out.insert(len(self.builder.out) - 1, tree.Let(local, None, pos=block.pos))
        return tree.Load(kind, local, pos=block.pos)


def _step_type(elem: t.Type) -> t.Type:
    """A step may be negative even for an unsigned range."""
    return t.IntType(elem.bits + 1, signed=True) if isinstance(elem, t.IntType) and not elem.signed else elem


def _as_stmt(body: s.Stmt | s.Expr) -> s.Stmt:
    return body if isinstance(body, s.Stmt) else s.ExpressionStmt(body, pos=body.pos)


def _as_expr(body: s.Stmt | s.Expr) -> s.Expr:
    if isinstance(body, s.ExpressionStmt):
        return body.expr
    if isinstance(body, s.Block):
        return s.BlockExpr(body, pos=body.pos)
    if isinstance(body, s.Stmt):
        stop("type-mismatch", "this switch arm has no value", body.pos)
    return body


def _in_ranges(value: tree.Expr, ranges: list[tuple[int, int]]) -> tree.Expr:
    found: tree.Expr | None = None
    for low, high in ranges:
        if low == high:
            test: tree.Expr = tree.Compare("==", value, tree.Const(value.type, low))
        else:
            above = tree.Compare(">=", value, tree.Const(value.type, low))
            test = tree.Logical("and", above, tree.Compare("<=", value, tree.Const(value.type, high)))
        found = test if found is None else tree.Logical("or", found, test)
    assert found is not None
    return found


def ends_with_return(body: tuple[tree.Stmt, ...]) -> bool:
    """Whether the end of these statements is never reached."""
    match body[-1] if body else None:
        case tree.Return():
            return True
        case tree.If(then=then, other=other):
            return ends_with_return(then) and ends_with_return(other)
        case tree.Switch(cases=cases, default=default):
            return all(ends_with_return(c.body) for c in cases) and (not default or ends_with_return(default))
        case tree.While(cond=tree.Const(value=True), body=inner):
            return not _jumps(inner)
        case tree.Block(body=inner, label=""):
            return ends_with_return(inner)
        case _:
            return False


def _children(stmt: tree.Stmt) -> list[tuple[tree.Stmt, ...]]:
    match stmt:
        case tree.If(then=then, other=other):
            return [then, other]
        case tree.Block(body=body) | tree.While(body=body) | tree.ForRange(body=body):
            return [body]
        case tree.Switch(cases=cases, default=default):
            return [*(c.body for c in cases), default]
        case _:
            return []


def _jumps(body: tuple[tree.Stmt, ...]) -> bool:
    for stmt in body:
        if isinstance(stmt, tree.Break | tree.Continue):
            return True
        if not isinstance(stmt, tree.While | tree.ForRange) and any(_jumps(b) for b in _children(stmt)):
            return True
    return False


def _continues(body: tuple[tree.Stmt, ...]) -> bool:
    for stmt in body:
        if isinstance(stmt, tree.Continue):
            return True
        if not isinstance(stmt, tree.While | tree.ForRange) and any(_continues(b) for b in _children(stmt)):
            return True
    return False


def _assign_before_breaks(
    stmt: Any, label: str, local: tree.Local, values: dict[int, Operand], low: Flow, results: list[Any]
) -> Any:
    """The block again, with ``local = value`` before each of its breaks."""
    by_place = {pos: i for i, (_, pos) in enumerate(results)}

    def rebuild(body: tuple[tree.Stmt, ...]) -> tuple[tree.Stmt, ...]:
        out: list[tree.Stmt] = []
        for inner in body:
            if isinstance(inner, tree.Break) and inner.label == label:
                index = by_place[inner.pos]
                if index in values:
                    out.append(tree.Assign(local, low.runtime(values[index], inner.pos), pos=inner.pos))
                out.append(inner)
                continue
            out.append(_map_bodies(inner, rebuild))
        return tuple(out)

    return _map_bodies(stmt, rebuild)


def _map_bodies(stmt: Any, change: Callable[[tuple[tree.Stmt, ...]], tuple[tree.Stmt, ...]]) -> Any:
    match stmt:
        case tree.If():
            return replace(stmt, then=change(stmt.then), other=change(stmt.other))
        case tree.Block() | tree.While() | tree.ForRange():
            return replace(stmt, body=change(stmt.body))
        case tree.Switch():
            cases = tuple(replace(c, body=change(c.body)) for c in stmt.cases)
            return replace(stmt, cases=cases, default=change(stmt.default))
        case _:
            return stmt
