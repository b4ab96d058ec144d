"""Builtins of the layout: rectangle, tile code, colour configurations, exported names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsesim.csl.builtins.dsd import flag, one_of
from wsesim.csl.builtins.registry import builtin
from wsesim.csl.builtins.tasks import in_comptime_block
from wsesim.csl.builtins.types_and_values import struct_fields
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import DIRECTIONS, ColorConfig, ExportedName, Filter, Switches, SwitchPosition
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce
from wsesim.csl.sema.modules import GlobalVar, stop
from wsesim.csl.sema.unit import TileCode
from wsesim.csl.sema.values import CV, VOID_VALUE, FunctionValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax.source import Position

__all__ = ["color_config"]

SWITCHABLE_WSE3 = frozenset((*range(10), 12, 13, 16, 17, 20, 21))


def _in_layout(ev: Evaluator, node: s.BuiltinCall) -> None:
    if ev.builder is not None or ev.unit.block != "layout":
        stop("misplaced-builtin", f"@{node.name} belongs into a layout block", node.pos)


@builtin("set_rectangle", 2)
def _set_rectangle(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    _in_layout(ev, node)
    width, height = (ev.integer(a, w) for a, w in zip(node.args, ("the width", "the height"), strict=True))
    layout = ev.unit.layout
    if layout.size is not None:
        stop("duplicate-rectangle", "@set_rectangle is called twice", node.pos, f"first at {layout.size_pos}")
    if width < 1 or height < 1 or width * height > 1_000_000:
        stop("out-of-range", f"a rectangle of {width} by {height} PEs is not possible", node.pos)
    _check_fabric(ev, width, height, node.pos)
    layout.size, layout.size_pos = (width, height), node.pos
    return VOID_VALUE


def _check_fabric(ev: Evaluator, width: int, height: int, pos: Position) -> None:
    dims, (dx, dy) = ev.unit.session.fabric_dims, ev.unit.session.fabric_offsets
    if dims is not None and (dx + width > dims[0] or dy + height > dims[1]):
        text = f"a {width}x{height} rectangle at offset {dx},{dy} does not fit a fabric of {dims[0]}x{dims[1]}"
        stop("fabric-too-small", text, pos, f"--fabric-dims must be at least {dx + width},{dy + height}")


@builtin("get_rectangle", 0)
def _get_rectangle(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    size = ev.unit.layout.size
    if size is None:
        stop("missing-rectangle", "@get_rectangle comes before @set_rectangle", node.pos)
    fabric = ev.unit.session.fabric_dims or size

    def pair(values: tuple[int, int]) -> dict[str, CV]:
        return {"width": CV(t.U16, values[0]), "height": CV(t.U16, values[1])}

    fields: dict[str, Any] = pair(size)
    fields["fabric"] = CV(t.COMPTIME_STRUCT, pair(fabric))
    fields["offsets"] = CV(t.COMPTIME_STRUCT, pair(ev.unit.session.fabric_offsets))
    return CV(t.COMPTIME_STRUCT, fields)


def _coordinates(ev: Evaluator, node: s.BuiltinCall) -> tuple[int, int]:
    x, y = (ev.integer(a, w) for a, w in zip(node.args[:2], ("the column", "the row"), strict=True))
    size = ev.unit.layout.size
    if size is None:
        stop("missing-rectangle", f"@{node.name} comes before @set_rectangle", node.pos)
    if not (0 <= x < size[0] and 0 <= y < size[1]):
        stop("outside-rectangle", f"PE {x},{y} is outside the {size[0]}x{size[1]} rectangle", node.pos)
    return x, y


@builtin("set_tile_code", 2, 4)
def _set_tile_code(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    _in_layout(ev, node)
    at = _coordinates(ev, node)
    if len(node.args) == 2:
        path = ev.module.path
    else:
        name = ev.text(node.args[2], "the file's name")
        path = ev.unit.files.resolve(name, ev.module.path, node.args[2].pos)
    params = struct_fields(ev, node.args[3], "the parameters") if len(node.args) == 4 else {}
    old = ev.unit.layout.tiles.get(at)
    if old is not None:
        stop("duplicate-tile-code", f"PE {at[0]},{at[1]} has its code set twice", node.pos, f"first at {old.pos}")
    ev.unit.layout.tiles[at] = TileCode(path, params, node.pos)
    return VOID_VALUE


# --- colours ---------------------------------------------------------------------------------------------------------


@builtin("set_color_config", 4)
def _set_color_config(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    _in_layout(ev, node)
    at = _coordinates(ev, node)
    number, config = color_config(ev, node.args[2], node.args[3], node.pos)
    table = ev.unit.layout.colors.setdefault(at, {})
    if number in table:
        text = f"colour {number} of PE {at[0]},{at[1]} is configured twice"
        stop("color-clash", text, node.pos, f"first at {table[number].pos}")
    table[number] = config
    return VOID_VALUE


@builtin("set_local_color_config", 2)
def _set_local_color_config(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    number, config = color_config(ev, node.args[0], node.args[1], node.pos)
    if number in ev.unit.pe.colors:
        text = f"colour {number} is configured twice"
        stop("color-clash", text, node.pos, f"first at {ev.unit.pe.colors[number].pos}")
    ev.unit.pe.colors[number] = config
    return VOID_VALUE


def color_config(ev: Evaluator, color: s.Expr, config: s.Expr, pos: Position) -> tuple[int, ColorConfig]:
    """The colour's number and its configuration."""
    value = coerce(ev.comptime(color, "the colour"), t.HandleType("color"), color.pos, "the colour")
    assert isinstance(value, CV)
    fields = struct_fields(ev, config, "the colour configuration")
    where = config.pos
    _known(fields, ("routes", "switches", "filter", "teardown"), "a colour configuration", where)
    if "routes" not in fields:
        stop("missing-field", "a colour configuration needs .routes", where, ".routes = .{} for none")
    routes = _struct(fields["routes"], "routes", where)
    inner = (
        *("rx", "tx", "pop_mode", "color_swap_x", "color_swap_y"),
        *("pos1", "pos2", "pos3", "ring_mode", "current_switch_pos"),
    )
    _known(routes, inner, ".routes", where)
    switches = _struct(fields["switches"], "switches", where) if "switches" in fields else {}
    if "pop_mode" in routes and "pop_mode" not in switches:
        switches = {**switches, "pop_mode": routes["pop_mode"]}
    found = ColorConfig(
        rx=_sides(routes.get("rx"), "rx", where),
        tx=_sides(routes.get("tx"), "tx", where),
        color_swap_x=flag(routes.get("color_swap_x"), "color_swap_x", where),
        color_swap_y=flag(routes.get("color_swap_y"), "color_swap_y", where),
        switches=_switches(ev, switches, value.value, where) if switches else None,
        filter=_filter(ev, _struct(fields["filter"], "filter", where), where) if "filter" in fields else None,
        teardown=flag(fields.get("teardown"), "teardown", where),
        pos=pos,
    )
    return value.value, found


