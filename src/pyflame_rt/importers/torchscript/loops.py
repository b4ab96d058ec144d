"""Loops whose turns are counted when running; what they carry is found by tracing a turn until nothing new is seen."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import DType, Shape, TensorType, ValueType
from pyflame_rt.graph.errors import PyFlameRTError, UnsupportedOperatorError
from pyflame_rt.importers.aten.values import Num, number, refuse
from pyflame_rt.importers.torchscript.bodies import Body, with_captures
from pyflame_rt.importers.torchscript.merging import Changes
from pyflame_rt.importers.torchscript.objects import ScriptList, Shared
from pyflame_rt.importers.torchscript.paths import Path, traced
from pyflame_rt.importers.torchscript.structures import (
    Parts,
    fitted,
    flattened,
    joined_type,
    rebuilt,
    same_structure,
    widened,
)
from pyflame_rt.ops.core.value import Value, scope
from pyflame_rt.ops.onnx.control import Loop

if TYPE_CHECKING:
    from pyflame_rt.importers.torchscript.machine import Machine

__all__ = ["Header", "looped"]

_MAX_ROUNDS = 24


class Header(NamedTuple):
    """The text of a loop: its body, and how often (``count``) or as long as what (``test``); ``target`` counts."""

    statements: list[ast.stmt]
    count: Any
    test: ast.expr | None
    target: str | None


class _Turn(NamedTuple):
    """What tracing one turn gave; ``groups`` tells what could be the same when it began."""

    path: Path
    body: Body
    groups: list[int]
    before: list[Any]
    after: list[Any]
    results: Parts
    doubted: frozenset[int]


class _Loop:
    """A loop that is being traced.

    Names that a turn binds to something else are carried, and so are the states of what it changes in place. A tensor
    that a name has at the start of a turn may be that of the turn before, or the one from before the loop; ``anchors``
    remember, from round to round, what the tensor in each place may be the same as.
    """

    def __init__(self, machine: Machine, header: Header, env: dict[str, Any]) -> None:
        self.machine = machine
        self.header = header
        self.env = env
        self.assigned = _assigned(header.statements, env)
        self.names = [name for name in self.assigned if not isinstance(env[name], Shared)]
        self.settled: set[str] = set()  # names whose tensor or list a turn changes, but does not replace
        self.owners: dict[int, Any] = {}
        self.anchors: list[Shared | None] = []
        self.doubts: list[Shared] = []
        self.doubted: frozenset[int] = frozenset()
        self.start: list[Any] = []
        self.kinds: list[ValueType | None] = []
        self.restart()

    def restart(self) -> None:
        """Begin with what is there before the loop."""
        self.widen([*(self.env[name] for name in self.names), *map(Changes.state, self.owners.values())])

    def widen(self, start: list[Any]) -> None:
        """Begin with something else."""
        self.start, self.parts = start, flattened(start)
        self.kinds = [leaf.type for leaf in self.parts.leaves]
        self.anchors = [self.anchor(source) for source in self.parts.sources]
        self.doubts, self.doubted = [], frozenset()
        for anchor, source in zip(self.anchors, self.parts.sources, strict=True):
            if anchor is not None and source is not None:
                anchor.link(source)

    def anchor(self, source: Shared | None) -> Shared | None:
        """What stands for the tensor or list of a place in all turns."""
        depth = self.machine.depth
        return None if source is None else ScriptList([], depth) if isinstance(source, ScriptList) else Shared(depth)

    # ------------------------------------------------------------------ rounds

    def emit(self) -> None:
        """Trace until nothing new is seen, and write the loop."""
        turn = self.first()
        for _ in range(_MAX_ROUNDS):
            turn = self.turn() if turn is None else turn
            if not self.grown(turn):
                self.finish(turn)
                return
            turn = None
        raise UnsupportedOperatorError("a loop whose values change their type from turn to turn is not lowered")

    def first(self) -> _Turn | None:
        """Trace as if all tensors and lists kept their names; None where that does not work."""
        place = self.machine.place, self.machine.function
        try:
            return self.turn()
        except PyFlameRTError:
            self.machine.place, self.machine.function = place
            self.names = self.assigned
            self.restart()
            return None

    def turn(self) -> _Turn:
        """Trace one turn."""
        machine, header = self.machine, self.header
        body = Body(f"loop{machine.steps}")
        inputs = self.inputs(body)
        groups = self.groups()
        before: list[Any] = []
        after: list[Any] = []
        found: list[Parts] = []
        doubted: list[int] = []

        def run(local: dict[str, Any]) -> None:
            parts = rebuilt(machine, self.parts.plans, inputs, self.anchors, self.doubted)
            before.extend(parts)
            local.update(zip(self.names, parts, strict=False))
            for owner, state in zip(self.owners.values(), parts[len(self.names) :], strict=True):
                machine.note(owner)
                Changes.put(owner, state.peek())
            machine.doubt(self.doubts)
            if header.target is not None:
                local[header.target] = Num(body.formal[0], int)
            machine.block(header.statements, local)
            local["__going__"] = True if header.test is None else machine.evaluate(header.test, local)
            now = [*(local[name] for name in self.names), *map(Changes.state, self.owners.values())]
            after.extend(fitted(machine, x, y) for x, y in zip(parts, now, strict=True))
            found.append(flattened(after))
            doubted.extend(
                i for i, s in enumerate(found[0].sources) if s is not None and any(m.doubted for m in s.marks())
            )

        path = traced(machine, body, run, self.env)
        if path.error is not None:
            raise path.error
        return _Turn(path, body, groups, before, after, found[0], frozenset(doubted))

    def inputs(self, body: Body) -> list[Value]:
        """The formal inputs of a turn."""
        body.argument("turn", TensorType(DType.Int64, Shape([])))
        body.argument("going", TensorType(DType.Bool, Shape([])))
        return [body.argument(f"v{i}", kind) for i, kind in enumerate(self.kinds)]

    def grown(self, turn: _Turn) -> bool:
        """Whether a turn showed that more must be carried, or less is sure, than it began with."""
        env, now = self.env, turn.path.env
        names = [n for n in env if n not in self.names and now[n] is not env[n] and n != self.header.target]
        owners = {k: o for k, o in turn.path.changes.owners.items() if k not in self.owners}
        still = {n for n, v in zip(self.names, turn.before, strict=False) if isinstance(v, Shared) and now[n] is v}
        still -= self.settled
        if names or owners or still:
            self.settled |= still
            self.names = [n for n in self.names if n not in still] + names
            self.owners |= owners
            self.restart()
            return True
        with scope(turn.body):
            wider = [widened(self.machine, x, y) for x, y in zip(self.start, turn.after, strict=True)]
        if any(x is not y for x, y in zip(wider, self.start, strict=True)):
            self.widen([widened(self.machine, x, y) for x, y in zip(self.start, turn.after, strict=True)])
            return True
        self.check(turn)
        return self.less_sure(turn) or self.retyped(turn)

    def check(self, turn: _Turn) -> None:
        """Refuse values whose structure changes."""
        names = [*self.names, *["a value that is changed in place"] * len(self.owners)]
        for name, a, b in zip(names, self.parts.plans, turn.results.plans, strict=True):
            if not same_structure(a, b):
                raise refuse(f"{name!r} changes from turn to turn of a loop in another way than tensors and numbers do")

    def less_sure(self, turn: _Turn) -> bool:
        """Take over what may be the same as what, and what may have been changed through a relative."""
        for anchor, source in zip(self.anchors, turn.results.sources, strict=True):
            if anchor is not None and source is not None:
                anchor.link(source)
        fresh = [d for d in turn.path.doubts if not any(d is other for other in self.doubts)]
        anchors = [mark for anchor in self.anchors if anchor is not None for mark in anchor.marks()]
        fresh = [d for d in fresh if not any(d is mark for mark in anchors)]
        self.doubts += fresh
        more = turn.doubted - self.doubted
        self.doubted |= more
        return bool(fresh or more) or self.groups() != turn.groups

    def retyped(self, turn: _Turn) -> bool:
        """Take over element types and sizes that both the start and a turn's end have."""
        joint = [joined_type(a, b.type) for a, b in zip(self.kinds, turn.results.leaves, strict=True)]
        changed, self.kinds = joint != self.kinds, joint
        return changed

    def groups(self) -> list[int]:
        """For everything that all turns know, the first that may be the same."""
        shared = (*self.anchors, *self.parts.sources, *self.owners.values())
        kins = [id(mark.root.kin) for s in shared if s is not None for mark in s.marks()]
        return [kins.index(kin) for kin in kins]

    # ------------------------------------------------------------------ the node

    def finish(self, turn: _Turn) -> None:
        """Write the node, and give names and owners what it makes."""
        machine, header, body = self.machine, self.header, turn.body
        with scope(body):
            going = number(turn.path.env["__going__"], DType.Bool)
        body.finish([going, *turn.results.leaves])
        captures, (graph,) = with_captures((body,))
        first = None if header.test is None else number(machine.evaluate(header.test, self.env), DType.Bool)
        turns = None if header.count is None else number(header.count, DType.Int64)
        made = Loop(turns, first, *self.parts.leaves, *captures, body=graph, captured=len(captures))
        values = list(made) if isinstance(made, tuple) else [made]
        doubted = self.doubted | turn.doubted
        parts = rebuilt(machine, self.parts.plans, values, (), doubted)
        self.env.update(zip(self.names, parts, strict=False))
        for owner, state in zip(self.owners.values(), parts[len(self.names) :], strict=True):
            machine.note(owner)
            Changes.put(owner, state.peek())
        machine.doubt(self.doubts)
        for shared, anchor in zip(flattened(parts).sources, self.anchors, strict=True):
            if shared is not None and anchor is not None:
                shared.link(anchor)


def _assigned(statements: list[ast.stmt], env: dict[str, Any]) -> list[str]:
    """Names of outside that a body sets."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return list(dict.fromkeys(name for name in stored if name in env))


def looped(machine: Machine, header: Header, env: dict[str, Any]) -> None:
    """A loop of the graph."""
    _Loop(machine, header, env).emit()
