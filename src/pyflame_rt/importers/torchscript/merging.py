"""Structures of values across control flow: taken apart into tensors that If and Loop carry, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, SequenceType, TensorType, ValueType
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind, refuse
from pyflame_rt.importers.torchscript.objects import UNSET, Cell, Record, ScriptDict, ScriptList
from pyflame_rt.ops.core.size_arithmetic import join_types
from pyflame_rt.ops.core.value import Value, constant, scope
from pyflame_rt.ops.onnx.sequence import SequenceConstruct, SequenceEmpty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.importers.torchscript.bodies import Body
    from pyflame_rt.importers.torchscript.machine import Machine

__all__ = ["Changes", "Merge", "flattened", "joined_type", "rebuilt"]


class Changes:
    """States of lists, dictionaries and tensors of outside after a path was taken."""

    def __init__(self, owners: dict[int, Any], states: dict[int, Any]) -> None:
        self.owners = owners
        self.states = states

    @classmethod
    def taken(cls, journal: dict[int, tuple[Any, Any]]) -> Changes:
        """What is now, of everything that was noted."""
        owners = {key: owner for key, (owner, _) in journal.items()}
        return cls(owners, {key: cls.state(owner) for key, owner in owners.items()})

    def after(self, key: int, owner: Any) -> Any:
        """The state of an owner at the end of the path."""
        return self.states[key] if key in self.states else self.state(owner)

    @staticmethod
    def state(owner: Any) -> Any:
        """The state in a form that can be merged: a tensor, or a list or dictionary apart from the owner."""
        if isinstance(owner, Cell):
            return Cell(owner.get())
        if isinstance(owner, ScriptList):
            return ScriptList(list(owner.items), 0, owner.kind, owner.sequence)
        return ScriptDict(dict(owner.items))

    @staticmethod
    def state_of(owner: Any, merged: Any) -> Any:
        """What :meth:`put` takes, of a merged form."""
        if isinstance(owner, Cell):
            return merged.get()
        return (merged.items, merged.sequence) if isinstance(owner, ScriptList) else merged.items

    @staticmethod
    def put(owner: Any, state: Any) -> None:
        """Give an owner a state."""
        if isinstance(owner, Cell):
            owner.restore(state)
        elif isinstance(owner, ScriptList):
            owner.items, owner.sequence = list(state[0]), state[1]
        else:
            owner.items = dict(state)


def joined_type(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """A type both have."""
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        elem = joined_type(a.elem, b.elem)
        return None if elem is None else SequenceType(elem)
    return join_types(a, b)


def as_sequence(machine: Machine, listed: ScriptList, like: ScriptList) -> Value:
    """A list as a sequence of the runtime."""
    if listed.sequence is not None:
        return listed.sequence
    values = [_element(machine, item) for item in listed.items]
    if values:
        return SequenceConstruct(*values)
    return SequenceEmpty(dtype=_element_type(machine, like).onnx)


def _element(machine: Machine, item: Any) -> Value:
    return number(item) if is_number(item) else machine.plain(item)


def _element_type(machine: Machine, listed: ScriptList) -> DType:
    if listed.sequence is not None and isinstance(listed.sequence.type, SequenceType):
        elem = listed.sequence.type.elem
        return elem.dtype if isinstance(elem, TensorType) else DType.Float32
    if listed.items:
        return _element(machine, listed.items[0]).dtype
    return {int: DType.Int64, float: DType.Float32, bool: DType.Bool}.get(listed.kind, DType.Float32)


def _list_kind(listed: ScriptList) -> Any:
    if listed.kind is not None or not listed.items:
        return listed.kind
    return number_kind(listed.items[0]) if is_number(listed.items[0]) else None


# ---------------------------------------------------------------------- one structure, taken apart


def flattened(parts: Sequence[Any]) -> tuple[list[Value], Any]:
    """The tensors of some structures, and how to put them together; numbers become tensors, too."""
    leaves: list[Value] = []

    def place(value: Value) -> int:
        leaves.append(value)
        return len(leaves) - 1

    def apart(part: Any) -> Any:
        if isinstance(part, Cell):
            return ("tensor", place(part.get()))
        if is_number(part):
            return ("number", place(number(part)), number_kind(part))
        if isinstance(part, ScriptList):
            if part.sequence is not None:
                return ("sequence", place(part.sequence), part.kind)
            return ("list", [apart(v) for v in part.items], part.kind)
        if isinstance(part, ScriptDict):
            return ("dict", {k: apart(v) for k, v in part.items.items()})
        if isinstance(part, Record):
            return ("record", part.kind, part.names, [apart(v) for v in part.values])
        if type(part) is tuple:
            return ("tuple", [apart(v) for v in part])
        return ("same", part)

    return leaves, [apart(part) for part in parts]


def rebuilt(machine: Machine, build: Any, values: Sequence[Value]) -> list[Any]:
    """Structures from their tensors."""

    def together(plan: Any) -> Any:
        match plan:
            case ("tensor", place):
                return machine.tensor(values[place])
            case ("number", place, kind):
                return Num(values[place], kind)
            case ("sequence", place, kind):
                return ScriptList([], machine.depth, kind, values[place])
            case ("list", items, kind):
                return machine.listed([together(item) for item in items], kind)
            case ("dict", items):
                return ScriptDict({k: together(v) for k, v in items.items()}, machine.depth)
            case ("record", kind, names, items):
                return Record(kind, names, tuple(together(item) for item in items))
            case ("tuple", items):
                return tuple(together(item) for item in items)
        return plan[1]

    return [together(plan) for plan in build]


# ---------------------------------------------------------------------- two structures, merged


class Merge:
    """Pairs of values of two paths; what differs becomes an output of both bodies."""

    def __init__(self, machine: Machine, bodies: tuple[Body, Body]) -> None:
        self.machine = machine
        self.bodies = bodies
        self.outputs: list[tuple[Value, Value]] = []

    def _output(self, a: Callable[[], Value], b: Callable[[], Value]) -> int:
        pair = []
        for body, make in zip(self.bodies, (a, b), strict=True):
            with scope(body):
                pair.append(make())
        self.outputs.append((pair[0], pair[1]))
        return len(self.outputs) - 1

    def pair(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        """How to make the value that is ``a`` on one path and ``b`` on the other from the outputs."""
        if a is b:
            return lambda _: a
        if a is UNSET or b is UNSET:
            return self._half(a, b)
        if isinstance(a, Cell) and isinstance(b, Cell):
            at = self._output(a.get, b.get)
            return lambda made: self.machine.tensor(made[at])
        if is_number(a) and is_number(b):
            return self._numbers(a, b)
        if isinstance(a, ScriptList) and isinstance(b, ScriptList):
            return self._lists(a, b, what)
        if type(a) is tuple and type(b) is tuple and len(a) == len(b):
            parts = [self.pair(x, y, what) for x, y in zip(a, b, strict=True)]
            return lambda made: tuple(build(made) for build in parts)
        return self._others(a, b, what)

    def _others(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        if isinstance(a, ScriptDict) and isinstance(b, ScriptDict) and list(a.items) == list(b.items):
            entries = {k: self.pair(a.items[k], b.items[k], what) for k in a.items}
            return lambda made: ScriptDict({k: build(made) for k, build in entries.items()}, self.machine.depth)
        if isinstance(a, Record) and isinstance(b, Record) and a.kind == b.kind:
            fields = [self.pair(x, y, what) for x, y in zip(a.values, b.values, strict=True)]
            return lambda made: Record(a.kind, a.names, tuple(build(made) for build in fields))
        if type(a) is type(b) and a == b:
            return lambda _: a
        kinds = f"{type(a).__name__} on one path and {type(b).__name__} on the other"
        raise refuse(f"{what!r} is {kinds} of an if that only running decides, which")

    def _half(self, a: Any, b: Any) -> Callable[[Sequence[Value]], Any]:
        """Set on one path only: the other gives something of the type, which nobody reads."""
        known = b if a is UNSET else a
        if isinstance(known, Cell):
            kind = known.get().dtype

            def blank() -> Value:
                return constant(0, kind)

            at = self._output(*((blank, known.get) if a is UNSET else (known.get, blank)))
            return lambda made: self.machine.tensor(made[at])
        return lambda _: known if is_static(known) else UNSET

    def _numbers(self, a: Any, b: Any) -> Callable[[Sequence[Value]], Any]:
        if is_static(a) and is_static(b) and a == b and type(a) is type(b):
            return lambda _: a
        kind = float if float in (number_kind(a), number_kind(b)) else number_kind(a)
        dtype = {bool: DType.Bool, int: DType.Int64, float: DType.Float32}[kind]
        at = self._output(lambda: number(a, dtype), lambda: number(b, dtype))
        return lambda made: Num(made[at], kind)

    def _lists(self, a: ScriptList, b: ScriptList, what: str) -> Callable[[Sequence[Value]], Any]:
        if a.sequence is None and b.sequence is None and len(a.items) == len(b.items):
            parts = [self.pair(x, y, what) for x, y in zip(a.items, b.items, strict=True)]
            return lambda made: self.machine.listed([build(made) for build in parts], a.kind)
        kind = _list_kind(a) or _list_kind(b)
        at = self._output(lambda: as_sequence(self.machine, a, b), lambda: as_sequence(self.machine, b, a))
        return lambda made: ScriptList([], self.machine.depth, kind, made[at])

    def states(self, owner: Any, a: Any, b: Any) -> Callable[[Sequence[Value]], Any]:
        """How to make the state of an owner that both paths, or one of them, changed."""
        build = self.pair(a, b, "a value that is changed in place")
        return lambda made: Changes.state_of(owner, build(made))

    @staticmethod
    def widened(machine: Machine, body: Body, before: Any, now: Any) -> Any:
        """The start of a loop's list as a sequence, when the list grows in the loop."""
        if not isinstance(before, ScriptList) or not isinstance(now, ScriptList) or before.sequence is not None:
            return before
        if now.sequence is None and len(before.items) == len(now.items):
            return before
        with scope(body):
            like = ScriptList([machine.tensor(_element(machine, v)) for v in now.items[-1:]], 0, now.kind, now.sequence)
        kind = _list_kind(before) or _list_kind(now)
        return ScriptList([], before.depth, kind, as_sequence(machine, before, like))