def _struct(value: CV, name: str, pos: Position) -> dict[str, CV]:
    if not isinstance(value.value, dict):
        stop("type-mismatch", f".{name} must be a struct, found {value.type}", pos)
    return value.value


def _known(fields: dict[str, CV], allowed: tuple[str, ...], what: str, pos: Position) -> None:
    for name in fields:
        if name not in allowed:
            stop("unknown-field", f"{what} has no field '.{name}'", pos, f"it takes {', '.join(allowed)}")


def _sides(value: CV | None, name: str, pos: Position) -> tuple[str, ...]:
    if value is None:
        return ()
    items = [value] if value.type == t.DIRECTION else list(_struct(value, name, pos).values())
    if not all(isinstance(i, CV) and i.type == t.DIRECTION for i in items):
        stop("type-mismatch", f".{name} takes directions: RAMP, WEST, EAST, SOUTH, NORTH", pos)
    names = tuple(DIRECTIONS[i.value] for i in items)
    if len(set(names)) != len(names):
        stop("duplicate-value", f".{name} names a direction twice", pos)
    return names


def _switches(ev: Evaluator, fields: dict[str, CV], color: int, pos: Position) -> Switches:
    _known(fields, ("pos1", "pos2", "pos3", "current_switch_pos", "ring_mode", "pop_mode"), ".switches", pos)
    if ev.unit.arch == "wse3" and color not in SWITCHABLE_WSE3 and ev.unit.strict:
        have = ", ".join(map(str, sorted(SWITCHABLE_WSE3)))
        stop("not-switchable", f"colour {color} has no switch on WSE-3", pos, f"switchable are {have}")
    current = fields["current_switch_pos"].value if "current_switch_pos" in fields else 0
    if not 0 <= current <= 3:
        stop("out-of-range", f".current_switch_pos must be 0 to 3, found {current}", pos)
    modes = ("no_pop", "always_pop", "pop_on_advance", "pop_on_advance_nop")
    mode: Any = one_of(fields.get("pop_mode"), "pop_mode", modes, pos) or "no_pop"
    first, second, third = (_position(ev, fields.get(f"pos{i}"), i, pos) for i in (1, 2, 3))
    return Switches((first, second, third), current, flag(fields.get("ring_mode"), "ring_mode", pos), mode)


def _position(ev: Evaluator, value: CV | None, index: int, pos: Position) -> SwitchPosition:
    if value is None:
        return SwitchPosition(invalid=True)
    name = f"pos{index}"
    fields = _struct(value, name, pos)
    _known(fields, ("rx", "tx", "invalid"), f".{name}", pos)
    if len(fields) > 1 and ev.unit.arch == "wse2":
        stop("switch-position", f".{name} changes either .rx or .tx on WSE-2", pos)
    rx = _sides(fields["rx"], "rx", pos) if "rx" in fields else None
    tx = _sides(fields["tx"], "tx", pos) if "tx" in fields else None
    if rx is not None and len(rx) > 1:
        stop("switch-position", f".{name} takes one .rx direction", pos)
    return SwitchPosition(rx, tx, flag(fields.get("invalid"), "invalid", pos))


