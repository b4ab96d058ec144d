"""Builtins that make and change descriptors: ``@get_dsd``, tensor access, FIFOs, ``@set_dsd_...``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from wsesim.csl.builtins.registry import builtin
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import Fifo
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce, pointer_expr, type_of_value
from wsesim.csl.sema.core import CellRef
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.numeric import fits
from wsesim.csl.sema.values import CV, Operand, Pointer
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax.source import Position

__all__ = ["flag", "one_of", "tensor_access"]

MEM1D, MEM4D, CIRCBUF, FABIN, FABOUT, FIFO = t.DSD_TYPES
_MEMORY_FIELDS = {"tensor_access", "base_address", "extent", "stride", "offset", "wavelet_index_offset", "wraparound"}
_FABRIC_FIELDS = {
    *("extent", "fabric_color", "input_queue", "output_queue", "control", "wavelet_index_offset", "simd_mode"),
    *("priority", "advance_switch", "control_transform", "zero"),
}


# --- reading option structs ------------------------------------------------------------------------------------------


def flag(value: Operand | None, name: str, pos: Position) -> bool:
    """A comptime-known bool option; absent is false."""
    if value is None:
        return False
    if not isinstance(value, CV) or value.type != t.BOOL:
        stop("type-mismatch", f".{name} must be a comptime-known bool, found {value.type}", pos)
    return value.value


def one_of(value: Operand | None, name: str, allowed: tuple[str, ...], pos: Position) -> str:
    """An option written as ``.{ .choice = true }``; absent is the empty string."""
    if value is None:
        return ""
    chosen = value.value if isinstance(value, CV) else None
    if not isinstance(chosen, dict) or len(chosen) != 1:
        stop("type-mismatch", f".{name} must be one of {_choices(allowed)}", pos)
    key, setting = next(iter(chosen.items()))
    if key not in allowed or not flag(setting, key, pos):
        stop("type-mismatch", f".{name} must be one of {_choices(allowed)}, found .{key}", pos)
    return key


def _choices(allowed: tuple[str, ...]) -> str:
    return ", ".join(f".{{ .{x} = true }}" for x in allowed)


def options(ev: Evaluator, node: s.Expr, allowed: set[str], what: str) -> dict[str, Operand]:
    """The fields of an option struct, some of which may be run-time values."""
    value = ev.eval(node)
    if not isinstance(value, CV) or not isinstance(value.value, dict):
        stop("type-mismatch", f"{what} must be a struct, found {value.type}", node.pos)
    for key in value.value:
        if key not in allowed:
            stop("unknown-field", f"{what} has no field '.{key}'", node.pos, f"it takes {', '.join(sorted(allowed))}")
    return value.value


def number(value: Operand, kind: t.IntType, name: str, pos: Position) -> Operand:
    """An integer option."""
    if isinstance(value, CV) and isinstance(value.value, dict) and list(value.value) == ["0"]:
        value = value.value["0"]  # a tuple of one, as tensor access expressions give
    return coerce(value, kind, pos, f".{name}")


# --- tensor access ---------------------------------------------------------------------------------------------------


def tensor_access(ev: Evaluator, node: s.TensorAccess) -> CV:
    """``|i, j|{n, m} -> a[...]`` as the struct it stands for.

    ``stride`` is in the documented form: innermost dimension first, each entry the change of the address when that
    index grows by one and all inner ones go back to zero.
    """
    if not isinstance(node.target, s.Index):
        stop("type-mismatch", "a tensor access ends in an element: a[i]", node.target.pos)
    place, kind = _accessed(ev, node.target)
    extents = [ev.integer(n, "a length") for n in node.lengths]
    for extent, at in zip(extents, node.lengths, strict=True):
        if not 0 <= extent <= t.U16.maximum:
            stop("out-of-range", f"a length must be from 0 to {t.U16.maximum}, found {extent}", at.pos)
    base, coefficients = _affine(ev, node, kind)
    _check_access(ev, node, kind, base, coefficients, extents)
    strides, carried = [], 0
    for extent, step in zip(reversed(extents), reversed(coefficients), strict=True):
        strides.append(step - carried)
        carried += (extent - 1) * step
    fields = {
        "base_address": place,
        "offset": CV(t.COMPTIME_INT, base),
        "stride": CV(t.COMPTIME_STRUCT, {str(i): CV(t.COMPTIME_INT, x) for i, x in enumerate(strides)}),
        "extent": CV(t.COMPTIME_STRUCT, {str(i): CV(t.COMPTIME_INT, x) for i, x in enumerate(extents)}),
    }
    return CV(t.COMPTIME_STRUCT, fields)


def _accessed(ev: Evaluator, target: s.Index) -> tuple[CV, t.ArrayType | None]:
    """The array's address, and its type (None behind a ``[*]`` pointer)."""
    place = ev.reach(target.base, storage=True)
    kind = place.type
    if isinstance(kind, t.PtrType):
        pointer = ev.fetch(place, target.base.pos)
        if not isinstance(pointer, CV):
            hint = "use .base_address with .extent and .stride for a run-time pointer"
            stop("not-comptime", "the pointer in a tensor access must be known at compile time", target.pos, hint)
        inner = kind.elem if isinstance(kind.elem, t.ArrayType) and not kind.many else None
        return pointer, inner
    if not isinstance(kind, t.ArrayType):
        stop("type-mismatch", f"a tensor access needs an array or a pointer, found {kind}", target.pos)
    match place:
        case tree.MemRef(base=tree.GlobalAddr(symbol=symbol), indices=()):
            pointer = CV(t.PtrType(kind, place.const), Pointer(ev.unit.globals[symbol], place.offset))
            return pointer, kind
        case CV():
            stored = ev.storage(place, "const", target.pos)
            assert isinstance(stored.base, tree.GlobalAddr)
            return CV(t.PtrType(kind, True), Pointer(ev.unit.globals[stored.base.symbol])), kind
        case tree.MemRef():
            hint = "use .base_address with .extent and .stride for a local or run-time array"
            stop("not-comptime", "the array in a tensor access must be a global", target.pos, hint)
        case CellRef() | _:
            stop("type-mismatch", "a comptime variable has no memory to describe", target.pos)
    return None


