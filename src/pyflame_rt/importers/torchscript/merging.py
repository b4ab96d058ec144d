"""What two paths of control flow change and give, merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind, refuse
from pyflame_rt.importers.torchscript.objects import UNSET, Cell, Instance, Maybe, Record, ScriptDict, ScriptList
from pyflame_rt.importers.torchscript.structures import as_sequence, blank, list_kind
from pyflame_rt.ops.core.value import Value, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.importers.torchscript.bodies import Body
    from pyflame_rt.importers.torchscript.machine import Machine
    from pyflame_rt.importers.torchscript.objects import Shared

__all__ = ["Changes", "Merge"]

_APART = 1 << 30  # the depth of copies, which no body sees from outside


class Changes:
    """States of lists, dictionaries and tensors of outside after a path was taken."""

    def __init__(self, owners: dict[int, Shared], states: dict[int, Any]) -> None:
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
    def raw(owner: Any) -> Any:
        """What :meth:`put` takes to bring an owner back to what it is now."""
        if isinstance(owner, Cell):
            return owner.peek()
        return (list(owner.peek()[0]), owner.peek()[1]) if isinstance(owner, ScriptList) else dict(owner.peek())

    @staticmethod
    def state(owner: Any) -> Any:
        """The state in a form that can be merged: a tensor, or a list or dictionary apart from the owner."""
        if isinstance(owner, Cell):
            return Cell(owner.peek(), _APART)
        if isinstance(owner, ScriptList):
            items, sequence = owner.peek()
            made: Shared = ScriptList(list(items), _APART, owner.kind, sequence)
        else:
            made = ScriptDict(dict(owner.peek()), _APART)
        made.link(owner)
        return made

    @staticmethod
    def put(owner: Any, state: Any) -> None:
        """Give an owner a state."""
        if isinstance(owner, Cell):
            owner.restore(state)
        elif isinstance(owner, ScriptList):
            owner.put(list(state[0]), state[1])
        else:
            owner.put(dict(state))


class Merge:
    """Pairs of values of two paths; what differs becomes an output of both bodies.

    Args:
        machine: that runs.
        bodies: of the paths.
        doubted: what each path left in doubt, by identity.
    """

    def __init__(self, machine: Machine, bodies: tuple[Body, Body], doubted: tuple[set[int], set[int]]) -> None:
        self.machine = machine
        self.bodies = bodies
        self.doubted = doubted
        self.outputs: list[tuple[Value, Value]] = []
        self._tensors: dict[tuple[int, int], Cell] = {}  # tensors of both paths that two names have stay one
        self._links: list[tuple[Shared, Shared]] = []

    def _output(self, a: Callable[[], Value], b: Callable[[], Value]) -> int:
        pair = []
        for body, make in zip(self.bodies, (a, b), strict=True):
            with scope(body):
                pair.append(make())
        self.outputs.append((pair[0], pair[1]))
        return len(self.outputs) - 1

    def _related(self, made: Any, *sources: Shared) -> Any:
        """What was made of one of the sources may be it."""
        self._links += [(made, source) for source in sources]
        made.doubted = any(
            mark.doubted or id(mark) in doubted
            for source, doubted in zip(sources, self.doubted, strict=True)
            for mark in source.marks()
        )
        return made

    def linked(self) -> None:
        """Remember what may be the same from now on, when all states are in place."""
        for made, source in self._links:
            made.link(source)

    def pair(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        """How to make the value that is ``a`` on one path and ``b`` on the other from the outputs."""
        if a is b:
            return lambda _: a
        if a is UNSET or b is UNSET:
            return self._half(a, b, what)
        if a is None or b is None or isinstance(a, Maybe) or isinstance(b, Maybe):
            return self._maybe(a, b, what)
        if isinstance(a, Cell) and isinstance(b, Cell):
            return self._cells(a, b)
        if is_number(a) and is_number(b):
            return self._numbers(a, b)
        if isinstance(a, ScriptList) and isinstance(b, ScriptList):
            return self._lists(a, b, what)
        if type(a) is tuple and type(b) is tuple and len(a) == len(b):
            parts = [self.pair(x, y, what) for x, y in zip(a, b, strict=True)]
            return lambda made: tuple(build(made) for build in parts)
        return self._others(a, b, what)

    def _cells(self, a: Cell, b: Cell) -> Callable[[Sequence[Value]], Any]:
        at, key = self._output(a.peek, b.peek), (id(a), id(b))

        def build(made: Sequence[Value]) -> Cell:
            if key not in self._tensors:
                both = self.machine.tensor(made[at], ordered=a.ordered and b.ordered)
                self._tensors[key] = self._related(both, a, b)
            return self._tensors[key]

        return build

    def _others(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        if type(a) is type(b) is ScriptDict and list(a.peek()) == list(b.peek()):
            entries = {k: self.pair(v, b.peek()[k], what) for k, v in a.peek().items()}
            return lambda made: self._related(
                ScriptDict({k: build(made) for k, build in entries.items()}, self.machine.depth), a, b
            )
        if isinstance(a, Record) and isinstance(b, Record) and a.kind == b.kind:
            fields = [self.pair(x, y, what) for x, y in zip(a.values, b.values, strict=True)]
            return lambda made: Record(a.kind, a.names, tuple(build(made) for build in fields))
        if type(a) is type(b) and a == b:
            return lambda _: a
        raise refuse(f"{what!r} is {_told(a)} on one path and {_told(b)} on the other of an if that only running "
                     "decides, which")  # fmt: skip

    def _blank(self, path: int, like: Any) -> Any:
        with scope(self.bodies[path]):
            return blank(self.machine, like)

    def _half(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        """Set on one path only: the other gives something of the type, which nobody reads."""
        if a is UNSET:
            return self.pair(self._blank(0, b), b, what)
        return self.pair(a, self._blank(1, a), what)

    def _maybe(self, a: Any, b: Any, what: str) -> Callable[[Sequence[Value]], Any]:
        """None on one path, or on some that led there."""
        first, second = (v if isinstance(v, Maybe) else Maybe(v is not None, UNSET if v is None else v) for v in (a, b))
        present = self.pair(first.present, second.present, what)
        value = self.pair(first.value, second.value, what)
        return lambda made: Maybe(present(made), value(made))

    def _numbers(self, a: Any, b: Any) -> Callable[[Sequence[Value]], Any]:
        if is_static(a) and is_static(b) and a == b and type(a) is type(b):
            return lambda _: a
        kind = float if float in (number_kind(a), number_kind(b)) else number_kind(a)
        dtype = {bool: DType.Bool, int: DType.Int64, float: DType.Float32}[kind]
        at = self._output(lambda: number(a, dtype), lambda: number(b, dtype))
        return lambda made: Num(made[at], kind)

    def _lists(self, a: ScriptList, b: ScriptList, what: str) -> Callable[[Sequence[Value]], Any]:
        items, others = a.peek(), b.peek()
        if items[1] is None and others[1] is None and len(items[0]) == len(others[0]):
            parts = [self.pair(x, y, what) for x, y in zip(items[0], others[0], strict=True)]
            return lambda made: self._related(self.machine.listed([build(made) for build in parts], a.kind), a, b)
        kind = list_kind(a) or list_kind(b)
        at = self._output(lambda: as_sequence(self.machine, a, b), lambda: as_sequence(self.machine, b, a))

        def build(made: Sequence[Value]) -> ScriptList:
            whole = self._related(ScriptList([], self.machine.depth, kind, made[at]), a, b)
            self._links += [(whole, item) for item in (*items[0], *others[0]) if isinstance(item, Cell)]
            return whole

        return build

    def states(self, a: Any, b: Any) -> Callable[[Sequence[Value]], Any]:
        """How to make the state of an owner that both paths, or one of them, changed."""
        build = self.pair(a, b, "a value that is changed in place")
        return lambda made: build(made).peek()


def _told(value: Any) -> str:
    kinds = {
        Cell: "a tensor",
        ScriptList: "a list",
        ScriptDict: "a dictionary",
        Instance: "an object",
        tuple: "a tuple",
    }
    return kinds.get(type(value)) or (repr(value) if isinstance(value, str) else type(value).__name__)