_FILTER_FIELDS = {
    "counter": ("count_data", "count_control", "init_counter", "limit1", "max_counter", "filter_control"),
    "sparse_counter": ("count_data", "count_control", "init_counter", "limit1", "limit2", "max_counter"),
    "range": ("max_idx", "min_idx"),
}


def _filter(ev: Evaluator, fields: dict[str, CV], pos: Position) -> Filter:
    kinds = ("counter", "sparse_counter", "range")
    kind: Any = one_of(fields.get("kind"), "kind", kinds, pos)
    if not kind:
        stop("missing-field", ".filter needs .kind", pos)
    undocumented = () if ev.unit.strict else ("fast_mode",)
    _known(fields, ("kind", *_FILTER_FIELDS[kind], *undocumented), f"a {kind} filter", pos)
    given = {name: value.value for name, value in fields.items() if name != "kind"}
    return Filter(kind, **given)


@builtin("get_filter_id", 1)
def _get_filter_id(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    color = coerce(ev.comptime(node.args[0], "the colour"), t.HandleType("color"), node.args[0].pos)
    assert isinstance(color, CV)
    filtered: set[int] = {c for c, config in ev.unit.pe.colors.items() if config.filter is not None}
    for table in ev.unit.layout.colors.values():
        filtered |= {c for c, config in table.items() if config.filter is not None}
    if color.value not in filtered:
        stop("missing-filter", f"colour {color.value} has no filter", node.pos)
    return CV(t.U16, sorted(filtered).index(color.value))


# --- exports ---------------------------------------------------------------------------------------------------------


@builtin("export_name", 2, 3)
def _export_name(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    _in_layout(ev, node)
    name, kind = ev.text(node.args[0], "the name"), ev.type(node.args[1])
    names = ev.unit.layout.names
    if name in names:
        stop("duplicate-name", f"'{name}' is exported twice", node.pos)
    mutable: bool | None = None
    if len(node.args) == 3:
        mutable = ev.boolean(node.args[2], "whether the symbol is mutable")
    elif not isinstance(kind, t.FnType) and kind != t.HandleType("color"):
        stop("argument-count", f"@export_name of type {kind} needs a third argument: is it mutable?", node.pos)
    if isinstance(kind, t.FnType) and len(kind.params) > 15:
        stop("out-of-range", "an exported function takes at most 15 parameters", node.pos)
    if isinstance(kind, t.ArrayType | t.StructType | t.EnumType):
        stop("type-mismatch", f"type {kind} cannot be exported", node.args[1].pos, "export a pointer: [*]T")
    names[name] = ExportedName(name, len(names), kind, mutable)
    return VOID_VALUE


@builtin("export_symbol", 1, 2)
def _export_symbol(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    target, default, kind = _symbol(ev, node.args[0])
    name = ev.text(node.args[1], "the name") if len(node.args) == 2 else default
    if any(name == old for old, *_ in ev.unit.pe.exports):
        stop("duplicate-name", f"'{name}' is exported twice", node.pos)
    ev.unit.pe.exports.append((name, target, kind, node.pos))
    return VOID_VALUE


def _symbol(ev: Evaluator, node: s.Expr) -> tuple[Any, str, t.Type]:
    """What is exported (a variable or a function symbol), its own name and its type."""
    place = ev.reach(node, storage=True)
    default = node.id if isinstance(node, s.Name) else node.name if isinstance(node, s.Field) else ""
    match place:
        case tree.MemRef(base=tree.GlobalAddr(symbol=symbol), indices=(), offset=0):
            return ev.unit.globals[symbol], default, place.type
        case tree.ObjectRef(symbol=symbol):
            return ev.unit.globals[symbol], default, place.type
        case CV() if isinstance(place.value, FunctionValue):
            return ev.function_symbol(place.value, node.pos), default, ev.function_type(place.value)
        case CV() if isinstance(place.type, t.PtrType | t.HandleType):
            return _constant_symbol(ev, place, default, node), default, place.type
        case _:
            stop("type-mismatch", "only global variables and functions can be exported", node.pos)
    return None


def _constant_symbol(ev: Evaluator, value: CV, name: str, node: s.Expr) -> GlobalVar:
    """Memory for an exported constant pointer or handle."""
    place = ev.storage(value, name or "export", node.pos)
    assert isinstance(place.base, tree.GlobalAddr)
    return ev.unit.globals[place.base.symbol]


@builtin("get_symbol_id", 1)
def _get_symbol_id(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    target, _, _ = _symbol(ev, node.args[0])
    for name, exported, *_ in ev.unit.pe.exports:
        if exported is target or exported == target:
            found = ev.unit.layout.names.get(name)
            if found is not None:
                return CV(t.U16, found.id)
    stop("not-exported", "this symbol is not exported", node.args[0].pos, "call @export_symbol in a comptime block")
    return None
