"""Function bodies to typed statements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import Function
from wsesim.csl.sema import types as t
from wsesim.csl.sema.core import POISON, Builder, ConstLocal
from wsesim.csl.sema.flow import Flow, ends_with_return
from wsesim.csl.sema.modules import Reported, Stop, stop
from wsesim.csl.sema.values import CV
from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.walk import addressed_names

if TYPE_CHECKING:
    from wsesim.csl.sema.calls import Instance
    from wsesim.csl.syntax.source import Position

__all__ = ["Lower"]


class Lower(Flow):
    """Run-time statements; the builder is present."""

    # --- functions ---

    def lower_function(self, symbol: str, instance: Instance) -> Function:
        """A whole function or task."""
        decl = instance.function.decl
        if decl.body is None:
            stop("unsupported", f"extern function '{decl.name}' cannot be linked here", decl.pos)
        builder = Builder(symbol, instance.ret, in_frame=addressed_names(decl.body), is_task=decl.is_task)
        self.builder, self.ret = builder, instance.ret
        scope: dict[str, Any] = dict(instance.scope)
        self.scopes = [scope]
        params = []
        for name, kind in instance.params:
            if isinstance(kind, t.ArrayType | t.StructType):
                local = builder.local(name, t.PtrType(kind, const=True))
                scope[name] = tree.MemRef(kind, tree.Load(local.type, local), const=True)
            else:
                local = builder.local(name, kind)
                scope[name] = ConstLocal(local)
            params.append(local)
        self._parameters_in_frame(decl, scope)
        body = self.statements(decl.body.body)
        body = (*builder.out, *body)
        if instance.ret != t.VOID and not ends_with_return(body):
            self.unit.diagnostics.error("missing-return", f"'{decl.name}' may end without returning a value", decl.pos)
        kinds = tuple(kind for _, kind in instance.params)
        kind = t.FnType(kinds, instance.ret, decl.is_task)
        return Function(
            symbol, decl.name, kind, tuple(params), tuple(builder.locals), builder.frame_size, body,
            calls=tuple(builder.calls), pos=decl.pos,
        )  # fmt: skip

    def _parameters_in_frame(self, decl: s.FunctionDecl, scope: dict[str, Any]) -> None:
        builder = self.builder
        assert builder is not None
        for param in decl.params:
            found = scope.get(param.name)
            if param.name in builder.in_frame and isinstance(found, ConstLocal):
                slot = builder.slot(found.local.type, const=True)
                place = replace(self.slot_place(slot, param.pos), const=False)
                builder.out.append(tree.Assign(place, tree.Load(slot.type, found.local), pos=param.pos))
                scope[param.name] = slot

    def statements(self, body: tuple[s.Stmt, ...]) -> tuple[tree.Stmt, ...]:
        """A block's statements in a scope of their own."""
        builder = self.builder
        assert builder is not None
        outer, builder.out = builder.out, []
        emit, builder.may_emit = builder.may_emit, True
        self.scopes.append({})
        try:
            for node in body:
                self._guarded_statement(node)
                if builder.out and isinstance(builder.out[-1], tree.Return | tree.Break | tree.Continue):
                    break
            return tuple(builder.out)
        finally:
            self.scopes.pop()
            builder.out, builder.may_emit = outer, emit

    def _guarded_statement(self, node: s.Stmt) -> None:
        try:
            self.statement(node)
        except Stop as problem:
            self.unit.diagnostics.add(problem.diagnostic)
            self._declare_anyway(node)
        except Reported:
            self._declare_anyway(node)

    def _declare_anyway(self, node: s.Stmt) -> None:
        """After an error in a declaration its name stays known, so that its uses give no further messages."""
        if isinstance(node, s.VarDecl) and node.name not in self.scopes[-1]:
            self.scopes[-1][node.name] = POISON

    # --- statements ---

    def statement(self, node: s.Stmt) -> None:
        """One statement."""
        match node:
            case s.ExpressionStmt(expr):
                self._expression_statement(expr, node.pos)
            case s.Assignment():
                self.assignment(node)
            case s.VarDecl():
                self.variable(node)
            case s.IfStmt():
                self.if_statement(node)
            case s.Block(body, label):
                self.block_statement(body, label, node.pos)
            case s.WhileStmt():
                self.while_statement(node)
            case s.ForStmt():
                self.for_statement(node)
            case s.SwitchStmt():
                self.switch_statement(node)
            case s.ReturnStmt(value):
                self._return_statement(value, node.pos)
            case s.BreakStmt(label, value):
                self.break_statement(label, value, node.pos)
            case s.ContinueStmt(label):
                self.check_label(label, node.pos, "continue")
                self.emit(tree.Continue(label, pos=node.pos))
            case s.ComptimeBlock(body):
                self.at_compile_time(lambda: self.run(body))
            case s.Comment():
                pass
            case _:
                assert_never(node)

    def _expression_statement(self, expr: s.Expr, pos: Position) -> None:
        found = self.eval(expr)
        if isinstance(found, CV):
            return
        if self.unit.strict and found.type not in (t.VOID, t.BOOL) and isinstance(found, tree.Call):
            stop("unused-value", f"the result of type {found.type} is not used", pos, "assign it: const _ = ...")
        self.emit(tree.ExprStmt(found, pos=pos))

    def _return_statement(self, value: s.Expr | None, pos: Position) -> None:
        assert self.builder is not None
        ret = self.builder.ret
        if value is None:
            if ret != t.VOID:
                stop("missing-return", f"the function returns {ret}", pos, f"write return and a value of type {ret}")
            self.emit(tree.Return(pos=pos))
            return
        found = self.eval_to(value, ret, "the return value")
        if ret == t.VOID:
            if not isinstance(found, CV):
                self.emit(tree.ExprStmt(found, pos=pos))
            self.emit(tree.Return(pos=pos))
            return
        if isinstance(ret, t.ArrayType | t.StructType):
            stop("unsupported", f"returning a value of type {ret} at run time is not supported", pos,
                 "pass a pointer for the result")  # fmt: skip
        self.emit(tree.Return(self.runtime(found, value.pos), pos=pos))
