"""The table of builtins, and those about types, values, strings and modules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wsesim.csl.builtins.registry import BUILTINS, builtin
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce, type_of_value
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.numeric import bits_of, from_bits, numeric_cast
from wsesim.csl.sema.values import CV, VOID_VALUE, ArrayValue, FunctionValue, Operand, Pointer, RangeValue
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax.source import Position

__all__ = ["BUILTINS"]


# --- conversions -----------------------------------------------------------------------------------------------------


def is_numeric(kind: t.Type) -> bool:
    """Integers, floats, bools and enums, comptime ones included."""
    return isinstance(kind, t.IntType | t.FloatType | t.EnumType) or kind in (t.BOOL, t.COMPTIME_INT, t.COMPTIME_FLOAT)


@builtin("as", 2)
def _as(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind, value = ev.type(node.args[0]), ev.eval(node.args[1])
    if not is_numeric(kind):
        if value.type == kind or (isinstance(value, CV) and not ev.unit.strict):
            return coerce(value, kind, node.args[1].pos, "@as")
        stop("type-mismatch", f"@as makes numbers and bools, not {kind}", node.args[0].pos)
    if not is_numeric(value.type):
        hint = "use @get_int(...)" if isinstance(value.type, t.HandleType) else ""
        stop("type-mismatch", f"@as takes a number or bool, found {ev.full_type(value)}", node.args[1].pos, hint)
    if isinstance(kind, t.EnumType) and isinstance(value.type, t.EnumType) and kind != value.type:
        stop("type-mismatch", "an enum does not convert to another enum", node.pos, "go through a number")
    if value.type == kind:
        return value
    if isinstance(value, CV):
        return CV(kind, numeric_cast(value.value, kind))
    if t.is_comptime_only(kind):
        ev.not_comptime(node.args[1].pos, f"a value of type {kind}")
    return tree.Cast(kind, "numeric", value, pos=node.pos)


@builtin("bitcast", 2)
def _bitcast(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind, value = ev.type(node.args[0]), ev.eval(node.args[1])
    source = value.type
    if source is t.COMPTIME_INT and isinstance(kind, t.PtrType):
        value = coerce(value, t.U16, node.args[1].pos)
        source = t.U16
    elif source in (t.COMPTIME_INT, t.COMPTIME_FLOAT):
        value = _literal_for_bitcast(value, kind, node)
        source = value.type
    for one, at in ((kind, node.args[0]), (source, node.args[1])):
        if t.is_comptime_only(one) or one == t.VOID:
            stop("type-mismatch", f"values of type {one} have no bits in memory", at.pos)
    if isinstance(source, t.StructType | t.ArrayType) or isinstance(kind, t.StructType | t.ArrayType):
        stop("unsupported", f"@bitcast between {source} and {kind} is not supported", node.pos)
    if t.bit_size(source) != t.bit_size(kind):
        text = f"@bitcast needs equal widths: {source} has {t.bit_size(source)} bits, {kind} has {t.bit_size(kind)}"
        stop("type-mismatch", text, node.pos)
    if isinstance(kind, t.PtrType) and not isinstance(source, t.IntType | t.PtrType):
        stop("type-mismatch", f"only an integer becomes a pointer, found {source}", node.args[1].pos)
    if isinstance(value, CV) and not isinstance(value.value, Pointer):
        return CV(kind, from_bits(bits_of(value.value, source), kind))
    return tree.Cast(kind, "bits", ev.runtime(value, node.pos), pos=node.pos)


def _literal_for_bitcast(value: Operand, kind: t.Type, node: s.BuiltinCall) -> Operand:
    if value.type is t.COMPTIME_INT:
        width = t.IntType(t.bit_size(kind), signed=isinstance(value, CV) and value.value < 0)
        return coerce(value, width, node.args[1].pos)
    stop("type-mismatch", "@bitcast needs a value with a width", node.args[1].pos, "write @as(f32, ...)")
    return None


@builtin("ptrcast", 2)
def _ptrcast(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind, value = ev.type(node.args[0]), ev.eval(node.args[1])
    if not isinstance(kind, t.PtrType):
        stop("type-mismatch", f"@ptrcast makes pointers, not {kind}", node.args[0].pos)
    if not isinstance(value.type, t.PtrType):
        stop("type-mismatch", f"@ptrcast takes a pointer, found {ev.full_type(value)}", node.args[1].pos, "use &x")
    if t.is_comptime_only(kind.elem):
        stop("comptime-only", f"pointers to {kind.elem} do not exist", node.args[0].pos)
    if isinstance(value, CV):
        return CV(kind, value.value)
    return tree.Cast(kind, "pointer", value, pos=node.pos)


@builtin("get_int", 1)
def _get_int(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    value = ev.eval(node.args[0])
    match value.type:
        case t.IntType() | t.ComptimeType(name="comptime_int"):
            return value
        case t.EnumType(base=base):
            kind = base
        case t.HandleType():
            kind = t.U16
        case _:
            stop("type-mismatch", f"@get_int takes a handle, enum or integer, found {value.type}", node.args[0].pos)
    if isinstance(value, CV):
        return CV(kind, value.value)
    return tree.Cast(kind, "handle" if kind == t.U16 else "numeric", value, pos=node.pos)


# --- arrays ----------------------------------------------------------------------------------------------------------


def _array_type(ev: Evaluator, node: s.Expr, what: str) -> t.ArrayType:
    kind = ev.type(node)
    if not isinstance(kind, t.ArrayType):
        stop("type-mismatch", f"{what} takes an array type, found {kind}", node.pos)
    return kind


@builtin("zeros", 1)
def _zeros(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind = _array_type(ev, node.args[0], "@zeros")
    return CV(kind, ArrayValue(kind.count, ev.zero(kind.elem, node.args[0].pos)))


@builtin("constants", 2)
def _constants(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind = _array_type(ev, node.args[0], "@constants")
    value = coerce(ev.eval(node.args[1]), kind.elem, node.args[1].pos, "the elements")
    if isinstance(value, CV):
        return CV(kind, ArrayValue(kind.count, value.value))
    return ev.runtime_aggregate(kind, [(i, value) for i in range(kind.count)], node.pos)


@builtin("rank", 1)
def _rank(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.U16, len(_array_type(ev, node.args[0], "@rank").dims))


@builtin("dimensions", 1)
def _dimensions(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    dims = _array_type(ev, node.args[0], "@dimensions").dims
    return CV(t.ArrayType((len(dims),), t.U32), ArrayValue(len(dims), items=list(dims)))


@builtin("element_count", 1)
def _element_count(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.U32, _array_type(ev, node.args[0], "@element_count").count)


@builtin("element_type", 1)
def _element_type(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.TYPE, _array_type(ev, node.args[0], "@element_type").elem)


# --- ranges ----------------------------------------------------------------------------------------------------------


@builtin("range", 2, 4)
def _range(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    elem = ev.type(node.args[0])
    if not (isinstance(elem, t.IntType) or elem is t.COMPTIME_INT):
        stop("type-mismatch", f"@range counts in an integer type, found {elem}", node.args[0].pos)
    if len(node.args) == 3:
        stop("argument-count", "@range takes (type, stop) or (type, start, stop, step)", node.pos)
    bounds = [ev.eval(a) for a in node.args[1:]]
    if len(bounds) == 1:
        bounds = [CV(elem, 0), bounds[0], CV(elem, 1)]
    places = [a.pos for a in node.args[1:]] if len(node.args) == 4 else [node.pos, node.args[1].pos, node.pos]
    start, end = (coerce(b, elem, p, "a bound of @range") for b, p in zip(bounds[:2], places[:2], strict=True))
    step = _range_step(bounds[2], elem, places[2])
    return CV(t.RangeType(elem), RangeValue(elem, start, end, step))


def _range_step(step: Operand, elem: t.Type, pos: Position) -> Operand:
    if isinstance(step, CV) and step.value == 0:
        stop("out-of-range", "the step of @range must not be zero", pos)
    if isinstance(step, CV) and step.value < 0:
        return CV(t.COMPTIME_INT, step.value)  # counting down in an unsigned type
    return coerce(step, elem, pos, "the step of @range")


def _range_part(part: str) -> Callable[[Evaluator, s.BuiltinCall], Operand]:
    def handler(ev: Evaluator, node: s.BuiltinCall) -> Operand:
        value = ev.eval(node.args[0])
        if not (isinstance(value, CV) and isinstance(value.value, RangeValue)):
            stop("type-mismatch", f"@{node.name} takes a range, found {value.type}", node.args[0].pos)
        return getattr(value.value, part)

    return handler


for _part in ("start", "stop", "step"):
    builtin(f"range_{_part}", 1)(_range_part(_part))


# --- questions about types -------------------------------------------------------------------------------------------


@builtin("type_of", 1)
def _type_of(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.TYPE, type_of_expression(ev, node.args[0]))


def type_of_expression(ev: Evaluator, node: s.Expr) -> t.Type:
    """The type of an expression, without running or emitting anything."""
    reached = ev.reach(node) if isinstance(node, s.Name | s.Field | s.Index | s.Deref) else None
    if reached is not None:
        value = reached if isinstance(reached, CV) else None
        if value is None:
            return reached.type
    elif ev.builder is not None:
        kept = list(ev.builder.out)
        found = ev.eval(node)
        ev.builder.out[:] = kept
        value = found if isinstance(found, CV) else None
        if value is None:
            return found.type
    else:
        value = ev.comptime(node)
    if isinstance(value.value, FunctionValue):
        return ev.function_type(value.value)
    return type_of_value(value)


@builtin("is_same_type", 2)
def _is_same_type(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.BOOL, ev.type(node.args[0]) == ev.type(node.args[1]))


@builtin("is_arch", 1)
def _is_arch(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    name = ev.text(node.args[0], "the architecture")
    if name not in ("wse2", "wse3"):
        stop("unknown-arch", f"there is no architecture {name!r}", node.args[0].pos, "known are wse2 and wse3")
    return CV(t.BOOL, name == ev.unit.arch)


@builtin("is_comptime", 0)
def _is_comptime(ev: Evaluator, node: s.BuiltinCall) -> Operand:  # noqa: ARG001
    return CV(t.BOOL, ev.at_comptime)


@builtin("fp16", 0)
def _fp16(ev: Evaluator, node: s.BuiltinCall) -> Operand:  # noqa: ARG001
    return CV(t.TYPE, {"f16": t.F16, "bf16": t.BF16, "cb16": t.CB16}[ev.unit.session.fp16])


@builtin("has_field", 2)
def _has_field(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    name = ev.text(node.args[1], "the field name")
    kind = type_of_expression(ev, node.args[0])
    if not isinstance(kind, t.StructType):
        stop("type-mismatch", f"@has_field takes a struct, found {kind}", node.args[0].pos)
    return CV(t.BOOL, kind.field(name) is not None)


@builtin("field", 2)
def _field(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    name = ev.text(node.args[1], "the field name")
    return ev.place_value(s.Field(node.args[0], name, pos=node.pos))


@builtin("concat_structs", 2)
def _concat_structs(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.unit.strict:
        ev.unit.diagnostics.warn(
            "removed-in-2.10", "@concat_structs is gone in SDK 2.10", node.pos, 15, "name a struct type"
        )
    parts = [ev.comptime(a, "a struct to concatenate") for a in node.args]
    for part, at in zip(parts, node.args, strict=True):
        if not isinstance(part.value, dict):
            stop("type-mismatch", f"@concat_structs takes structs, found {part.type}", at.pos)
    first, second = (p.value for p in parts)
    tuples = [bool(p) and all(k.isdecimal() for k in p) for p in (first, second)]
    if any(tuples):
        if not all(tuples) and first and second:
            stop("mixed-fields", "cannot concatenate named with nameless fields", node.pos)
        return CV(t.COMPTIME_STRUCT, {str(i): v for i, v in enumerate([*first.values(), *second.values()])})
    twice = [name for name in first if name in second]
    if twice:
        stop("duplicate-name", f"both structs have a field '{twice[0]}'", node.pos)
    return CV(t.COMPTIME_STRUCT, {**first, **second})


# --- asserts and printing --------------------------------------------------------------------------------------------


@builtin("comptime_assert", 1, 2)
def _comptime_assert(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if not ev.boolean(node.args[0], "the condition of @comptime_assert"):
        message = ev.text(node.args[1], "the message") if len(node.args) == 2 else ""
        stop("comptime-assert", f"assertion failed{': ' + message if message else ''}", node.pos, length=16)
    return VOID_VALUE


@builtin("assert", 1, 2)
def _assert(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.at_comptime:
        return _comptime_assert(ev, node)
    cond = ev.condition(node.args[0])
    if isinstance(cond, CV) and cond.value:
        return VOID_VALUE
    ev.emit_before(tree.Assert(ev.runtime(cond, node.pos), "assertion failed", pos=node.pos), node.pos, "@assert")
    return VOID_VALUE


def plain(value: Any) -> Any:
    """A comptime value as plain Python data, for messages and files."""
    match value:
        case CV():
            if isinstance(value.type, t.EnumType):
                return next((n for n, v in value.type.members if v == value.value), value.value)
            return plain(value.value)
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case ArrayValue():
            return [plain(x) for x in value.items]
        case bytes():
            return value.decode("utf-8", "replace")
        case FunctionValue():
            return f"fn {value.name}"
        case int() | float() | bool() | None:
            return value
        case _:
            return str(value)


@builtin("comptime_print", 0, 64)
def _comptime_print(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    values = [plain(ev.comptime(a, "what is printed")) for a in node.args]
    ev.unit.session.printed.append(f"{node.pos}: {' '.join(map(str, values))}")
    return VOID_VALUE


# --- strings ---------------------------------------------------------------------------------------------------------


def _string(ev: Evaluator, node: s.Expr) -> bytes:
    value = ev.comptime(node, "a string")
    if value.type is not t.COMPTIME_STRING:
        stop("type-mismatch", f"expected a string, found {type_of_value(value)}", node.pos)
    return value.value


@builtin("strcat", 0, 64)
def _strcat(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.COMPTIME_STRING, b"".join(_string(ev, a) for a in node.args))


@builtin("strlen", 1)
def _strlen(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    return CV(t.COMPTIME_INT, len(_string(ev, node.args[0])))


@builtin("get_array", 1)
def _get_array(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    text = _string(ev, node.args[0])
    return CV(t.ArrayType((len(text),), t.U8), ArrayValue(len(text), items=list(text)))


@builtin("get_string_from_byte", 1)
def _string_from_byte(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    value = ev.integer(node.args[0], "the byte")
    if not 0 <= value <= 255:
        stop("out-of-range", f"{value} is not a byte", node.args[0].pos)
    return CV(t.COMPTIME_STRING, bytes([value]))


# --- modules and files -----------------------------------------------------------------------------------------------


def struct_fields(ev: Evaluator, node: s.Expr, what: str) -> dict[str, CV]:
    """The fields of a comptime-known struct."""
    value = ev.comptime(node, what)
    if not isinstance(value.value, dict):
        stop("type-mismatch", f"{what} must be a struct, found {type_of_value(value)}", node.pos)
    return value.value


@builtin("import_module", 1, 2)
def _import_module(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    name = ev.text(node.args[0], "the module's name")
    path = ev.unit.files.resolve(name, ev.module.path, node.args[0].pos)
    params = struct_fields(ev, node.args[1], "the module's parameters") if len(node.args) == 2 else {}
    unit = ev.unit
    if unit.depth > 60:
        stop("import-depth", f"imports are nested too deeply at {name!r}", node.pos, "does a module import itself?")
    unit.imports += 1
    unit.depth += 1
    try:
        module = unit.load(path, params, f"{path.stem}{unit.imports}.")
    finally:
        unit.depth -= 1
    for key in params:
        if not isinstance(module.decls.get(key), s.ParamDecl) and not module.in_library:
            unit.diagnostics.warn("unknown-parameter", f"module {path.name} has no parameter '{key}'", node.args[1].pos)
    return CV(t.MODULE, module)


@builtin("import_comptime_value", 2)
def _import_comptime_value(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind, name = ev.type(node.args[0]), ev.text(node.args[1], "the file's name")
    path = ev.module.path.parent / name
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        stop("bad-json", f"cannot read {path}: {problem}", node.args[1].pos)
    return _from_json(ev, data, kind, node.args[1].pos)


def _from_json(ev: Evaluator, data: Any, kind: t.Type, pos: Position) -> CV:
    if isinstance(kind, t.ArrayType) and isinstance(data, list):
        if len(data) != kind.count:
            stop("bad-json", f"{kind} needs {kind.count} elements, the file has {len(data)}", pos)
        return CV(kind, ArrayValue(kind.count, items=[_from_json(ev, x, kind.elem, pos).value for x in data]))
    if isinstance(data, dict) and kind is t.COMPTIME_STRUCT:
        fields = {}
        for label, inner in data.items():
            name, _, spelled = label.partition(":")
            fields[name] = _from_json(ev, inner, _json_type(ev, spelled, pos), pos)
        return CV(kind, fields)
    if isinstance(data, bool):
        found = CV(t.BOOL, data)
    elif isinstance(data, int):
        found = CV(kind, data) if isinstance(kind, t.HandleType) else CV(t.COMPTIME_INT, data)
    elif isinstance(data, float):
        found = CV(t.COMPTIME_FLOAT, data)
    elif isinstance(data, str):
        found = CV(t.COMPTIME_STRING, data.encode())
    else:
        stop("bad-json", f"a JSON {type(data).__name__} cannot become {kind}", pos)
    result = coerce(found, kind, pos, "the value of the file")
    assert isinstance(result, CV)
    return result


def _json_type(ev: Evaluator, spelled: str, pos: Position) -> t.Type:
    from wsesim.csl.syntax.parser import parse_text  # the label is a type in CSL's own spelling

    decl = parse_text(f"const x: {spelled.strip()} = 0;", "<json label>").decls[0]
    if not isinstance(decl, s.VarDecl) or decl.type is None:
        stop("bad-json", f"{spelled!r} is not a type", pos)
    return ev.type(decl.type)