def _affine(ev: Evaluator, node: s.TensorAccess, kind: t.ArrayType | None) -> tuple[int, list[int]]:
    """Constant part and the coefficient of each induction variable, in elements."""
    target = cast("s.Index", node.target)
    dims = kind.dims if kind is not None else (1,)
    if len(target.indices) != len(dims):
        stop(
            "index-count", f"{kind or 'the pointer'} takes {len(dims)} indices, found {len(target.indices)}", target.pos
        )

    def at(values: list[int]) -> int:
        ev.scopes.append({n: CV(t.COMPTIME_INT, v) for n, v in zip(node.variables, values, strict=True)})
        try:
            parts = [ev.integer(i, "an index of the tensor access") for i in target.indices]
        finally:
            ev.scopes.pop()
        flat = 0
        for part, extent in zip(parts, dims, strict=True):
            flat = flat * extent + part
        return flat

    count = len(node.variables)
    base = at([0] * count)
    coefficients = [at([int(k == j) for k in range(count)]) - base for j in range(count)]
    if at([3] * count) != base + 3 * sum(coefficients):
        stop("not-affine", "the index must be an affine expression of the induction variables", target.pos)
    return base, coefficients


def _check_access(
    ev: Evaluator, node: s.TensorAccess, kind: t.ArrayType | None, base: int, steps: list[int], extents: list[int]
) -> None:
    if kind is None or not all(extents):
        return
    low = base + sum(min(0, c * (e - 1)) for c, e in zip(steps, extents, strict=True))
    high = base + sum(max(0, c * (e - 1)) for c, e in zip(steps, extents, strict=True))
    if (low < 0 or high >= kind.count) and ev.unit.strict:
        text = f"the access reaches elements {low} to {high} of {kind}, which has {kind.count}"
        stop("index-out-of-bounds", text, node.pos)


# --- @get_dsd --------------------------------------------------------------------------------------------------------


