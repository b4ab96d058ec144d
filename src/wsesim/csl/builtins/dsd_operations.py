"""DSD operations, DSRs and ``@map``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wsesim.csl.builtins.dsd import flag, one_of, options, pointer_of
from wsesim.csl.builtins.registry import builtin
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.program.elaborated import DsrLoad
from wsesim.csl.sema import types as t
from wsesim.csl.sema.calls import Instance
from wsesim.csl.sema.coerce import coerce, mismatch
from wsesim.csl.sema.modules import stop, unsimulated
from wsesim.csl.sema.values import CV, VOID_VALUE, FunctionValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax.source import Position

__all__ = ["DSD_OPS", "local_task", "op_options"]

# Sources of each operation: the scalar type each may have instead of a DSD ("i16" and "i32" stand for both signs).
DSD_OPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add16", "addc16", "and16", "or16", "xor16", "sar16", "sll16", "slr16", "sub16"), ("i16", "i16")),
    **dict.fromkeys(("clz", "ctz", "popcnt", "mov16", "xp162fh", "xp162fs"), ("i16",)),
    **dict.fromkeys(("fabsh", "fmovh", "fnegh", "fnormh", "fh2s", "fh2xp16"), ("f16",)),
    **dict.fromkeys(("fabss", "fmovs", "fnegs", "fnorms", "fs2h", "fs2xp16"), ("f32",)),
    **dict.fromkeys(("faddh", "fmaxh", "fmulh", "fsubh"), ("f16", "f16")),
    **dict.fromkeys(("fadds", "fmaxs", "fmuls", "fsubs"), ("f32", "f32")),
    "faddhs": ("f32|f16", "f32|f16"),
    "fmach": ("f16", "f16", "f16"),
    "fmachs": ("f16", "f16", "f16"),
    "fmacs": ("f32", "f32", "f32"),
    "fscaleh": ("f16", "i16"),
    "fscales": ("f32", "i16"),
    "mov32": ("i32",),
}
_OPTION_NAMES = {"async", "activate", "unblock", "on_control", "priority", "ut_id", "index"}
_DSR_NAMES = tuple(x.name for x in t.DSR_TYPES)
LOCAL_TASK_ID = t.HandleType("local_task_id")


def is_vector(kind: t.Type) -> bool:
    """Whether an operand is walked element by element: a DSD or DSR."""
    return isinstance(kind, t.DsdType) or (isinstance(kind, t.HandleType) and kind.name.startswith("dsr_"))


def _dsd_op(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    wanted = DSD_OPS[node.name]
    if ev.at_comptime:
        stop("misplaced-builtin", f"@{node.name} only works at run time", node.pos, "call it from a task or function")
    dest = _destination(ev, node)
    sources = tuple(_source(ev, a, k, node.name) for a, k in zip(node.args[1:], wanted, strict=False))
    given = (
        OpOptionsReader(ev).read(node.args[-1], _OPTION_NAMES) if len(node.args) > 1 + len(wanted) else tree.OpOptions()
    )
    operands = (dest, *sources)
    if not any(is_vector(x.type) for x in operands) and not isinstance(dest.type, t.PtrType):
        stop("type-mismatch", f"@{node.name} needs a DSD or DSR operand", node.pos)
    _check_operands(ev, node, dest, sources, given)
    has_fifo = any(x.type == t.DsdType("fifo") or x.type in (t.DSR_TYPES[3], t.DSR_TYPES[4]) for x in operands)
    return tree.DsdOp(t.BOOL if has_fifo else t.VOID, node.name, dest, sources, given, pos=node.pos)


for _op, _sources in DSD_OPS.items():
    builtin(_op, 1 + len(_sources), 2 + len(_sources))(_dsd_op)


def _destination(ev: Evaluator, node: s.BuiltinCall) -> tree.Expr:
    found, pos = ev.eval(node.args[0]), node.args[0].pos
    kind = found.type
    if isinstance(kind, t.PtrType):
        if kind.const:
            stop("const-write", f"the destination of @{node.name} points to a constant", pos)
        elem = kind.elem.elem if isinstance(kind.elem, t.ArrayType) and kind.elem.count == 1 else kind.elem
        if not isinstance(elem, t.IntType | t.FloatType):
            stop("type-mismatch", f"the destination of @{node.name} must be a DSD or a pointer to a number", pos)
        return ev.runtime(found, pos)
    if not is_vector(kind):
        hint = "take its address: &x" if isinstance(kind, t.IntType | t.FloatType) else ""
        text = f"the destination of @{node.name} must be a DSD, a DSR or a pointer, found {ev.full_type(found)}"
        stop("type-mismatch", text, pos, hint)
    if kind == t.DsdType("fabin_dsd") or kind in (t.HandleType("dsr_src1"), t.HandleType("dsr_fifo_src1")):
        stop("type-mismatch", f"a {kind} cannot be the destination of @{node.name}", pos)
    _not_circular(kind, pos)
    return ev.runtime(found, pos)


def _not_circular(kind: t.Type, pos: Position) -> None:
    if kind == t.DsdType("circbuf_dsd"):
        stop("type-mismatch", "a circular buffer is used through a DSR", pos, "@load_to_dsr_xdsr(dsr, xdsr, dsd)")


def _source(ev: Evaluator, node: s.Expr, wanted: str, op: str) -> tree.Expr:
    found = ev.eval(node)
    if is_vector(found.type):
        kind = found.type
        if kind == t.DsdType("fabout_dsd") or kind in (t.HandleType("dsr_dest"), t.HandleType("dsr_fifo_dest")):
            stop("type-mismatch", f"a {kind} cannot be a source of @{op}", node.pos)
        _not_circular(kind, node.pos)
        return ev.runtime(found, node.pos)
    return ev.runtime(_scalar(ev, found, wanted, op, node.pos), node.pos)


def _scalar(ev: Evaluator, found: Operand, wanted: str, op: str, pos: Position) -> Operand:
    kind = found.type
    for name in wanted.split("|"):
        if name[0] == "f":
            float_kind = {"f16": _fp16(ev), "f32": t.F32}[name]
            if kind == float_kind or kind in (t.COMPTIME_INT, t.COMPTIME_FLOAT):
                return coerce(found, float_kind, pos, f"a source of @{op}")
            continue
        bits = int(name[1:])
        if isinstance(kind, t.IntType) and kind.bits == bits:
            return found
        if isinstance(found, CV) and kind is t.COMPTIME_INT:
            signed = found.value < 0 or found.value <= t.IntType(bits, signed=True).maximum
            return coerce(found, t.IntType(bits, signed=signed), pos, f"a source of @{op}")
        if not ev.unit.strict and isinstance(kind, t.FloatType) and kind.bits == bits:
            return _bits(found, t.IntType(bits, signed=False), pos)
        if not ev.unit.strict and isinstance(kind, t.IntType | t.EnumType | t.HandleType) and t.bit_size(kind) < bits:
            return coerce(found, t.IntType(bits, signed=isinstance(kind, t.IntType) and kind.signed), pos)
    first = wanted.split("|")[0]
    return mismatch(kind, {"f16": t.F16, "f32": t.F32, "i16": t.I16, "i32": t.I32}[first], pos, f"a source of @{op}")


def _bits(found: Operand, kind: t.IntType, pos: Position) -> Operand:
    from wsesim.csl.sema.numeric import bits_of

    if isinstance(found, CV):
        return CV(kind, bits_of(found.value, found.type))
    return tree.Cast(kind, "bits", found, pos=pos)


def _fp16(ev: Evaluator) -> t.FloatType:
    return {"f16": t.F16, "bf16": t.BF16, "cb16": t.CB16}[ev.unit.session.fp16]


def _check_operands(
    ev: Evaluator, node: s.BuiltinCall, dest: tree.Expr, sources: tuple[tree.Expr, ...], given: tree.OpOptions
) -> None:
    fabrics = [x for x in (dest, *sources) if isinstance(x.type, t.DsdType) and x.type.is_fabric]
    registers = [x for x in (dest, *sources) if isinstance(x.type, t.HandleType)]
    inputs = [x for x in sources if x.type == t.DsdType("fabin_dsd")]
    if ev.unit.arch == "wse3" and len(inputs) > 1:
        stop("two-fabric-inputs", "on WSE-3 an operation takes one fabric input", node.pos, "receive one into memory")
    if ev.unit.strict:
        _check_lengths(node, (dest, *sources))
    fifo = t.DsdType("fifo")
    if given.is_async and not fabrics and not registers and fifo not in [x.type for x in (dest, *sources)]:
        stop("async-without-fabric", "only operations with a fabric operand can be asynchronous", node.pos)
    if ev.unit.strict and given.ut_id is not None and ev.unit.arch == "wse2":
        stop("wrong-arch", ".ut_id does not exist on WSE-2", node.pos)
    if len(sources) > 1 and isinstance(sources[0].type, t.DsdType) and sources[0].type == fifo:
        stop("fifo-operand", "a FIFO must not be the first source of an operation with two sources", node.pos)
    if not given.is_async and (given.activate is not None or given.unblock is not None) and not registers:
        stop("missing-async", ".activate and .unblock need .async = true", node.pos, "add .async = true")


def _check_lengths(node: s.BuiltinCall, operands: tuple[tree.Expr, ...]) -> None:
    """Vectors whose lengths are known now; the others are compared when the operation runs."""
    known = [x for x in operands if isinstance(x, tree.DsdConst) and x.fifo is None and x.type != t.DsdType("fifo")]
    lengths = [math.prod(x.extents) for x in known]
    if len(set(lengths)) > 1:
        said = ", ".join(f"{x.type} of {n}" for x, n in zip(known, lengths, strict=True))
        stop("length-mismatch", f"the vectors of @{node.name} differ in length: {said}", node.pos)


# --- options ---------------------------------------------------------------------------------------------------------


def local_task(ev: Evaluator, value: Operand, name: str, pos: Position) -> tree.Expr:
    """A local task id, or the id that a named task is bound to."""
    if isinstance(value, CV) and isinstance(value.value, FunctionValue):
        return bound_task(ev, value.value, ("local",), name, pos)
    if value.type != LOCAL_TASK_ID:
        stop("type-mismatch", f".{name} takes a local_task_id or a task, found {value.type}", pos)
    return ev.runtime(value, pos)


def bound_task(ev: Evaluator, task: FunctionValue, kinds: tuple[str, ...], name: str, pos: Position) -> tree.Expr:
    """The id that a task is bound to."""
    symbol = ev.function_symbol(task, pos)
    for binding in ev.unit.pe.tasks:
        if binding.function == symbol and binding.kind in kinds:
            return tree.Const(t.HandleType(f"{binding.kind}_task_id"), binding.id, pos=pos)
    hint = f"bind it in a comptime block: @bind_local_task({task.name}, ...)"
    stop("unbound-task", f".{name} names task '{task.name}', which is not bound to a task id", pos, hint)
    return None


_UNBLOCKABLE = ("color", "data_task_id", "local_task_id", "input_queue", "ut_id")


def unblockable(ev: Evaluator, value: Operand, name: str, pos: Position) -> tree.Expr:
    """Something that can be unblocked."""
    if isinstance(value, CV) and isinstance(value.value, FunctionValue):
        return bound_task(ev, value.value, ("local", "data"), name, pos)
    if not isinstance(value.type, t.HandleType) or value.type.name not in _UNBLOCKABLE:
        stop("type-mismatch", f"{name} takes a task id, colour or queue, found {value.type}", pos)
    return ev.runtime(value, pos)


class OpOptionsReader:
    """Reads the options struct of an operation."""

    def __init__(self, ev: Evaluator) -> None:
        self.ev = ev

    def read(self, node: s.Expr, allowed: set[str]) -> tree.OpOptions:
        """The options in a struct expression."""
        return self.convert(options(self.ev, node, allowed, "the options struct"), node.pos)

    def convert(self, given: dict[str, Operand], pos: Position) -> tree.OpOptions:
        """The options in evaluated fields."""
        ev = self.ev
        if "activate" in given and "unblock" in given:
            stop("conflicting-options", ".activate and .unblock exclude each other", pos)
        activate = local_task(ev, given["activate"], "activate", pos) if "activate" in given else None
        unblock = unblockable(ev, given["unblock"], ".unblock", pos) if "unblock" in given else None
        ut_id = coerce(given["ut_id"], t.HandleType("ut_id"), pos, ".ut_id") if "ut_id" in given else None
        index = self._index(given["index"], pos) if "index" in given else None
        if flag(given.get("single_step"), "single_step", pos):
            stop("unsupported", "the simulator does not run DSD operations with .single_step", pos)
        return tree.OpOptions(
            is_async=flag(given.get("async"), "async", pos),
            activate=activate,
            unblock=unblock,
            on_control=self._on_control(given["on_control"], pos) if "on_control" in given else None,
            priority=one_of(given.get("priority"), "priority", ("high", "medium", "low"), pos),
            ut_id=None if ut_id is None else ev.runtime(ut_id, pos),
            index=index,
            save_address=flag(given.get("save_address"), "save_address", pos),
        )

    def _index(self, value: Operand, pos: Position) -> tree.Expr:
        if isinstance(value.type, t.IntType) and value.type.bits == 16 and not self.ev.unit.strict:
            return self.ev.runtime(value, pos)
        return self.ev.runtime(coerce(value, t.U16, pos, ".index"), pos)

    def _on_control(self, value: Operand, pos: Position) -> tree.OnControl:
        fields = value.value if isinstance(value, CV) else None
        if not isinstance(fields, dict) or len(fields) != 1:
            stop("type-mismatch", ".on_control takes one of .terminate, .activate, .unblock", pos)
        name, inner = next(iter(fields.items()))
        match name:
            case "terminate":
                if not flag(inner, name, pos):
                    stop("type-mismatch", ".terminate must be true", pos)
                return tree.OnControl()
            case "activate":
                return tree.OnControl(activate=local_task(self.ev, inner, name, pos))
            case "unblock":
                return tree.OnControl(unblock=unblockable(self.ev, inner, ".unblock", pos))
            case _:
                stop("unknown-field", f".on_control has no '.{name}'", pos)
        return None


def op_options(ev: Evaluator, given: dict[str, Operand], pos: Position) -> tree.OpOptions:
    """The options in evaluated fields."""
    return OpOptionsReader(ev).convert(given, pos)


# --- DSRs ------------------------------------------------------------------------------------------------------------


@builtin("get_dsr", 2)
def _get_dsr(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    kind = ev.type(node.args[0])
    if not (isinstance(kind, t.HandleType) and kind.name.startswith("dsr_")):
        stop("type-mismatch", f"@get_dsr takes a DSR type, found {kind}", node.args[0].pos, "dsr_dest, for example")
    value = ev.comptime(node.args[1], "the DSR's id")
    if "fifo" in kind.name and isinstance(value.type, t.HandleType):
        if value.type.name != kind.name.replace("fifo_", ""):
            mismatch(value.type, t.HandleType(kind.name.replace("fifo_", "")), node.args[1].pos)
        return CV(kind, value.value)
    number = ev.integer(node.args[1], "the DSR's id")
    limit = 8 if kind.name == "dsr_src0" else 16
    if number < 0 or (number >= limit and ev.unit.strict):
        stop("out-of-range", f"there are {limit} registers of type {kind}, found id {number}", node.args[1].pos)
    return CV(kind, number)


def _get_register(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    number = ev.integer(node.args[0], "the register's id")
    if number < 0:
        stop("out-of-range", f"a register id is not negative, found {number}", node.args[0].pos)
    return CV(t.HandleType(node.name.removeprefix("get_")), number)


builtin("get_xdsr", 1)(_get_register)
builtin("get_sr", 1)(_get_register)
_LOAD_NAMES = {"async", "activate", "unblock", "on_control", "save_address", "single_step", "ut_id", "priority"}


def _load_to_dsr(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    extra = {"load_to_dsr": 0, "load_to_dsr_xdsr": 1, "load_to_dsr_xdsr_sr": 2}[node.name]
    dsr = ev.comptime(node.args[0], "the DSR")
    if not (isinstance(dsr.type, t.HandleType) and dsr.type.name.startswith("dsr_")):
        stop("type-mismatch", f"@{node.name} takes a DSR first, found {dsr.type}", node.args[0].pos)
    dsd = ev.eval(node.args[1 + extra])
    if not isinstance(dsd.type, t.DsdType):
        stop("type-mismatch", f"@{node.name} loads a DSD, found {ev.full_type(dsd)}", node.args[1 + extra].pos)
    _check_load(ev, node, dsr.type.name, dsd.type.name)
    has_options = len(node.args) == 3 + extra
    if ev.at_comptime:
        if not isinstance(dsd, CV):
            ev.not_comptime(node.pos, "the DSD")
            raise AssertionError
        given = options(ev, node.args[-1], _LOAD_NAMES, "the options struct") if has_options else {}
        ev.unit.deferred.append(lambda: _record_load(ev, dsr, dsd.value, given, node.pos))
        return VOID_VALUE
    given_options = OpOptionsReader(ev).read(node.args[-1], _LOAD_NAMES) if has_options else tree.OpOptions()
    args = (ev.runtime(dsr, node.pos), ev.runtime(dsd, node.pos))
    return tree.Builtin(t.VOID, "load_to_dsr", args, options=given_options, pos=node.pos)


for _name, _few in (("load_to_dsr", 2), ("load_to_dsr_xdsr", 3), ("load_to_dsr_xdsr_sr", 4)):
    builtin(_name, _few, _few + 1)(_load_to_dsr)


def _check_load(ev: Evaluator, node: s.BuiltinCall, dsr: str, dsd: str) -> None:
    if dsd == "fabin_dsd" and dsr == "dsr_dest":
        stop("type-mismatch", "a fabin_dsd cannot be loaded to a dsr_dest", node.pos)
    if dsd == "fabout_dsd" and dsr != "dsr_dest":
        stop("type-mismatch", f"a fabout_dsd can only be loaded to a dsr_dest, not to a {dsr}", node.pos)
    if ev.unit.strict and dsd == "mem4d_dsd" and node.name != "load_to_dsr_xdsr_sr":
        stop("type-mismatch", "a mem4d_dsd is loaded with @load_to_dsr_xdsr_sr", node.pos)
    if ev.unit.strict and "fifo" in dsr:
        stop("type-mismatch", "FIFO DSRs cannot be loaded", node.pos)


def _record_load(ev: Evaluator, dsr: CV, dsd: tree.DsdConst, given: dict[str, Operand], pos: Position) -> None:
    assert isinstance(dsr.type, t.HandleType)
    ev.unit.pe.dsr_loads.append(DsrLoad(dsr.type.name, dsr.value, dsd, op_options(ev, given, pos)))


@builtin("set_dsr_base_addr", 2)
def _set_dsr_base_addr(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.unit.strict:
        stop("undocumented", "@set_dsr_base_addr is not documented", node.pos, "load the DSR again")
    dsr = ev.comptime(node.args[0], "the DSR")
    args = (ev.runtime(dsr, node.pos), pointer_of(ev, node.args[1]))
    return tree.Builtin(t.VOID, node.name, args, pos=node.pos)


@builtin("dfilt", 2)
def _dfilt(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    ev.runtime(ev.eval(node.args[0]), node.pos)
    given = OpOptionsReader(ev).read(node.args[1], _OPTION_NAMES - {"on_control", "index"})
    if not given.is_async:
        stop("missing-async", "@dfilt needs .async = true", node.pos)
    return unsimulated(node)


# --- @map ------------------------------------------------------------------------------------------------------------


@builtin("map", 2, 32)
def _map(ev: Evaluator, node: s.BuiltinCall) -> Operand:
    if ev.at_comptime:
        stop("misplaced-builtin", "@map only works at run time", node.pos)
    callback = ev.eval(node.args[0])
    if not isinstance(callback, CV) or not isinstance(callback.value, FunctionValue) or callback.value.decl.is_task:
        stop("type-mismatch", f"@map calls a function, found {callback.type}", node.args[0].pos)
    function, count = callback.value, len(callback.value.decl.params)
    if len(node.args) - 1 not in (count, count + 1):
        text = f"'{function.name}' takes {count} arguments; @map needs as many inputs and perhaps an output"
        stop("argument-count", text, node.pos)
    operands = [ev.eval(a) for a in node.args[1:]]
    instance, inputs = _map_instance(ev, function, operands[:count], node)
    has_output = len(operands) > count
    if has_output == (instance.ret == t.VOID):
        word = (
            "returns nothing, so @map takes no output"
            if has_output
            else f"returns {instance.ret}, so @map needs an output"
        )
        stop("argument-count", f"'{function.name}' {word}", node.pos)
    if any(x.type == t.DsdType("fifo") for x in operands):
        stop("fifo-operand", "a FIFO cannot be an operand of @map", node.pos)
    for operand, arg in zip(operands, node.args[1:], strict=True):
        _not_circular(operand.type, arg.pos)
    symbol = ev.instance_symbol(instance)
    assert ev.builder is not None
    ev.builder.calls[symbol] = None
    output = ev.runtime(operands[-1], node.args[-1].pos) if has_output else None
    if output is not None and not is_vector(output.type) and not isinstance(output.type, t.PtrType):
        stop("type-mismatch", f"the output of @map must be a DSD, DSR or pointer, found {output.type}", node.pos)
    if ev.unit.strict:
        _check_lengths(node, inputs if output is None else (*inputs, output))
    return tree.MapOp(symbol, inputs, output, pos=node.pos)


def _map_instance(
    ev: Evaluator, function: FunctionValue, operands: list[Operand], node: s.BuiltinCall
) -> tuple[Instance, tuple[tree.Expr, ...]]:
    inner = ev.spawn(function)
    scope: dict[str, Any] = {}
    inner.scopes = [scope]
    params: list[tuple[str, t.Type]] = []
    inputs: list[tree.Expr] = []
    for index, (param, operand) in enumerate(zip(function.decl.params, operands, strict=True)):
        pos = node.args[index + 1].pos
        if isinstance(param.type, s.Name) and param.type.id == "anytype":
            kind = _element_type(operand, function.name, pos)
        else:
            kind = inner.type(param.type)
        inputs.append(ev.runtime(operand if is_vector(operand.type) else coerce(operand, kind, pos), pos))
        params.append((param.name, kind))
        scope[param.name] = tree.Local(index, param.name, kind)
    return Instance(function, {}, params, inner.type(function.decl.ret)), tuple(inputs)


def _element_type(operand: Operand, name: str, pos: Position) -> t.Type:
    if not is_vector(operand.type):
        return operand.type
    const = operand.value if isinstance(operand, CV) else operand
    if isinstance(const, tree.DsdConst) and const.elem is not None:
        return const.elem
    hint = "use a callback with typed parameters"
    stop("generic-map", f"the element type for '{name}' cannot be known from this operand", pos, hint)
    return None
