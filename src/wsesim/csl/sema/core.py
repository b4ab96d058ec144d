"""The evaluator's base: scopes, modes and the helpers all its parts share.

One evaluator walks one function body, comptime block or initializer. An expression gives a ``CV`` when it is
comptime-known and a typed tree otherwise; in comptime mode anything not comptime-known is an error.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import DIRECTIONS
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce, mismatch, pointer_expr, type_of_value
from wsesim.csl.sema.modules import GlobalVar, Module, stop
from wsesim.csl.sema.values import CV, UNDEFINED, ArrayValue, FunctionValue, Operand

if TYPE_CHECKING:
    from wsesim.csl.sema.unit import Unit
    from wsesim.csl.syntax import nodes as s
    from wsesim.csl.syntax.source import Position

__all__ = [
    "POISON",
    "PRIMITIVES",
    "Binding",
    "Builder",
    "Cell",
    "CellRef",
    "ConstLocal",
    "Core",
    "Poison",
    "Reached",
    "Slot",
    "value_key",
]

PRIMITIVES: dict[str, CV] = {
    **{str(kind): CV(t.TYPE, kind) for kind in (*t.HANDLE_TYPES, *t.DSD_TYPES)},
    **{
        str(kind): CV(t.TYPE, kind)
        for kind in (
            *(t.I8, t.I16, t.I32, t.I64, t.U8, t.U16, t.U32, t.U64, t.F16, t.F32, t.BF16, t.CB16, t.BOOL, t.VOID),
            *(t.COMPTIME_INT, t.COMPTIME_FLOAT, t.COMPTIME_STRING, t.COMPTIME_STRUCT, t.TYPE, t.ANYTYPE, t.DIRECTION),
            *(t.ANYOPAQUE, t.MODULE),
        )
    },
    **{name: CV(t.DIRECTION, index) for index, name in enumerate(DIRECTIONS)},
}
_SIZED = re.compile(r"[iu](0|[1-9][0-9]{0,7})")


@dataclass
class Cell:
    """A comptime variable; ``type`` None takes the type of whatever is assigned."""

    type: t.Type | None
    value: CV | None
    const: bool = False


@dataclass(frozen=True)
class Slot:
    """A local in the function's frame."""

    type: t.Type
    offset: int
    const: bool = False


@dataclass(frozen=True)
class ConstLocal:
    """A local that the program may not change: a parameter, a ``const``, a loop variable."""

    local: tree.Local


class Poison:
    """Stands for a variable whose declaration was wrong; using it gives no further message."""


POISON = Poison()


@dataclass(frozen=True)
class CellRef:
    """A place inside a comptime variable: the cell, then indices and field names."""

    cell: Cell
    type: t.Type
    path: tuple[int | str, ...] = ()


Binding: TypeAlias = CV | Cell | Slot | ConstLocal | tree.Local | tree.MemRef | Poison
Reached: TypeAlias = Operand | CellRef | tree.Local | tree.MemRef | tree.ObjectRef