@builtin("get_dsd", 2)
def _get_dsd(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind = ev.type(node.args[0])
    if not isinstance(kind, t.DsdType) or kind == FIFO:
        stop("type-mismatch", f"@get_dsd makes mem1d, mem4d, circbuf, fabin and fabout DSDs, not {kind}", node.pos)
    allowed = _FABRIC_FIELDS if kind.is_fabric else _MEMORY_FIELDS
    fields = options(ev, node.args[1], allowed, f"@get_dsd({kind})")
    if kind.is_fabric:
        return _fabric_dsd(ev, kind, dict(fields), node)
    return _memory_dsd(ev, kind, dict(fields), node)


def _memory_dsd(ev: Evaluator, kind: t.DsdType, fields: dict[str, Operand], node: s.BuiltinCall) -> Operand:
    pos = node.args[1].pos
    access = fields.pop("tensor_access", None)
    if access is not None:
        if not isinstance(access, CV) or not isinstance(access.value, dict):
            stop("type-mismatch", f".tensor_access must be a tensor access, found {access.type}", pos)
        twice = set(access.value) & set(fields)
        if twice:
            stop("duplicate-name", f".{min(twice)} is given twice", pos)
        fields.update(access.value)
    if "base_address" not in fields:
        stop("missing-field", f"@get_dsd({kind}) needs .tensor_access or .base_address", pos)
    if "extent" not in fields:
        if kind != MEM1D or ev.unit.strict:
            stop("missing-field", f"@get_dsd({kind}) needs .extent", pos)
        fields["extent"] = CV(t.U16, 0)  # a template whose length is set before use
    base = fields["base_address"]
    if not isinstance(base.type, t.PtrType):
        stop("type-mismatch", f".base_address must be a pointer, found {base.type}", pos, "take the address: &x")
    elem = base.type.elem.elem if isinstance(base.type.elem, t.ArrayType) else base.type.elem
    const = tree.DsdConst(
        kind, elem=elem, wavelet_index_offset=flag(fields.get("wavelet_index_offset"), "wavelet_index_offset", pos),
        pos=node.pos,
    )  # fmt: skip
    if kind == MEM1D:
        return _mem1d(ev, const, fields, node)
    return _mem4d(const, fields, node) if kind == MEM4D else _circbuf(const, fields, node)


def _mem1d(ev: Evaluator, const: tree.DsdConst, fields: dict[str, Operand], node: s.BuiltinCall) -> Operand:
    pos, base = node.args[1].pos, fields["base_address"]
    extent = number(fields["extent"], t.U16, "extent", pos)
    wide = t.I8 if ev.unit.strict else t.I16
    stride = number(fields.get("stride", CV(t.I8, 1)), wide, "stride", pos)
    offset = number(fields.get("offset", CV(t.I16, 0)), t.I32 if not ev.unit.strict else t.I16, "offset", pos)
    elem = const.elem
    assert elem is not None
    parts: dict[str, Any] = {}
    if isinstance(extent, CV):
        const = replace(const, extents=(extent.value,))
    else:
        const, parts["extent"] = replace(const, extents=(0,)), extent
    if isinstance(stride, CV):
        const = replace(const, strides=(stride.value,))
    else:
        const, parts["stride"] = replace(const, strides=(1,)), stride
    if isinstance(base, CV):
        const = replace(const, **_based(base))
    else:
        parts["base"] = base
    if isinstance(offset, CV):
        const = replace(const, offset=const.offset + offset.value * t.size_of(elem))
    else:
        parts["offset"] = offset
    if not parts:
        return CV(const.type, const)
    if ev.at_comptime:
        ev.not_comptime(pos, "every field of this DSD")
    return tree.DsdMake(const.type, const, **parts, pos=node.pos)


def _based(pointer: CV) -> dict[str, Any]:
    if isinstance(pointer.value, Pointer):
        return {"base": pointer.value.target.symbol, "offset": pointer.value.offset}
    return {"offset": int(pointer.value)}


def _tuple(value: Operand, name: str, pos: Position) -> list[int]:
    if isinstance(value, CV) and not isinstance(value.value, dict):
        value = CV(t.COMPTIME_STRUCT, {"0": value})
    items = list(value.value.values()) if isinstance(value, CV) else []
    if not items or not all(isinstance(i, CV) and isinstance(i.value, int) for i in items):
        stop("type-mismatch", f".{name} must be a tuple of comptime-known integers", pos)
    return [i.value for i in items]


def _mem4d(const: tree.DsdConst, fields: dict[str, Operand], node: s.BuiltinCall) -> Operand:
    pos, base = node.args[1].pos, fields["base_address"]
    extents = _tuple(fields["extent"], "extent", pos)
    given = fields.get("stride")
    stepped = _tuple(given, "stride", pos) if given is not None else [1] * len(extents)
    if len(stepped) != len(extents) or len(extents) > 4:
        stop("type-mismatch", "a mem4d DSD has one to four extents and as many strides", pos)
    offset = fields.get("offset", CV(t.I16, 0))
    if not isinstance(base, CV) or not isinstance(offset, CV):
        stop("not-comptime", "the fields of a mem4d DSD must be known at compile time", pos)
    plain, carried = [], 0
    for step, extent in zip(stepped, reversed(extents), strict=True):
        plain.append(step + carried)
        carried += (extent - 1) * plain[-1]
    elem = const.elem
    assert elem is not None
    const = replace(const, extents=tuple(extents), strides=tuple(reversed(plain)), **_based(base))
    return CV(const.type, replace(const, offset=const.offset + offset.value * t.size_of(elem)))


def _circbuf(const: tree.DsdConst, fields: dict[str, Operand], node: s.BuiltinCall) -> Operand:
    pos, base = node.args[1].pos, fields["base_address"]
    extent = number(fields["extent"], t.U16, "extent", pos)
    if not isinstance(base, CV) or not isinstance(extent, CV):
        stop("not-comptime", "the fields of a circular buffer must be known at compile time", pos)
    assert isinstance(base.type, t.PtrType)
    size = base.type.elem.count if isinstance(base.type.elem, t.ArrayType) else None
    wrap = fields.get("wraparound")
    if wrap is None and size is None:
        stop("missing-field", "a circular buffer over a pointer to a scalar needs .wraparound", pos)
    around = size if wrap is None else number(wrap, t.U16, "wraparound", pos)
    if isinstance(around, CV):
        around = around.value
    if size is not None and isinstance(around, int) and around > size:
        stop("out-of-range", f".wraparound {around} exceeds the {size} elements of the buffer", pos)
    return CV(
        const.type,
        replace(const, extents=(extent.value,), strides=(1,), wraparound=cast("int", around), **_based(base)),
    )


def _fabric_dsd(ev: Evaluator, kind: t.DsdType, fields: dict[str, Operand], node: s.BuiltinCall) -> Operand:
    pos = node.args[1].pos
    queue_name, other = ("input_queue", "output_queue") if kind == FABIN else ("output_queue", "input_queue")
    if other in fields:
        stop("unknown-field", f"a {kind} has no .{other}", pos, f"it takes .{queue_name}")
    for name in ("control", "zero", "wavelet_index_offset", "advance_switch"):
        if kind == FABIN and name in fields:
            stop("unknown-field", f"a fabin_dsd has no .{name}", pos)
    extent = number(fields.get("extent", CV(t.U16, 1)), t.U16, "extent", pos)
    color, queue = fields.get("fabric_color"), fields.get(queue_name)
    if color is None and queue is None:
        stop("missing-field", f"a {kind} needs .fabric_color or .{queue_name}", pos)
    color = _handle(ev, color, "color", "fabric_color", pos)
    queue = _handle(ev, queue, queue_name, queue_name, pos)
    const = tree.DsdConst(
        kind,
        extents=(extent.value if isinstance(extent, CV) else 0,),
        color=color.value if isinstance(color, CV) else None,
        queue=queue.value if isinstance(queue, CV) else None,
        control=flag(fields.get("control"), "control", pos),
        wavelet_index_offset=flag(fields.get("wavelet_index_offset"), "wavelet_index_offset", pos),
        simd_mode=one_of(fields.get("simd_mode"), "simd_mode", ("simd_32", "simd_64", "simd_32_or_64"), pos),
        priority=one_of(fields.get("priority"), "priority", ("high", "medium", "low"), pos),
        advance_switch=flag(fields.get("advance_switch"), "advance_switch", pos),
        control_transform=flag(fields.get("control_transform"), "control_transform", pos),
        zero_source=one_of(fields.get("zero"), "zero", ("first_source", "second_source"), pos),
        pos=node.pos,
    )
    parts = {"extent": extent, "color": color, "queue": queue}
    parts = {name: x for name, x in parts.items() if x is not None and not isinstance(x, CV)}
    if not parts:
        return CV(kind, const)
    if ev.at_comptime:
        ev.not_comptime(pos, "every field of this DSD")
    return tree.DsdMake(kind, const, **parts, pos=node.pos)


def _handle(ev: Evaluator, value: Operand | None, kind: str, name: str, pos: Position) -> Operand | None:
    if value is None:
        return None
    if isinstance(value, CV) and value.type is t.COMPTIME_INT and not ev.unit.strict:
        return CV(t.HandleType(kind), value.value)
    return coerce(value, t.HandleType(kind), pos, f".{name}")


# --- changing descriptors --------------------------------------------------------------------------------------------


def _dsd_operand(ev: Evaluator, node: s.BuiltinCall, allowed: tuple[t.DsdType, ...]) -> Operand:
    value = ev.eval(node.args[0])
    if value.type not in allowed:
        names = ", ".join(map(str, allowed))
        stop("type-mismatch", f"@{node.name} takes a DSD ({names}), found {ev.full_type(value)}", node.args[0].pos)
    return value


@builtin("set_dsd_length", 2)
def _set_dsd_length(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    dsd = _dsd_operand(ev, node, (MEM1D, CIRCBUF, FABIN, FABOUT))
    length = coerce(ev.eval(node.args[1]), t.U16, node.args[1].pos, "the length")
    if isinstance(dsd, CV) and isinstance(length, CV):
        return CV(dsd.type, replace(dsd.value, extents=(length.value,)))
    return _changed(ev, node, dsd, length)


@builtin("set_dsd_stride", 2)
def _set_dsd_stride(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    dsd = _dsd_operand(ev, node, (MEM1D,))
    stride = coerce(ev.eval(node.args[1]), t.I8, node.args[1].pos, "the stride")
    if isinstance(dsd, CV) and isinstance(stride, CV):
        return CV(dsd.type, replace(dsd.value, strides=(stride.value,)))
    return _changed(ev, node, dsd, stride)


@builtin("set_dsd_base_addr", 2)
def _set_dsd_base_addr(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    dsd = _dsd_operand(ev, node, (MEM1D, MEM4D))
    address = _address_operand(ev, node.args[1])
    assert isinstance(address.type, t.PtrType)
    elem = address.type.elem.elem if isinstance(address.type.elem, t.ArrayType) else address.type.elem
    if isinstance(dsd, CV) and isinstance(address, CV):
        based = {"base": None, "offset": 0, **_based(address)}
        return CV(dsd.type, replace(dsd.value, elem=elem, **based))
    found = _changed(ev, node, dsd, address)
    return replace(found, types=(elem,))


def _address_operand(ev: Evaluator, node: s.Expr) -> Operand:
    """A tensor's name or a pointer, as a pointer."""
    place = ev.reach(node, storage=True)
    if isinstance(place.type, t.PtrType):
        return ev.fetch(place, node.pos)
    match place:
        case tree.MemRef(base=tree.GlobalAddr(symbol=symbol), indices=()):
            return CV(t.PtrType(place.type, place.const), Pointer(ev.unit.globals[symbol], place.offset))
        case tree.MemRef():
            return tree.AddressOf(t.PtrType(place.type, place.const), place, pos=node.pos)
        case _:
            stop("type-mismatch", f"expected a tensor or a pointer, found {place.type}", node.pos)
    return None


@builtin("increment_dsd_offset", 3)
def _increment_dsd_offset(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    dsd = _dsd_operand(ev, node, (MEM1D, MEM4D))
    elem = ev.type(node.args[2])
    if not isinstance(elem, t.IntType | t.FloatType):
        stop("type-mismatch", f"the element type must be numeric, found {elem}", node.args[2].pos)
    offset = ev.eval(node.args[1])
    if isinstance(offset, CV) and isinstance(offset.value, int) and not fits(offset.value, t.I16):
        stop("out-of-range", f"the offset must fit i16, found {offset.value}", node.args[1].pos)
    if not (isinstance(offset.type, t.IntType) and offset.type.bits <= 16) or (offset.type != t.I16 and ev.unit.strict):
        offset = coerce(offset, t.I16, node.args[1].pos, "the offset")
    if isinstance(dsd, CV) and isinstance(offset, CV):
        return CV(dsd.type, replace(dsd.value, offset=dsd.value.offset + offset.value * t.size_of(elem)))
    return replace(_changed(ev, node, dsd, offset), types=(elem,))


def _changed(ev: Evaluator, node: s.BuiltinCall, *args: Operand) -> tree.Builtin:
    if ev.at_comptime:
        ev.not_comptime(node.pos, f"every argument of @{node.name}")
    exprs = tuple(ev.runtime(a, node.pos) for a in args)
    return tree.Builtin(args[0].type, node.name, exprs, pos=node.pos)


# --- FIFOs -----------------------------------------------------------------------------------------------------------


_ACTIONS = ("test_or_suspend", "terminate", "suspend", "fault")


@builtin("allocate_fifo", 1, 2)
def _allocate_fifo(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.builder is not None:
        stop("misplaced-builtin", "@allocate_fifo belongs into a global const", node.pos)
    pointer = _address_operand(ev, node.args[0])
    if not isinstance(pointer, CV) or not isinstance(pointer.value, Pointer):
        ev.not_comptime(node.args[0].pos, "the FIFO's buffer")
        raise AssertionError
    target = pointer.value.target
    if target.const or not isinstance(target.type, t.ArrayType):
        stop("type-mismatch", "a FIFO's buffer must be a global array declared with var", node.args[0].pos)
    allowed = {"activate_pop", "activate_push", "empty_action", "full_action", "priority", "simd_mode"}
    given = options(ev, node.args[1], allowed, "@allocate_fifo") if len(node.args) == 2 else {}
    pos, elem, index = node.pos, target.type.elem, len(ev.unit.pe.fifos)
    if "full_action" in given and ev.unit.arch == "wse2":
        stop("wrong-arch", ".full_action does not exist on WSE-2", pos)
    fifo = Fifo(
        index, "", target.symbol, elem, target.type.count,
        empty_action=one_of(given.get("empty_action"), "empty_action", _ACTIONS, pos) or "test_or_suspend",
        full_action=one_of(given.get("full_action"), "full_action", _ACTIONS, pos) or "test_or_suspend",
        priority=one_of(given.get("priority"), "priority", ("high", "medium", "low"), pos),
        simd_mode=one_of(given.get("simd_mode"), "simd_mode", ("simd_32", "simd_64", "simd_32_or_64"), pos),
        pos=pos,
    )  # fmt: skip
    ev.unit.pe.fifos.append(fifo)
    target.align = max(target.align, 16) if target.align == 0 else target.align
    ev.unit.deferred.append(lambda: _bind_fifo_tasks(ev, index, given, pos))
    const = tree.DsdConst(FIFO, target.symbol, 0, (target.type.count,), (1,), elem, fifo=index, pos=pos)
    return CV(FIFO, const)


def _bind_fifo_tasks(ev: Evaluator, index: int, given: dict[str, Operand], pos: Position) -> None:
    from wsesim.csl.builtins.dsd_operations import local_task

    ids = {}
    for name in ("activate_push", "activate_pop"):
        if name in given:
            found = local_task(ev, given[name], name, pos)
            ids[name] = int(cast("tree.Const", found).value)
    ev.unit.pe.fifos[index] = replace(ev.unit.pe.fifos[index], **ids)


def _set_fifo_length(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    fifo = ev.comptime(node.args[0], "the FIFO")
    if fifo.type != FIFO:
        stop("type-mismatch", f"@{node.name} takes a FIFO, found {type_of_value(fifo)}", node.args[0].pos)
    if ev.at_comptime:
        stop("misplaced-builtin", f"@{node.name} only works at run time", node.pos)
    length = coerce(ev.eval(node.args[1]), t.U16, node.args[1].pos, "the length")
    args = (fifo.value, ev.runtime(length, node.pos))
    return tree.Builtin(t.VOID, node.name, args, pos=node.pos)


for _name in ("set_fifo_read_length", "set_fifo_write_length"):
    builtin(_name, 2)(_set_fifo_length)


def pointer_of(ev: Evaluator, node: s.Expr) -> tree.Expr:
    """A tensor's name or a pointer, as an address expression."""
    found = _address_operand(ev, node)
    return pointer_expr(found, node.pos) if isinstance(found, CV) else found
