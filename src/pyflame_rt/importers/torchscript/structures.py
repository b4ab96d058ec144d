"""Structures of values taken apart into the tensors that If and Loop carry, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, SequenceType, TensorType, ValueType
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind, refuse
from pyflame_rt.importers.torchscript.objects import (
    UNSET,
    Cell,
    Instance,
    Maybe,
    OpenText,
    Record,
    ScriptDict,
    ScriptList,
)
from pyflame_rt.ops.core.size_arithmetic import join_types
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.sequence import SequenceConstruct, SequenceEmpty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.importers.torchscript.machine import Machine
    from pyflame_rt.importers.torchscript.objects import Shared

__all__ = ["Parts", "as_sequence", "blank", "fitted", "flattened", "joined_type", "list_kind", "rebuilt",
           "same_structure", "static_key", "widened"]  # fmt: skip

_MOST_BLANK = 1 << 20  # elements


class Parts(NamedTuple):
    """Structures taken apart.

    Attributes:
        leaves: the tensors and sequences; numbers are tensors, too.
        sources: for each leaf the tensor or list it was in, which may be written in place.
        plans: how to put the structures together again.
    """

    leaves: list[Value]
    sources: list[Shared | None]
    plans: list[Any]


def joined_type(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """A type both have."""
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        elem = joined_type(a.elem, b.elem)
        return None if elem is None else SequenceType(elem)
    return join_types(a, b)


# ---------------------------------------------------------------------- lists and dictionaries


def static_key(key: Any) -> Any:
    """A key of a dictionary, which must be known."""
    if isinstance(key, OpenText) or not (isinstance(key, str) or is_static(key)):
        raise refuse("a dictionary with keys that are only known when running")
    return key


def as_sequence(machine: Machine, listed: ScriptList, like: ScriptList) -> Value:
    """A list as a sequence of the runtime."""
    items, sequence = listed.peek()
    if sequence is not None:
        return sequence
    values = [_element(machine, item) for item in items]
    if values:
        return SequenceConstruct(*values)
    return SequenceEmpty(dtype=_element_type(machine, like).onnx)


def _element(machine: Machine, item: Any) -> Value:
    if is_number(item):
        return number(item)
    if not isinstance(item, Cell):
        raise refuse(f"a list whose length is only known when running, of {type(item).__name__} instead of tensors")
    return machine.plain(item)


def _element_type(machine: Machine, listed: ScriptList) -> DType:
    items, sequence = listed.peek()
    if sequence is not None and isinstance(sequence.type, SequenceType):
        elem = sequence.type.elem
        return elem.dtype if isinstance(elem, TensorType) else DType.Float32
    if items:
        return _element(machine, items[0]).dtype
    return {int: DType.Int64, float: DType.Float32, bool: DType.Bool}.get(listed.kind, DType.Float32)


def list_kind(listed: ScriptList) -> Any:
    """The Python type of a list of numbers; None for tensors."""
    items = listed.peek()[0]
    if listed.kind is not None or not items:
        return listed.kind
    return number_kind(items[0]) if is_number(items[0]) else None


# ---------------------------------------------------------------------- apart and together


def flattened(parts: Sequence[Any]) -> Parts:
    """Take structures apart."""
    leaves: list[Value] = []
    sources: list[Shared | None] = []

    def place(value: Value, source: Shared | None) -> int:
        leaves.append(value)
        sources.append(source)
        return len(leaves) - 1

    def apart(part: Any) -> Any:
        if isinstance(part, Cell):
            return ("tensor", place(part.peek(), part.root))
        if is_number(part):
            return ("number", place(number(part), None), number_kind(part))
        if isinstance(part, ScriptList):
            items, sequence = part.peek()
            if sequence is not None:
                return ("sequence", place(sequence, part), part.kind)
            return ("list", [apart(v) for v in items], part.kind)
        if isinstance(part, ScriptDict) and not isinstance(part, Instance):
            return ("dict", {k: apart(v) for k, v in part.peek().items()})
        if isinstance(part, Record):
            return ("record", part.kind, part.names, [apart(v) for v in part.values])
        if isinstance(part, Maybe):
            return ("maybe", apart(part.present), apart(part.value))
        if type(part) is tuple:
            return ("tuple", [apart(v) for v in part])
        return ("same", part)

    plans = [apart(part) for part in parts]
    return Parts(leaves, sources, plans)


def rebuilt(
    machine: Machine, plans: Sequence[Any], values: Sequence[Value], relatives: Sequence[Shared | None] = (),
    doubted: frozenset[int] = frozenset(),
) -> list[Any]:  # fmt: skip
    """Structures from their tensors.

    Args:
        machine: that runs.
        plans: of the structures.
        values: the tensors and sequences, by place.
        relatives: for each place what the tensor or list there may be the same as.
        doubted: places whose contents are not known for sure.
    """

    def known(made: Shared, place: int) -> Any:
        relative = relatives[place] if relatives else None
        if relative is not None:
            made.link(relative)
        made.doubted = place in doubted
        return made

    def together(plan: Any) -> Any:
        match plan:
            case ("tensor", place):
                return known(machine.tensor(values[place]), place)
            case ("number", place, kind):
                return Num(values[place], kind)
            case ("sequence", place, kind):
                return known(ScriptList([], machine.depth, kind, values[place]), place)
            case ("list", items, kind):
                return machine.listed([together(item) for item in items], kind)
            case ("dict", items):
                return ScriptDict({k: together(v) for k, v in items.items()}, machine.depth)
            case ("record", kind, names, items):
                return Record(kind, names, tuple(together(item) for item in items))
            case ("maybe", present, value):
                return Maybe(together(present), together(value))
            case ("tuple", items):
                return tuple(together(item) for item in items)
        return plan[1]

    return [together(plan) for plan in plans]


# ---------------------------------------------------------------------- values that nobody reads


def blank(machine: Machine, like: Any) -> Any:
    """A value of the same structure that is there to be carried, and never read."""
    if isinstance(like, Cell):
        return machine.tensor(_blank_tensor(like.peek()))
    if isinstance(like, Num):
        return like.kind(0)
    if isinstance(like, ScriptList):
        items, sequence = like.peek()
        if sequence is not None:
            empty = SequenceEmpty(dtype=_element_type(machine, like).onnx)
            return ScriptList([], machine.depth, like.kind, empty)
        return machine.listed([blank(machine, v) for v in items], like.kind)
    if isinstance(like, ScriptDict) and not isinstance(like, Instance):
        return ScriptDict({k: blank(machine, v) for k, v in like.peek().items()}, machine.depth)
    if isinstance(like, Record):
        return Record(like.kind, like.names, tuple(blank(machine, v) for v in like.values))
    if isinstance(like, Maybe):
        return Maybe(False, blank(machine, like.value))
    return tuple(blank(machine, v) for v in like) if type(like) is tuple else like


def _blank_tensor(like: Value) -> Value:
    if not isinstance(like.type, TensorType) or like.type.shape is None:
        return constant(0, like.dtype)
    shape = [n if isinstance(n, int) else 0 for n in like.type.shape]
    if np.prod(shape, dtype=np.float64) > _MOST_BLANK:
        shape = [0] * len(shape)
    return constant(np.zeros(shape, like.dtype.numpy))


def widened(machine: Machine, before: Any, now: Any) -> Any:
    """The start of a loop in a form that later turns have, too; ``before`` itself where it has it.

    Lists that grow become sequences, and what is only set in the loop begins with something nobody reads.
    """
    if before is UNSET and now is not UNSET:
        return blank(machine, now)
    if before is None and now is not None and now is not UNSET:
        return blank(machine, now if isinstance(now, Maybe) else Maybe(False, now))
    if isinstance(before, (ScriptDict, Record)) or type(before) is tuple:
        return _widened_parts(machine, before, now)
    if now is None and before is not None and not isinstance(before, Maybe):
        return Maybe(True, before)
    if not isinstance(before, ScriptList) or not isinstance(now, ScriptList) or before.peek()[1] is not None:
        return before
    items, sequence = now.peek()
    if sequence is None and len(before.peek()[0]) == len(items):
        parts = _widened_items(machine, before.peek()[0], items)
        return before if parts is None else machine.listed(parts, before.kind)
    like = ScriptList([blank(machine, v) for v in items[-1:]], 0, now.kind, sequence)
    kind = list_kind(before) or list_kind(now)
    made = ScriptList([], before.depth, kind, as_sequence(machine, before, like))
    for item in (before, *before.peek()[0]):
        if isinstance(item, (Cell, ScriptList)):
            made.link(item)
    return made


def _widened_items(machine: Machine, before: Sequence[Any], now: Sequence[Any]) -> list[Any] | None:
    made = [widened(machine, x, y) for x, y in zip(before, now, strict=True)]
    return None if all(x is y for x, y in zip(before, made, strict=True)) else made


def _widened_parts(machine: Machine, before: Any, now: Any) -> Any:
    if isinstance(before, Record) and isinstance(now, Record):
        parts = _widened_items(machine, before.values, now.values)
        return before if parts is None else Record(before.kind, before.names, tuple(parts))
    if type(before) is tuple and type(now) is tuple and len(before) == len(now):
        parts = _widened_items(machine, before, now)
        return before if parts is None else tuple(parts)
    if isinstance(before, ScriptDict) and isinstance(now, ScriptDict) and list(before.peek()) == list(now.peek()):
        parts = _widened_items(machine, list(before.peek().values()), list(now.peek().values()))
        return before if parts is None else ScriptDict(dict(zip(before.peek(), parts, strict=True)), before.depth)
    return before


def fitted(machine: Machine, before: Any, now: Any) -> Any:
    """A value at the end of a turn in the structure that the turn began with."""
    if now is UNSET:
        return before
    if isinstance(before, Maybe) and not isinstance(now, Maybe):
        return Maybe(now is not None, before.value if now is None else fitted(machine, before.value, now))
    if isinstance(before, Record) and isinstance(now, Record):
        return Record(now.kind, now.names, _fitted_items(machine, before.values, now.values))
    if type(before) is tuple and type(now) is tuple and len(before) == len(now):
        return _fitted_items(machine, before, now)
    if isinstance(before, ScriptList) and isinstance(now, ScriptList):
        if before.peek()[1] is None or now.peek()[1] is not None:
            return now
        made = ScriptList([], machine.depth, list_kind(now), as_sequence(machine, now, before))
        for item in (now, *now.peek()[0]):
            if isinstance(item, (Cell, ScriptList)):
                made.link(item)
        return made
    return now


def _fitted_items(machine: Machine, before: Sequence[Any], now: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(fitted(machine, x, y) for x, y in zip(before, now, strict=True))


def same_structure(a: Any, b: Any) -> bool:
    """Whether two plans put together the same structure."""
    if a[0] != b[0]:
        return False
    match a[0]:
        case "tensor":
            return True
        case "number" | "sequence":
            return a[2] == b[2]
        case "list" | "tuple":
            return len(a[1]) == len(b[1]) and all(map(same_structure, a[1], b[1]))
        case "dict":
            return list(a[1]) == list(b[1]) and all(same_structure(a[1][k], b[1][k]) for k in a[1])
        case "record":
            return a[1] == b[1] and all(map(same_structure, a[3], b[3]))
        case "maybe":
            return same_structure(a[1], b[1]) and same_structure(a[2], b[2])
    return a[1] is b[1] or (type(a[1]) is type(b[1]) and a[1] == b[1])
