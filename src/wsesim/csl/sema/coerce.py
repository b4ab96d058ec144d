"""Implicit conversions and the common type of two operands, as far as the documentation defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.numeric import fits, round_float
from wsesim.csl.sema.values import CV, ArrayValue, Operand, Pointer

if TYPE_CHECKING:
    from wsesim.csl.syntax.source import Position

__all__ = ["can_widen", "coerce", "peer_type", "pointer_coerces", "type_of_value"]


def type_of_value(value: CV) -> t.Type:
    """The full type of a comptime value; that of an anonymous struct is built from its fields.

    >>> str(type_of_value(CV(t.COMPTIME_STRUCT, {"a": CV(t.U16, 1)})))
    'struct { a: u16 }'
    """
    if value.type is t.COMPTIME_STRUCT and isinstance(value.value, dict):
        return t.StructType(tuple((name, type_of_value(v)) for name, v in value.value.items()))
    return value.type


def can_widen(source: t.Type, to: t.Type) -> bool:
    """Whether every value of one numeric type is a value of the other.

    >>> can_widen(t.U16, t.I32), can_widen(t.U16, t.I16), can_widen(t.F16, t.F32)
    (True, False, True)
    """
    if isinstance(source, t.IntType) and isinstance(to, t.IntType):
        return to.minimum <= source.minimum and source.maximum <= to.maximum
    if isinstance(source, t.FloatType) and isinstance(to, t.FloatType):
        return source == to or (source.bits < to.bits)
    return False


def pointer_coerces(source: t.PtrType, to: t.PtrType) -> bool:
    """Whether one pointer type may stand for another."""
    if source.const and not to.const:
        return False
    if to.elem == t.ANYOPAQUE and not to.many:
        return True
    if source.many == to.many and source.elem == to.elem:
        return True
    inner = source.elem
    if to.many:
        # The documentation asks for rank one here; published programs rely on any rank.
        return isinstance(inner, t.ArrayType) and not source.many and inner.elem == to.elem
    wanted = to.elem
    return isinstance(wanted, t.ArrayType) and not source.many and wanted.dims == (1,) and wanted.elem == inner


def coerce(operand: Operand, to: t.Type, pos: Position, what: str = "") -> Operand:
    """``operand`` as a value of type ``to``; raises ``type-mismatch`` or ``out-of-range`` when that is not allowed."""
    source = operand.type
    if source == to or to == t.ANYTYPE:
        return operand
    if isinstance(operand, CV):
        found = _coerce_value(operand, to, pos, what)
        if found is not None:
            return found
    elif can_widen(source, to):
        return tree.Cast(to, "numeric", operand, pos=pos)
    elif isinstance(source, t.PtrType) and isinstance(to, t.PtrType) and pointer_coerces(source, to):
        return tree.Cast(to, "pointer", operand, pos=pos)
    mismatch(type_of_value(operand) if isinstance(operand, CV) else source, to, pos, what)
    return None


def mismatch(source: t.Type, to: t.Type, pos: Position, what: str = "") -> NoReturn:
    """Raises ``type-mismatch``."""
    where = f" for {what}" if what else ""
    stop("type-mismatch", f"expected type {to}{where}, found {source}", pos, _hint(source, to))


def _hint(source: t.Type, to: t.Type) -> str:
    numeric = (t.IntType, t.FloatType, t.EnumType)
    comptime = source in (t.COMPTIME_INT, t.COMPTIME_FLOAT)
    if (isinstance(source, numeric) or comptime) and (isinstance(to, numeric) or to == t.BOOL):
        return f"convert with @as({to}, ...)"
    if isinstance(source, t.PtrType) and isinstance(to, t.PtrType):
        return f"convert with @ptrcast({to}, ...)"
    makers = {"color": "@get_color", "input_queue": "@get_input_queue", "output_queue": "@get_output_queue"}
    if isinstance(to, t.HandleType) and (isinstance(source, t.IntType) or source == t.COMPTIME_INT):
        return f"make it with {makers.get(to.name, f'@get_{to.name}')}(...)"
    return ""


def _coerce_value(value: CV, to: t.Type, pos: Position, what: str) -> CV | None:
    source = value.type
    if source is t.COMPTIME_INT or isinstance(source, t.IntType):
        return _coerce_int(value, to, pos, what)
    if source is t.COMPTIME_FLOAT or isinstance(source, t.FloatType):
        if to is t.COMPTIME_FLOAT and source is t.COMPTIME_FLOAT:
            return value
        if isinstance(to, t.FloatType) and (source is t.COMPTIME_FLOAT or can_widen(source, to)):
            return CV(to, round_float(value.value, to))
        return None
    if source is t.COMPTIME_STRUCT and isinstance(value.value, dict):
        return _coerce_struct(value, to, pos)
    if isinstance(source, t.StructType) and to is t.COMPTIME_STRUCT:
        return CV(t.COMPTIME_STRUCT, value.value)
    if isinstance(source, t.PtrType) and isinstance(to, t.PtrType) and pointer_coerces(source, to):
        return CV(to, value.value)
    if isinstance(source, t.ComptimeType) and source.name in ("fn", "task") and isinstance(to, t.FnType):
        return CV(source, value.value) if _function_matches(value, to) else None
    if isinstance(source, t.ArrayType) and isinstance(to, t.ArrayType) and source.dims == to.dims:
        items = [_coerced(CV(source.elem, x), to.elem, pos, what) for x in value.value.items]
        return CV(to, ArrayValue(source.count, items=items))
    return None


def _coerced(value: CV, to: t.Type, pos: Position, what: str) -> Any:
    found = coerce(value, to, pos, what)
    assert isinstance(found, CV)
    return found.value


def _function_matches(value: CV, to: t.FnType) -> bool:
    decl, module = value.value.decl, value.value.module
    if decl.is_task != to.is_task or len(decl.params) != len(to.params):
        return False
    return module.unit.evaluator(module).function_type(value.value) == to


def _coerce_int(value: CV, to: t.Type, pos: Position, what: str) -> CV | None:
    number = value.value
    if isinstance(to, t.IntType):
        # A comptime-known integer may take any type that holds its value.
        if not fits(number, to):
            where = f" for {what}" if what else ""
            text = f"{number} does not fit type {to}{where} ({to.minimum} to {to.maximum})"
            stop("out-of-range", text, pos, f"@as({to}, ...) wraps around, if that is meant")
        return CV(to, number)
    if to is t.COMPTIME_INT:
        return CV(to, number)
    if isinstance(to, t.FloatType) and value.type is t.COMPTIME_INT:
        rounded = round_float(float(number), to) if abs(number) < 1 << 200 else float("inf")
        if rounded != number:
            stop("out-of-range", f"{number} is not a value of type {to}", pos, f"write @as({to}, {number}) to round")
        return CV(to, rounded)
    if to is t.COMPTIME_FLOAT and value.type is t.COMPTIME_INT:
        return CV(to, float(number))
    return None


def _coerce_struct(value: CV, to: t.Type, pos: Position) -> CV | None:
    if isinstance(to, t.ArrayType) and all(k.isdecimal() for k in value.value):
        if len(value.value) != to.count:
            stop("type-mismatch", f"{to} needs {to.count} elements, found {len(value.value)}", pos)
        items = [_coerced(v, to.elem, pos, "an element") for v in value.value.values()]
        return CV(to, ArrayValue(to.count, items=items))
    if not isinstance(to, t.StructType):
        return None
    given, wanted = value.value, dict(to.fields)
    if to.is_union:
        if len(given) != 1 or next(iter(given)) not in wanted:
            stop("type-mismatch", f"a value of {to} sets exactly one of {', '.join(wanted)}", pos)
        name, inner = next(iter(given.items()))
        return CV(to, {name: coerce(inner, wanted[name], pos, f"field {name}")})
    if len(given) != len(wanted):
        stop("type-mismatch", f"expected {len(wanted)} fields for {to}, got {len(given)}", pos)
    for name in wanted:
        if name not in given:
            stop("type-mismatch", f"field '{name}' of {to} is not given", pos)
    return CV(to, {n: coerce(given[n], kind, pos, f"field {n}") for n, kind in wanted.items()})


def peer_type(left: Operand, right: Operand, pos: Position, op: str) -> t.Type:
    """The type both operands of a binary operation (or both branches of an ``if``) take."""
    a, b = left.type, right.type
    if a == b:
        return a
    for one, two in ((left, right), (right, left)):
        x, y = one.type, two.type
        if x is t.COMPTIME_INT and (isinstance(y, t.IntType | t.FloatType) or y is t.COMPTIME_FLOAT):
            return y
        if x is t.COMPTIME_FLOAT and isinstance(y, t.FloatType):
            return y
        if can_widen(x, y):
            return y
        if isinstance(x, t.PtrType) and isinstance(y, t.PtrType) and pointer_coerces(x, y):
            return y
        if isinstance(x, t.PtrType) and isinstance(y, t.PtrType):
            shared = _shared_pointer(x, y)
            if shared is not None:
                return shared
        # Comptime-known integers take the other side's type when their value fits.
        if isinstance(x, t.IntType) and isinstance(y, t.IntType) and isinstance(one, CV) and fits(one.value, y):
            return y
    hint = f"convert one side with @as({a}, ...) or @as({b}, ...)" if isinstance(a, t.IntType | t.FloatType) else ""
    stop("incompatible-types", f"operands of '{op}' have incompatible types {a} and {b}", pos, hint)
    return None


def _shared_pointer(x: t.PtrType, y: t.PtrType) -> t.PtrType | None:
    const = x.const or y.const
    for kind in (t.PtrType(x.elem, const, x.many), t.PtrType(_element(x), const, True)):
        if pointer_coerces(x, kind) and pointer_coerces(y, kind):
            return kind
    return None


def _element(kind: t.PtrType) -> t.Type:
    return kind.elem.elem if isinstance(kind.elem, t.ArrayType) else kind.elem


def pointer_expr(value: CV, pos: Position) -> tree.Expr:
    """A comptime-known pointer as an expression."""
    assert isinstance(value.type, t.PtrType)
    if isinstance(value.value, Pointer):
        return tree.GlobalAddr(value.type, value.value.target.symbol, value.value.offset, pos=pos)
    return tree.Const(value.type, int(value.value), pos=pos)
