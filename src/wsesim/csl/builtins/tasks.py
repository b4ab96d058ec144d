"""Builtins about ids, tasks, queues, exports and run-time effects."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from wsesim.csl.builtins.dsd import one_of
from wsesim.csl.builtins.dsd_operations import bound_task, unblockable
from wsesim.csl.builtins.registry import builtin
from wsesim.csl.builtins.types_and_values import plain, struct_fields
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import QueueInit, TaskBinding
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce
from wsesim.csl.sema.modules import stop, unsimulated
from wsesim.csl.sema.numeric import round_float
from wsesim.csl.sema.values import CV, VOID_VALUE, FunctionValue, Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax import nodes as s
    from wsesim.csl.syntax.source import Position

__all__ = ["ID_LIMITS"]

# Inclusive ranges per architecture.
ID_LIMITS: dict[str, dict[str, tuple[int, int]]] = {
    "color": {"wse2": (0, 23), "wse3": (0, 23)},
    "local_task_id": {"wse2": (0, 30), "wse3": (8, 30)},
    "control_task_id": {"wse2": (0, 63), "wse3": (0, 63)},
    "input_queue": {"wse2": (0, 7), "wse3": (0, 7)},
    "output_queue": {"wse2": (0, 5), "wse3": (0, 7)},
    "ut_id": {"wse2": (0, 7), "wse3": (0, 7)},
}


def _get_handle(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    name = node.name.removeprefix("get_")
    kind, value = t.HandleType(name), ev.eval(node.args[0])
    if name == "ut_id" and ev.unit.arch == "wse2":
        stop("wrong-arch", "@get_ut_id does not exist on WSE-2", node.pos)
    if not (isinstance(value.type, t.IntType) or value.type is t.COMPTIME_INT):
        stop("type-mismatch", f"@{node.name} takes an integer, found {ev.full_type(value)}", node.args[0].pos)
    if isinstance(value, CV):
        low, high = ID_LIMITS[name][ev.unit.arch]
        if not low <= value.value <= high:
            text = f"{name} {value.value} is outside {low} to {high} on {ev.unit.arch.upper()}"
            stop("id-out-of-range", text, node.args[0].pos)
        return CV(kind, value.value)
    if "queue" in name:
        ev.not_comptime(node.args[0].pos, f"the id of an {name}")
    if value.type != t.U16 and ev.unit.strict:
        stop("type-mismatch", f"a run-time id must be u16, found {value.type}", node.args[0].pos)
    return tree.Cast(kind, "handle", value, pos=node.pos)


for _name in ID_LIMITS:
    builtin(f"get_{_name}", 1)(_get_handle)


@builtin("get_data_task_id", 1)
def _get_data_task_id(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    wanted = "color" if ev.unit.arch == "wse2" else "input_queue"
    value = ev.eval(node.args[0])
    if value.type != t.HandleType(wanted):
        text = f"on {ev.unit.arch.upper()} a data task id is made from type {wanted}, found {ev.full_type(value)}"
        stop("type-mismatch", text, node.args[0].pos)
    if isinstance(value, CV):
        return CV(t.HandleType("data_task_id"), value.value)
    return tree.Cast(t.HandleType("data_task_id"), "handle", value, pos=node.pos)


# --- binding ---------------------------------------------------------------------------------------------------------


def in_comptime_block(ev: Evaluator, node: s.BuiltinCall) -> None:
    """The builtin belongs into a top-level comptime block."""
    if ev.builder is not None or ev.unit.block != "comptime":
        stop("misplaced-builtin", f"@{node.name} belongs into a top-level comptime block", node.pos)


def _task_of(ev: Evaluator, node: s.Expr, what: str, *, task: bool = True) -> FunctionValue:
    value = ev.comptime(node, what)
    if not isinstance(value.value, FunctionValue) or (task and not value.value.decl.is_task):
        kind = ev.full_type(value)
        stop("type-mismatch", f"{what} must be a {'task' if task else 'function'}, found {kind}", node.pos)
    return value.value


def _bind(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    kind: Any = node.name.removeprefix("bind_").removesuffix("_task")
    task = _task_of(ev, node.args[0], "what is bound")
    id_ = ev.comptime(node.args[1], "the task id")
    if id_.type != t.HandleType(f"{kind}_task_id"):
        stop("type-mismatch", f"@{node.name} takes a {kind}_task_id, found {ev.full_type(id_)}", node.args[1].pos)
    count = len(task.decl.params)
    if kind == "local" and count:
        stop("task-signature", f"local task '{task.name}' cannot take arguments", node.args[0].pos)
    if kind == "data" and not count:
        stop("task-signature", f"data task '{task.name}' needs an argument for the wavelet", node.args[0].pos)
    _add_binding(ev, TaskBinding(kind, id_.value, ev.function_symbol(task, node.pos), pos=node.pos))
    return VOID_VALUE


for _kind in ("local", "data", "control"):
    builtin(f"bind_{_kind}_task", 2)(_bind)


def _add_binding(ev: Evaluator, new: TaskBinding) -> None:
    for old in ev.unit.pe.tasks:
        if _same_entry(ev, old, new):
            text = (
                f"task id {new.id} is bound twice: to '{old.function}' ({old.kind}) and '{new.function}' ({new.kind})"
            )
            stop("task-id-clash", text, new.pos, f"first bound at {old.pos}")
    ev.unit.pe.tasks.append(new)


def _same_entry(ev: Evaluator, old: TaskBinding, new: TaskBinding) -> bool:
    """Whether two bindings need the same place of the task table."""
    if old.id != new.id:
        return False
    if old.kind == new.kind:
        return True
    # Control tasks share one table with the others; ids of data tasks on WSE-2 are colours in it.
    return "control" not in (old.kind, new.kind) or (ev.unit.pe.control_table is None and ev.unit.strict)


@builtin("bind_rotating_tasks", 4)
def _bind_rotating(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    if ev.unit.arch != "wse3":
        stop("wrong-arch", "@bind_rotating_tasks only exists on WSE-3", node.pos)
    main, alt = (_task_of(ev, a, "what is bound") for a in node.args[:2])
    id_ = ev.comptime(node.args[2], "the task id")
    if id_.type != t.HandleType("data_task_id"):
        stop("type-mismatch", f"the task id must be a data_task_id, found {ev.full_type(id_)}", node.args[2].pos)
    config = {k: v.value for k, v in struct_fields(ev, node.args[3], "the configuration").items()}
    if "limit" not in config:
        stop("missing-field", "@bind_rotating_tasks needs .limit", node.args[3].pos)
    rotation = (config.get("init", 0), config["limit"])
    _add_binding(ev, TaskBinding("data", id_.value, ev.function_symbol(main, node.pos), rotation, pos=node.pos))
    ev.unit.pe.tasks.append(TaskBinding("control", 0, ev.function_symbol(alt, node.pos), rotation, pos=node.pos))
    return VOID_VALUE


@builtin("set_control_task_table", 0, 1)
def _set_control_task_table(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    given = {k: v.value for k, v in struct_fields(ev, node.args[0], "the table").items()} if node.args else {}
    ev.unit.pe.control_table = (given.get("instructions", 4), given.get("stride", 1))
    return VOID_VALUE


# --- activation ------------------------------------------------------------------------------------------------------


@builtin("activate", 1)
def _activate(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    value, pos = ev.eval(node.args[0]), node.args[0].pos
    if isinstance(value, CV) and isinstance(value.value, FunctionValue):
        operand = bound_task(ev, value.value, ("local",), "activate", pos)
    elif value.type != t.HandleType("local_task_id"):
        hint = "@get_local_task_id(n) makes one" if isinstance(value.type, t.IntType) else ""
        stop("type-mismatch", f"@activate takes a local_task_id, found {ev.full_type(value)}", pos, hint)
    else:
        operand = ev.runtime(value, pos)
    if ev.builder is None:
        in_comptime_block(ev, node)
        ev.unit.pe.active.append(int(operand.value) if isinstance(operand, tree.Const) else 0)
        return VOID_VALUE
    return tree.Builtin(t.VOID, "activate", (operand,), pos=node.pos)


def _block(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    operand = unblockable(ev, ev.eval(node.args[0]), f"@{node.name}", node.args[0].pos)
    assert isinstance(operand.type, t.HandleType)
    if ev.unit.strict:
        wrong = {"wse2": ("input_queue", "ut_id"), "wse3": ("color",)}[ev.unit.arch]
        if operand.type.name in wrong:
            stop("wrong-arch", f"@{node.name} does not take type {operand.type} on {ev.unit.arch.upper()}", node.pos)
    if ev.builder is None:
        in_comptime_block(ev, node)
        record = ev.unit.pe.blocked if node.name == "block" else ev.unit.pe.unblocked
        assert isinstance(operand, tree.Const)
        record.append((operand.type.name, int(operand.value)))
        return VOID_VALUE
    return tree.Builtin(t.VOID, node.name, (operand,), pos=node.pos)


builtin("block", 1)(_block)
builtin("unblock", 1)(_block)


# --- queues ----------------------------------------------------------------------------------------------------------


@builtin("initialize_queue", 1, 2)
def _initialize_queue(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    queue, arch, pos = ev.comptime(node.args[0], "the queue"), ev.unit.arch, node.pos
    names: dict[t.Type, Literal["input", "output"]] = {
        t.HandleType("input_queue"): "input",
        t.HandleType("output_queue"): "output",
    }
    if queue.type not in names:
        stop("type-mismatch", f"@initialize_queue takes a queue, found {ev.full_type(queue)}", node.args[0].pos)
    direction = names[queue.type]
    config = struct_fields(ev, node.args[1], "the queue's configuration") if len(node.args) == 2 else {}
    allowed = {"color", "priority"} if arch == "wse2" else {"color", "ctrl_table_id"}
    for key in config:
        if key not in allowed and (ev.unit.strict or key not in ("color", "priority", "ctrl_table_id")):
            stop("unknown-field", f"@initialize_queue has no '.{key}' on {arch.upper()}", pos)
    color = config.get("color")
    if arch == "wse2" and direction == "output" and config and ev.unit.strict:
        stop("queue-config", "on WSE-2 an output queue is initialised without a configuration", pos)
    if color is None and (arch == "wse3" or direction == "input"):
        stop("queue-config", f"the {direction} queue needs .color", pos)
    number = None if color is None else coerce(color, t.HandleType("color"), pos, ".color")
    found = QueueInit(
        direction, queue.value, number.value if isinstance(number, CV) else None,
        one_of(config.get("priority"), "priority", ("high", "medium", "low"), pos),
        config["ctrl_table_id"].value if "ctrl_table_id" in config else 0, pos=pos,
    )  # fmt: skip
    for old in ev.unit.pe.queues:
        if (old.direction, old.id) == (found.direction, found.id):
            text = f"{direction} queue {found.id} is initialised twice"
            stop("queue-clash", text, pos, f"first initialised at {old.pos}")
    ev.unit.pe.queues.append(found)
    return VOID_VALUE


@builtin("set_empty_queue_handler", 2)
def _set_empty_queue_handler(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    queue = ev.comptime(node.args[1], "the queue")
    if queue.type not in (t.HandleType("input_queue"), t.HandleType("output_queue")):
        stop("type-mismatch", f"expected a queue, found {ev.full_type(queue)}", node.args[1].pos)
    key = (str(queue.type).removesuffix("_queue"), queue.value)
    if key in ev.unit.pe.empty_queue:
        stop("duplicate-handler", f"{key[0]} queue {key[1]} already has a handler", node.pos)
    function = _task_of(ev, node.args[0], "the handler", task=False)
    ev.unit.pe.empty_queue[key] = ev.function_symbol(function, node.pos)
    return VOID_VALUE


@builtin("set_teardown_handler", 2)
def _set_teardown_handler(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    function = _task_of(ev, node.args[0], "the handler", task=False)
    color = coerce(ev.comptime(node.args[1], "the colour"), t.HandleType("color"), node.args[1].pos)
    assert isinstance(color, CV)
    if color.value in ev.unit.pe.teardown:
        stop("duplicate-handler", f"colour {color.value} already has a teardown handler", node.pos)
    if function.decl.params:
        stop("task-signature", "a teardown handler takes no arguments", node.args[0].pos)
    ev.unit.pe.teardown[color.value] = ev.function_symbol(function, node.pos)
    return VOID_VALUE


@builtin("rpc", 1)
def _rpc(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    in_comptime_block(ev, node)
    id_ = ev.comptime(node.args[0], "the task id")
    if id_.type != t.HandleType("data_task_id"):
        stop("type-mismatch", f"@rpc takes a data_task_id, found {ev.full_type(id_)}", node.args[0].pos)
    if ev.unit.pe.rpc is not None:
        stop("duplicate-handler", "a PE has at most one RPC server", node.pos)
    ev.unit.pe.rpc = id_.value
    return VOID_VALUE


# --- run time --------------------------------------------------------------------------------------------------------


def _effect(name: str, ret: t.Type, kinds: tuple[t.Type | None, ...], most: int | None = None) -> None:
    """Registers a builtin that only acts at run time."""

    def handler(ev: Evaluator, node: s.BuiltinCall) -> Operand:
        if ev.at_comptime:
            stop("misplaced-builtin", f"@{name} only works at run time", node.pos)
        given = zip(node.args, kinds, strict=False)
        args = [ev.eval(a) if k is None else coerce(ev.eval(a), k, a.pos) for a, k in given]
        return tree.Builtin(ret, name, tuple(ev.runtime(a, node.pos) for a in args), pos=node.pos)

    builtin(name, len(kinds), most)(handler)


_effect("random16", t.U16, ())
_effect("set_active_prng", t.VOID, (t.U16,))
_effect("get_tensor_ptr", t.PtrType(t.U16, many=True), (t.U16,))
_effect("get_config_unchecked", t.U16, (t.U16,))
_effect("set_config_unchecked", t.VOID, (t.U16, t.U16))


@builtin("queue_flush", 1)
def _queue_flush(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.at_comptime:
        stop("misplaced-builtin", "@queue_flush only works at run time", node.pos)
    return unsimulated(node)


@builtin("get_config", 1, 2)
def _get_config(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    address = coerce(ev.eval(node.args[0]), t.U16, node.args[0].pos)
    if ev.at_comptime:
        in_comptime_block(ev, node)
        assert isinstance(address, CV)
        if address.value not in ev.unit.pe.config:
            stop("undefined-value", f"nothing was written to configuration address {address.value:#x}", node.pos)
        return CV(t.U16, ev.unit.pe.config[address.value])
    return tree.Builtin(t.U16, "get_config", (ev.runtime(address, node.pos),), pos=node.pos)


@builtin("set_config", 2, 3)
def _set_config(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    address, value = (coerce(ev.eval(a), t.U16, a.pos) for a in node.args[:2])
    if ev.at_comptime:
        in_comptime_block(ev, node)
        assert isinstance(address, CV)
        assert isinstance(value, CV)
        ev.unit.pe.config[address.value] = value.value
        return VOID_VALUE
    args = (ev.runtime(address, node.pos), ev.runtime(value, node.pos))
    return tree.Builtin(t.VOID, "set_config", args, pos=node.pos)


@builtin("get_symbol_value", 2)
def _get_symbol_value(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind, index = ev.type(node.args[0]), coerce(ev.eval(node.args[1]), t.U16, node.args[1].pos)
    if ev.at_comptime:
        stop("misplaced-builtin", "@get_symbol_value only works at run time", node.pos)
    del kind, index
    return unsimulated(node)


@builtin("has_exported_tensors", 0)
def _has_exported_tensors(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.builder is None:
        stop("misplaced-builtin", "@has_exported_tensors belongs into a function", node.pos)
    return CV(t.BOOL, any(isinstance(kind, t.PtrType) for _, _, kind, _ in ev.unit.pe.exports))


# --- our libraries' escape hatch -------------------------------------------------------------------------------------

_PURE: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "tanh": math.tanh, "inv": lambda x: 1 / x, "invsqrt": lambda x: 1 / math.sqrt(x), "pow": math.pow,
    "floor": math.floor, "ceil": math.ceil, "abs": abs, "fabs": abs, "min": min, "max": max, "log2": math.log2,
    "log10": math.log10, "exp2": lambda x: 2.0**x, "asin": math.asin, "acos": math.acos, "atan": math.atan,
    "atan2": math.atan2, "sinh": math.sinh, "cosh": math.cosh, "cbrt": math.cbrt, "trunc": math.trunc,
    "round": round, "fmod": math.fmod, "isnan": math.isnan, "isinf": math.isinf, "isfinite": math.isfinite,
    "signbit": lambda x: math.copysign(1, x) < 0, "sig": lambda x: 1 / (1 + math.exp(-x)),
    "copysign": math.copysign,
}  # fmt: skip


@builtin("intrinsic", 2, 32)
def _intrinsic(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if not ev.module.in_library:
        stop("unknown-builtin", "there is no builtin @intrinsic", node.pos)
    name, ret = ev.text(node.args[0], "the intrinsic's name"), ev.type(node.args[1])
    values = [ev.eval(a) for a in node.args[2:]]
    if name in ("state.set", "state.append"):
        return _library_state(ev, name, values)
    known = all(isinstance(v, CV) and isinstance(v.value, int | float) for v in values) and bool(values)
    if known and name.startswith("math.") and (ev.at_comptime or t.is_comptime_only(ret)):
        return _fold_math(name, ret, [v.value for v in values if isinstance(v, CV)], node.pos)
    if ev.at_comptime:
        stop("not-comptime", f"library operation {name} only works at run time", node.pos)
    kinds = tuple(v.value for v in values if isinstance(v, CV) and v.type is t.TYPE)
    texts = tuple(v.value.decode() for v in values if isinstance(v, CV) and v.type is t.COMPTIME_STRING)
    operands = [v for v in values if v.type not in (t.TYPE, t.COMPTIME_STRING)]
    args = tuple(_intrinsic_operand(ev, v, node.pos) for v in operands)
    return tree.Builtin(ret, "intrinsic", args, kinds, intrinsic=name, texts=texts, pos=node.pos)


def _intrinsic_operand(ev: Evaluator, value: Operand, pos: Position) -> tree.Expr:
    if isinstance(value, CV) and value.type is t.COMPTIME_INT:
        value = coerce(value, t.I32 if value.value < 0 else t.U32, pos)
    if isinstance(value, CV) and value.type is t.COMPTIME_FLOAT:
        value = coerce(value, t.F32, pos)
    return ev.runtime(value, pos)


def _library_state(ev: Evaluator, name: str, values: list[Operand]) -> CV:
    key, inner = (plain(v) for v in values[:2])
    state = ev.unit.pe.library_state
    if name == "state.set":
        state[key] = inner
    else:
        state.setdefault(key, []).append(inner)
    return VOID_VALUE


def _fold_math(name: str, ret: t.Type, values: list[Any], pos: Position) -> CV:
    function = _PURE.get(name.removeprefix("math."))
    if function is None:
        stop("not-comptime", f"{name} is not available at compile time", pos)
    try:
        value = function(*values)
    except (ValueError, ZeroDivisionError, OverflowError) as problem:
        stop("comptime-math", f"{name}({', '.join(map(str, values))}): {problem}", pos)
    if ret == t.BOOL:
        return CV(ret, bool(value))
    if isinstance(ret, t.IntType) or ret is t.COMPTIME_INT:
        return CV(ret, int(value))
    return CV(ret, round_float(float(value), ret))
