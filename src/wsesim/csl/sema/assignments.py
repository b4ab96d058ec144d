"""Local variables and assignments of run-time code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce
from wsesim.csl.sema.core import Cell, CellRef, ConstLocal, Reached
from wsesim.csl.sema.execute import Execute
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.values import CV, VOID_VALUE, ArrayValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.syntax.source import Position

__all__ = ["Storing"]


class Storing(Execute):
    """Declarations and assignments; the builder is present."""

    def emit(self, stmt: tree.Stmt) -> None:
        """Adds a statement to the block being built."""
        assert self.builder is not None
        self.builder.out.append(stmt)

    def emit_before(self, stmt: tree.Stmt, pos: Position, what: str) -> None:
        """Adds a statement that an expression needs before it."""
        assert self.builder is not None
        if not self.builder.may_emit:
            text = f"{what} inside a condition or a conditional value is not supported"
            stop("unsupported", text, pos, "store it in a variable before")
        self.builder.out.append(stmt)

    def variable(self, node: s.VarDecl) -> None:
        """``const`` or ``var`` inside a function."""
        builder = self.builder
        assert builder is not None
        kind = self.type(node.type) if node.type is not None else None
        if node.is_comptime:
            self._declare(node)
            return
        if node.init is None:
            if kind is None or node.const:
                stop("missing-initializer", f"'{node.name}' needs an initial value", node.pos)
            self._uninitialised(node, kind)
            return
        value = self.eval(node.init) if kind is None else self.eval_to(node.init, kind, f"'{node.name}'")
        if isinstance(value, CV) and (node.const or t.is_comptime_only(self.full_type(value))):
            self._comptime_local(node, value, kind)
            return
        self._runtime_local(node, value)

    def _comptime_local(self, node: s.VarDecl, value: CV, kind: t.Type | None) -> None:
        if node.const:
            self.declare(node.name, value, node.pos)
            return
        if self.unit.strict:
            stop("comptime-only", f"'{node.name}' has type {value.type}, which cannot exist at run time", node.pos,
                 "give it a type, or write comptime var")  # fmt: skip
        self.declare(node.name, Cell(kind or value.type, self.copy_value(value)), node.pos)

    def _uninitialised(self, node: s.VarDecl, kind: t.Type) -> None:
        builder = self.builder
        assert builder is not None
        if t.is_comptime_only(kind):
            self.declare(node.name, Cell(kind, None), node.pos)
        elif isinstance(kind, t.ArrayType | t.StructType) or node.name in builder.in_frame:
            self._no_dsd_memory(kind, node.pos)
            self.declare(node.name, builder.slot(kind, align=self._align(node)), node.pos)
        else:
            local = builder.local(node.name, kind)
            self.declare(node.name, local, node.pos)
            self.emit(tree.Let(local, None, pos=node.pos))

    def _align(self, node: s.VarDecl) -> int:
        return 0 if node.align is None else self.alignment(node.align)

    def alignment(self, node: s.Expr) -> int:
        """A power of two."""
        value = self.integer(node, "the alignment")
        if value < 1 or value & (value - 1):
            stop("bad-alignment", f"an alignment must be a power of two, found {value}", node.pos)
        return value

    @staticmethod
    def _no_dsd_memory(kind: t.Type, pos: Position) -> None:
        elem = kind.elem if isinstance(kind, t.ArrayType) else kind
        fields = [f for _, f in elem.fields] if isinstance(elem, t.StructType) else [elem]
        if any(isinstance(f, t.DsdType) for f in fields):
            stop("unsupported", f"a local of type {kind} in memory is not supported", pos, "make it a global")

    def _runtime_local(self, node: s.VarDecl, value: Operand) -> None:
        builder = self.builder
        assert builder is not None
        kind = self.full_type(value)
        if isinstance(kind, t.ArrayType | t.StructType) or node.name in builder.in_frame:
            self._no_dsd_memory(kind, node.pos)
            slot = builder.slot(kind, node.const, self._align(node))
            self.assign_place(replace(self.slot_place(slot, node.pos), const=False), value, node.pos)
            self.declare(node.name, slot, node.pos)
            return
        if kind == t.VOID:
            self.emit(tree.ExprStmt(self.runtime(value, node.pos), pos=node.pos))
            self.declare(node.name, VOID_VALUE, node.pos)
            return
        local = builder.local(node.name, kind)
        self.emit(tree.Let(local, self.runtime(value, node.pos), pos=node.pos))
        self.declare(node.name, ConstLocal(local) if node.const else local, node.pos)

    # --- assignment ---

    def assignment(self, node: s.Assignment) -> None:
        """``target op value``."""
        if isinstance(node.target, s.Name) and node.target.id == "_":
            found = self.eval(node.value)
            if not isinstance(found, CV):
                self.emit(tree.ExprStmt(found, pos=node.pos))
            return
        place = self.reach(node.target)
        if isinstance(place, CellRef):
            self.store_cell(place, node)
            return
        self._check_writable(place, node)
        assert isinstance(place, tree.Local | tree.MemRef | tree.ObjectRef)
        if node.op == "=":
            self.assign_place(place, self.eval_to(node.value, place.type), node.pos)
            return
        value = self.apply(node.op[:-1], tree.Load(place.type, place, pos=node.pos), self.eval(node.value), node.pos)
        self.assign_place(place, coerce(value, place.type, node.value.pos), node.pos)

    def _check_writable(self, place: Reached, node: s.Assignment) -> None:
        match place:
            case tree.MemRef(const=True) | tree.ObjectRef(const=True):
                pass
            case tree.MemRef() | tree.ObjectRef():
                return
            case tree.Local():
                root = node.target
                if not isinstance(root, s.Name) or not isinstance(self.find(root.id), ConstLocal):
                    return
                if isinstance(self.scopes[0].get(root.id), ConstLocal):
                    text = f"parameter '{place.name}' cannot be changed"
                    stop("const-write", text, node.pos, "copy it into a var first")
        stop("const-write", "the left side is constant", node.pos, "declare it with var")

    def assign_place(self, place: tree.Local | tree.MemRef | tree.ObjectRef, value: Operand, pos: Position) -> None:
        """Emits ``place = value``."""
        kind = place.type
        if isinstance(kind, t.ArrayType | t.StructType) and isinstance(place, tree.MemRef):
            self._assign_aggregate(place, value, pos)
            return
        self.emit(tree.Assign(place, self.runtime(value, pos), pos=pos))

    def _assign_aggregate(self, place: tree.MemRef, value: Operand, pos: Position) -> None:
        size = t.size_of(place.type)
        if isinstance(value, CV):
            if isinstance(value.value, ArrayValue) and value.value.uniform and not value.value.fill:
                self.emit(tree.CopyBytes(place, None, size, pos=pos))
                return
            value = self.runtime(value, pos)
        if not isinstance(value, tree.Load) or not isinstance(value.place, tree.MemRef):
            stop("unsupported", f"this value of type {place.type} cannot be assigned", pos)
        self.emit(tree.CopyBytes(place, value.place, size, pos=pos))

    def runtime_aggregate(self, kind: t.Type, items: list[tuple[int | str, Operand]], pos: Position) -> Operand:
        """An array or struct with run-time parts, built in the frame."""
        builder = self.builder
        if builder is None or self.at_comptime:
            self.not_comptime(pos, "every part of this value")
            raise AssertionError
        slot = builder.slot(kind)
        base = self.slot_place(slot, pos)
        for key, value in items:
            if isinstance(key, int):
                assert isinstance(kind, t.ArrayType)
                place = replace(base, type=kind.elem, offset=key * t.size_of(kind.elem))
            else:
                assert isinstance(kind, t.StructType)
                place = self._memory_field(base, kind, key, pos)
            self.emit_before(tree.Assign(place, self.runtime(value, pos), pos=pos), pos, "a value built from parts")
        return tree.Load(kind, base, pos=pos)

    def address_of_copy(self, value: tree.Load, pos: Position) -> tree.Expr:
        """Address of an aggregate argument; constants and parameters need no copy."""
        assert self.builder is not None
        assert isinstance(value.place, tree.MemRef)
        kind = t.PtrType(value.type, const=True)
        if value.place.const:
            return tree.AddressOf(kind, value.place, pos=pos)
        copy = self.slot_place(self.builder.slot(value.type), pos)
        self.emit_before(
            tree.CopyBytes(copy, value.place, t.size_of(value.type), pos=pos), pos, "an aggregate argument"
        )
        return tree.AddressOf(kind, copy, pos=pos)