@dataclass
class Builder:
    """A function body under construction."""

    symbol: str
    ret: t.Type
    locals: list[tree.Local] = field(default_factory=list)
    frame_size: int = 0
    out: list[tree.Stmt] = field(default_factory=list)
    calls: dict[str, None] = field(default_factory=dict)
    in_frame: frozenset[str] = frozenset()  # names whose address is taken
    labels: list[str] = field(default_factory=list)
    loops: int = 0
    may_emit: bool = True
    is_task: bool = False

    def local(self, name: str, kind: t.Type) -> tree.Local:
        """A new local variable."""
        found = tree.Local(len(self.locals), name, kind)
        self.locals.append(found)
        return found

    def slot(self, kind: t.Type, const: bool = False, align: int = 0) -> Slot:
        """New frame memory for a value of a type."""
        to = max(align, t.align_of(kind))
        offset = -(-self.frame_size // to) * to
        self.frame_size = offset + t.size_of(kind)
        return Slot(kind, offset, const)


def value_key(value: Any) -> Any:
    """A hashable stand-in for a comptime value; equal values give equal keys."""
    match value:
        case CV():
            return (value.type, value_key(value.value))
        case dict():
            return tuple((name, value_key(inner)) for name, inner in value.items())
        case ArrayValue():
            return (value.count, value.fill if value.uniform else tuple(map(value_key, value.items)))
        case FunctionValue() | Module():
            return id(value)
        case float():
            return value.hex()
        case _:
            return value


class Core:
    """State of one evaluator."""

    def __init__(self, unit: Unit, module: Module, builder: Builder | None = None) -> None:
        self.unit, self.module, self.builder = unit, module, builder
        self.scopes: list[dict[str, Binding]] = []
        self.comptime_depth = 0
        self.ret: t.Type | None = None  # declared result of the function being run at comptime

    # --- modes ---

    @property
    def at_comptime(self) -> bool:
        """Whether everything here must be comptime-known."""
        return self.builder is None or self.comptime_depth > 0

    def eval(self, node: s.Expr) -> Operand:
        """Value of an expression."""
        raise NotImplementedError

    def reach(self, node: s.Expr, storage: bool = False) -> Reached:
        """The place an expression names, or its value when it names none."""
        raise NotImplementedError

    def comptime(self, node: s.Expr, what: str = "this expression") -> CV:
        """Value of an expression that must be comptime-known."""
        self.comptime_depth += 1
        try:
            found = self.eval(node)
        finally:
            self.comptime_depth -= 1
        if not isinstance(found, CV):
            self.not_comptime(node.pos, what)
        return found

    def not_comptime(self, pos: Position, what: str) -> NoReturn:
        """Raises ``not-comptime``."""
        stop("not-comptime", f"{what} must be known at compile time", pos, "use a const, a param or a literal")

    def type(self, node: s.Expr) -> t.Type:
        """The type that an expression names."""
        found = self.comptime(node, "a type")
        if found.type is not t.TYPE:
            stop("not-a-type", f"expected a type, found a value of type {type_of_value(found)}", node.pos)
        return found.value

    def integer(self, node: s.Expr, what: str) -> int:
        """A comptime-known integer."""
        found = self.comptime(node, what)
        if not (found.type is t.COMPTIME_INT or isinstance(found.type, t.IntType)):
            stop("type-mismatch", f"{what} must be an integer, found {type_of_value(found)}", node.pos)
        return found.value

    def boolean(self, node: s.Expr, what: str) -> bool:
        """A comptime-known bool."""
        found = self.comptime(node, what)
        if found.type != t.BOOL:
            stop("type-mismatch", f"{what} must be a bool, found {type_of_value(found)}", node.pos)
        return found.value

    def text(self, node: s.Expr, what: str) -> str:
        """A comptime-known string."""
        found = self.comptime(node, what)
        if found.type is not t.COMPTIME_STRING:
            stop("type-mismatch", f"{what} must be a string, found {type_of_value(found)}", node.pos)
        return found.value.decode("utf-8", "replace")

    def typed(self, node: s.Expr, kind: t.Type, what: str = "") -> Operand:
        """Value of an expression, converted to a type."""
        return coerce(self.eval(node), kind, node.pos, what)

    def runtime(self, operand: Operand, pos: Position) -> tree.Expr:
        """A value as an expression of the typed tree."""
        if not isinstance(operand, CV):
            return operand
        kind, value = operand.type, operand.value
        if isinstance(value, tree.DsdConst):
            return value
        if isinstance(value, FunctionValue):
            return tree.FunctionRef(kind, self.function_symbol(value, pos), pos=pos)
        if isinstance(kind, t.PtrType):
            return pointer_expr(operand, pos)
        if isinstance(value, ArrayValue | dict):
            if t.is_comptime_only(type_of_value(operand)) or kind is t.COMPTIME_STRUCT:
                stop("comptime-only", f"a value of type {type_of_value(operand)} cannot exist at run time", pos)
            return tree.Load(kind, self.storage(operand, "const", pos), pos=pos)
        if t.is_comptime_only(kind):
            hint = "give it a type, for example @as(i16, ...)" if kind in (t.COMPTIME_INT, t.COMPTIME_FLOAT) else ""
            stop("comptime-only", f"a value of type {kind} cannot exist at run time", pos, hint)
        if kind == t.VOID:
            return tree.Const(t.VOID, 0, pos=pos)
        return tree.Const(kind, value, pos=pos)

    def function_symbol(self, function: FunctionValue, pos: Position) -> str:
        """The symbol of a function used as an operand."""
        raise NotImplementedError

    # --- names ---

    def find(self, name: str) -> Binding | None:
        """A local binding."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def declare(self, name: str, binding: Binding, pos: Position) -> None:
        """Binds a name in the innermost scope."""
        if name in self.scopes[-1]:
            stop("duplicate-name", f"'{name}' is already declared in this block", pos, length=len(name))
        self.scopes[-1][name] = binding

    def lookup(self, node: s.Name) -> Binding | GlobalVar:
        """What a name means here."""
        name = node.id
        found = self.find(name)
        if found is not None:
            return found
        outer = self.module.lookup(name, node.pos)
        if outer is not None:
            return outer
        known = PRIMITIVES.get(name)
        if known is not None:
            own = node.pos.file.startswith("<")  # a library of ours, which serves both dialects
            if known.value is t.COMPTIME_STRUCT and self.unit.strict and not own:
                text = "comptime_struct is gone in SDK 2.10"
                self.unit.diagnostics.warn("removed-in-2.10", text, node.pos, len(name), "leave the type out")
            return known
        sized = _SIZED.fullmatch(name)
        if sized:
            return CV(t.TYPE, t.IntType(int(sized.group(1)), signed=name[0] == "i"))
        self._undefined(node)
        return None

    def _undefined(self, node: s.Name) -> NoReturn:
        known = [*self.module.decls, *PRIMITIVES]
        for scope in self.scopes:
            known += scope
        close = difflib.get_close_matches(node.id, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else ""
        stop("undefined-name", f"'{node.id}' is not defined", node.pos, hint, len(node.id))

    # --- places ---

    def global_place(self, var: GlobalVar, pos: Position) -> tree.MemRef | tree.ObjectRef:
        """The place of a global."""
        if var.is_object:
            return tree.ObjectRef(var.type, var.symbol, const=var.const, pos=pos)
        base = tree.GlobalAddr(t.PtrType(var.type, var.const), var.symbol, pos=pos)
        return tree.MemRef(var.type, base, const=var.const, pos=pos)

    def slot_place(self, slot: Slot, pos: Position) -> tree.MemRef:
        """The place of a frame slot."""
        base = tree.FrameAddr(t.PtrType(slot.type), slot.offset, pos=pos)
        return tree.MemRef(slot.type, base, const=slot.const, pos=pos)

    def storage(self, value: CV, name: str, pos: Position) -> tree.MemRef:
        """Memory that holds a constant, shared by every use of the same value."""
        key = id(value.value) if isinstance(value.value, ArrayValue | dict) else (id(self.module), name)
        table = self.unit.constants
        if key not in table:
            var = GlobalVar(f"{self.module.prefix}{name}", name, value.type, value, True, pos)
            var.in_library = self.module.in_library
            var.align = self.unit.constant_align.get(key, 0)
            table[key] = (self.unit.register(var), value)  # the value stays alive, so its id stays its own
        place = self.global_place(table[key][0], pos)
        assert isinstance(place, tree.MemRef)
        return place

    def fetch(self, reached: Reached, pos: Position) -> Operand:
        """The value at a place."""
        match reached:
            case CellRef():
                return self.read_cell(reached, pos)
            case tree.Local() | tree.MemRef() | tree.ObjectRef():
                if self.at_comptime:
                    self.not_comptime(pos, "the value of a variable used here")
                return tree.Load(reached.type, reached, pos=pos)
            case _:
                return reached

    def read_cell(self, ref: CellRef, pos: Position) -> CV:
        """The value inside a comptime variable."""
        value = ref.cell.value
        if value is None:
            stop("undefined-value", "this comptime variable has no value yet", pos)
        for step in ref.path:
            value = _inner(value, step, pos)
        return value

    def check_type(self, operand: Operand, to: t.Type, pos: Position) -> Operand:
        """``operand`` if it has exactly this type."""
        if operand.type != to:
            mismatch(operand.type, to, pos)
        return operand


def _inner(value: CV, step: int | str, pos: Position) -> CV:
    if isinstance(step, int):
        assert isinstance(value.type, t.ArrayType)
        found = value.value[step]
        if found is UNDEFINED:
            stop("undefined-value", "this element has no value yet", pos)
        return CV(value.type.elem, found)
    return value.value[step]
