"""Names, fields, elements, pointers: how an expression reaches a place or a value."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce, pointer_expr, type_of_value
from wsesim.csl.sema.core import Cell, CellRef, ConstLocal, Core, Poison, Reached, Slot
from wsesim.csl.sema.modules import GlobalVar, Module, Reported, stop
from wsesim.csl.sema.values import CV, ArrayValue, FunctionValue, Operand, Pointer
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.syntax.source import Position

__all__ = ["Access"]


class Access(Core):
    """Reaching places."""

    def reach(self, node: s.Expr, storage: bool = False) -> Reached:
        """The place an expression names; its value when it names none (with ``storage``, constants get memory)."""
        match node:
            case s.Name():
                return self._reach_name(node, storage)
            case s.Index():
                return self._reach_index(node, storage)
            case s.Field():
                return self._reach_field(node, storage)
            case s.Deref():
                return self.dereference(self.eval(node.base), node.pos)
            case s.BuiltinCall(name="field"):
                return self._reach_field(
                    s.Field(node.args[0], self.text(node.args[1], "the field name"), pos=node.pos), storage
                )
            case _:
                return self.eval(node)

    def place_value(self, node: s.Expr) -> Operand:
        """Value of a name, field, element or dereference."""
        return self.fetch(self.reach(node), node.pos)

    def _reach_name(self, node: s.Name, storage: bool) -> Reached:
        found = self.lookup(node)
        match found:
            case GlobalVar():
                return self.global_place(found, node.pos)
            case Cell():
                kind = found.type or (found.value.type if found.value is not None else t.VOID)
                return CellRef(found, kind)
            case Slot():
                return self.slot_place(found, node.pos)
            case ConstLocal(local):
                return local
            case tree.Local() | tree.MemRef():
                return found
            case Poison():
                raise Reported
            case _:
                return self._stored(found, node.id, node.pos) if storage else found

    def _stored(self, value: CV, name: str, pos: Position) -> Reached:
        """A constant's memory, when its type can have any."""
        if isinstance(value.value, FunctionValue | Module | tree.DsdConst) or t.is_comptime_only(type_of_value(value)):
            return value
        if isinstance(value.type, t.HandleType | t.PtrType):
            return value
        return self.storage(value, name, pos)

    # --- elements ---

    def _reach_index(self, node: s.Index, storage: bool) -> Reached:
        base = self.reach(node.base, storage)
        indices = [self.eval(i) for i in node.indices]
        for index, at in zip(indices, node.indices, strict=True):
            if not (index.type is t.COMPTIME_INT or isinstance(index.type, t.IntType)):
                stop("type-mismatch", f"an index must be an integer, found {index.type}", at.pos)
        return self.element(base, indices, node, storage)

    def element(self, base: Reached, indices: list[Operand], node: s.Index, storage: bool = False) -> Reached:
        """``base[indices]``."""
        pos, kind = node.pos, base.type
        if isinstance(kind, t.PtrType):
            value = self.fetch(base, pos)
            if kind.many:
                return self._many_element(value, kind, indices, pos)
            if isinstance(kind.elem, t.ArrayType):
                if self.unit.strict:
                    stop("undocumented", "a pointer to an array is not indexed directly", pos, "write ptr.*[i]")
                return self.element(self.dereference(value, pos), indices, node, storage)
        if kind is t.COMPTIME_STRUCT or isinstance(kind, t.StructType):
            return self._tuple_element(base, indices, pos)
        if not isinstance(kind, t.ArrayType):
            stop("not-indexable", f"a value of type {kind} has no elements", pos)
        if len(indices) != len(kind.dims):
            stop("index-count", f"{kind} takes {len(kind.dims)} indices, found {len(indices)}", pos)
        self._check_bounds(indices, kind, node)
        if all(isinstance(i, CV) for i in indices) and isinstance(base, CV | CellRef):
            return self._comptime_element(base, self._flat(indices, kind), kind)
        if isinstance(base, CV):
            base = self.storage(base, node.base.id if isinstance(node.base, s.Name) else "const", pos)
        if isinstance(base, tree.Load):
            base = base.place
        if isinstance(base, tree.ObjectRef):
            return replace(base, type=kind.elem, index=self._flat_expr(indices, kind, pos), pos=pos)
        if not isinstance(base, tree.MemRef):
            self.not_comptime(pos, "the index into a comptime variable")
        return self._memory_element(base, indices, kind, pos)

    def _check_bounds(self, indices: list[Operand], kind: t.ArrayType, node: s.Index) -> None:
        for index, extent, at in zip(indices, kind.dims, node.indices, strict=True):
            if isinstance(index, CV) and not 0 <= index.value < extent:
                text = f"index {index.value} is out of bounds for {kind}"
                stop("index-out-of-bounds", text, at.pos, f"valid indices are 0 to {extent - 1}")

    @staticmethod
    def _flat(indices: list[Operand], kind: t.ArrayType) -> int:
        at = 0
        for index, extent in zip(indices, kind.dims, strict=True):
            assert isinstance(index, CV)
            at = at * extent + index.value
        return at

    def _flat_expr(self, indices: list[Operand], kind: t.ArrayType, pos: Position) -> tree.Expr:
        if all(isinstance(i, CV) for i in indices):
            return tree.Const(t.U16, self._flat(indices, kind), pos=pos)
        at: tree.Expr | None = None
        for index, extent in zip(indices, kind.dims, strict=True):
            part = tree.Cast(t.I32, "numeric", self.index_expr(index, pos), pos=pos)
            if at is not None:
                scaled = tree.Binary(t.I32, "*", at, tree.Const(t.I32, extent), pos=pos)
                part = tree.Binary(t.I32, "+", scaled, part, pos=pos)
            at = part
        assert at is not None
        return at

    def index_expr(self, index: Operand, pos: Position) -> tree.Expr:
        """An index as an expression."""
        if isinstance(index, CV) and index.type is t.COMPTIME_INT:
            return self.runtime(coerce(index, t.I32 if index.value < 0 else t.U32, pos), pos)
        return self.runtime(index, pos)

    def _comptime_element(self, base: CV | CellRef, flat: int, kind: t.ArrayType) -> Reached:
        if isinstance(base, CellRef):
            return CellRef(base.cell, kind.elem, (*base.path, flat))
        return CV(kind.elem, base.value[flat])

    def _memory_element(
        self, base: tree.MemRef, indices: list[Operand], kind: t.ArrayType, pos: Position
    ) -> tree.MemRef:
        stride, offset = t.size_of(kind.elem), base.offset
        terms: list[tuple[tree.Expr, int, int | None]] = []
        for index, extent in reversed(list(zip(indices, kind.dims, strict=True))):
            if isinstance(index, CV):
                offset += index.value * stride
            else:
                terms.append((index, stride, extent))
            stride *= extent
        terms.reverse()
        return replace(base, type=kind.elem, offset=offset, indices=(*base.indices, *terms), pos=pos)

    def _many_element(self, value: Operand, kind: t.PtrType, indices: list[Operand], pos: Position) -> Reached:
        if len(indices) != 1:
            stop("index-count", f"{kind} takes one index, found {len(indices)}", pos)
        base = self.dereference(value, pos, many=True)
        if isinstance(base, tree.ObjectRef):
            return replace(base, index=self.index_expr(indices[0], pos))
        index, size = indices[0], t.size_of(kind.elem)
        if isinstance(index, CV):
            return replace(base, offset=base.offset + index.value * size, pos=pos)
        return replace(base, indices=(*base.indices, (index, size, None)), pos=pos)

    def _tuple_element(self, base: Reached, indices: list[Operand], pos: Position) -> Reached:
        if len(indices) != 1 or not isinstance(indices[0], CV):
            stop("not-comptime", "the index into a tuple must be one comptime-known integer", pos)
        return self._member(base, str(indices[0].value), pos, "element")

    # --- pointers ---

    def dereference(self, value: Operand, pos: Position, many: bool = False) -> tree.MemRef | tree.ObjectRef:
        """The place a pointer points to."""
        kind = value.type
        if not isinstance(kind, t.PtrType):
            stop("not-a-pointer", f"only a pointer can be dereferenced, found {kind}", pos)
        if kind.many and not many:
            stop("not-a-pointer", f"{kind} points to an unknown number of elements", pos, "use an index: ptr[0]")
        if isinstance(value, CV) and isinstance(value.value, Pointer):
            target = value.value.target
            if target.is_object:
                at = None if not isinstance(target.type, t.ArrayType) else tree.Const(t.U16, value.value.offset)
                return tree.ObjectRef(kind.elem, target.symbol, at, kind.const, pos=pos)
            base: tree.Expr = tree.GlobalAddr(t.PtrType(target.type, target.const), target.symbol, pos=pos)
            return tree.MemRef(kind.elem, base, value.value.offset, const=kind.const, pos=pos)
        base = pointer_expr(value, pos) if isinstance(value, CV) else value
        return tree.MemRef(kind.elem, base, const=kind.const, pos=pos)

    def address(self, node: s.Unary) -> Operand:
        """``&operand``."""
        place, pos = self.reach(node.operand, storage=True), node.pos
        match place:
            case tree.MemRef(bits=bits) if bits is not None:
                stop("packed-address", "the address of a packed struct's field cannot be taken", pos)
            case tree.MemRef(base=tree.GlobalAddr(symbol=symbol), indices=()):
                target = self.unit.globals[symbol]
                return CV(t.PtrType(place.type, place.const), Pointer(target, place.offset))
            case tree.MemRef():
                return tree.AddressOf(t.PtrType(place.type, place.const), place, pos=pos)
            case tree.ObjectRef(index=None):
                return CV(t.PtrType(place.type, place.const), Pointer(self.unit.globals[place.symbol]))
            case tree.ObjectRef(index=tree.Const(value=at)):
                return CV(t.PtrType(place.type, place.const), Pointer(self.unit.globals[place.symbol], int(at)))
            case CV() if isinstance(place.value, FunctionValue):
                return place
            case CellRef():
                stop("comptime-address", "a comptime variable has no address", pos)
            case _:
                stop("no-address", "only variables have an address", pos, "store the value in a variable first")
        return None

    # --- fields ---

    def _reach_field(self, node: s.Field, storage: bool) -> Reached:
        base = self.reach(node.base, storage)
        if isinstance(base, CV):
            if isinstance(base.value, Module):
                return self._module_member(base.value, node, storage)
            if base.type is t.TYPE:
                return self._type_member(base.value, node)
        return self._member(base, node.name, node.pos, "field")

    def _module_member(self, module: Module, node: s.Field, storage: bool) -> Reached:
        found = module.lookup(node.name, node.pos)
        if found is None:
            close = difflib.get_close_matches(node.name, module.decls, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(sorted(module.decls)[:12])}"
            text = f"module {module.path.name} has no '{node.name}'"
            stop("undefined-member", text, node.pos, hint, len(node.name) + 1)
        if isinstance(found, GlobalVar):
            return self.global_place(found, node.pos)
        return self._stored(found, node.name, node.pos) if storage else found

    @staticmethod
    def _type_member(kind: t.Type, node: s.Field) -> CV:
        if isinstance(kind, t.EnumType):
            members = dict(kind.members)
            if node.name in members:
                return CV(kind, members[node.name])
            stop("undefined-member", f"{kind} has no member '{node.name}'", node.pos, f"it has {', '.join(members)}")
        stop("undefined-member", f"type {kind} has no member '{node.name}'", node.pos)
        return None

    def _member(self, base: Reached, name: str, pos: Position, word: str) -> Reached:
        kind = base.type
        if isinstance(kind, t.PtrType) and isinstance(kind.elem, t.StructType) and not kind.many:
            return self._member(self.dereference(self.fetch(base, pos), pos), name, pos, word)
        if isinstance(base, CellRef):
            fields = self.read_cell(base, pos).value
            if isinstance(fields, dict) and name in fields:
                return CellRef(base.cell, fields[name].type, (*base.path, name))
        elif isinstance(base, CV) and isinstance(base.value, dict):
            if name in base.value:
                return base.value[name]
            if isinstance(kind, t.StructType) and kind.is_union and kind.field(name) is not None:
                active = next(iter(base.value))
                stop("inactive-variant", f"the active variant of {kind} is '{active}', not '{name}'", pos)
        elif isinstance(base, tree.Load):
            base = base.place
        if isinstance(base, tree.MemRef) and isinstance(kind, t.StructType) and kind.field(name) is not None:
            return self._memory_field(base, kind, name, pos)
        self._no_member(base, kind, name, pos, word)
        return None

    @staticmethod
    def _memory_field(base: tree.MemRef, kind: t.StructType, name: str, pos: Position) -> tree.MemRef:
        inner = kind.field(name)
        assert inner is not None
        if kind.layout == "packed":
            start = (base.bits[0] if base.bits else 0) + kind.bit_offset(name)
            return replace(base, type=inner, bits=(start, t.bit_size(inner)), pos=pos)
        return replace(base, type=inner, offset=base.offset + kind.offset(name), pos=pos)

    @staticmethod
    def _no_member(base: Any, kind: t.Type, name: str, pos: Position, word: str) -> NoReturn:
        fields: list[str] = []
        if isinstance(base, CV) and isinstance(base.value, dict):
            fields = list(base.value)
        elif isinstance(kind, t.StructType):
            fields = [n for n, _ in kind.fields]
        if kind is t.COMPTIME_STRUCT or isinstance(kind, t.StructType):
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(fields) or 'no fields'}"
            stop("undefined-member", f"the struct has no {word} '{name}'", pos, hint, len(name) + 1)
        stop("undefined-member", f"a value of type {kind} has no {word} '{name}'", pos, length=len(name) + 1)

    def copy_value(self, value: CV) -> CV:
        """A value that may be changed without changing the original."""
        if isinstance(value.value, ArrayValue):
            return CV(value.type, value.value.copy())
        if isinstance(value.value, dict):
            return CV(value.type, {n: self.copy_value(v) if isinstance(v, CV) else v for n, v in value.value.items()})
        return value
