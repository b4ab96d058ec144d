"""Control flow of TorchScript: taken at once where the condition is known, else If and Loop with carried values.

A path that is only perhaps taken is traced into a body of its own. What it changes of outside (tensors written in
place, lists, names) is noted, put back, and merged after both paths are known.
"""

from __future__ import annotations

import ast
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import DType, Shape, TensorType, ValueType
from pyflame_rt.graph.errors import InputError, InvalidModelError, UnsupportedOperatorError
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind, refuse
from pyflame_rt.importers.torchscript.bodies import Body, with_captures
from pyflame_rt.importers.torchscript.merging import Changes, Merge, flattened, joined_type, rebuilt
from pyflame_rt.importers.torchscript.objects import UNSET, Cell, ScriptList
from pyflame_rt.ops.core.value import Value, scope
from pyflame_rt.ops.onnx.control import If, Loop
from pyflame_rt.ops.pyflame.markers import After
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.importers.torchscript.machine import Machine

__all__ = ["SPECIAL", "branch", "guarded", "iterate", "known_items", "repeat", "static_key"]

MAX_UNROLLED = 4096  # turns of a loop
MAX_TURNS_WORK = 400_000  # turns times the size of the body
_MAX_ROUNDS = 12


class _Path(NamedTuple):
    """What running some statements in a body gave."""

    body: Body
    env: dict[str, Any]
    changes: Changes
    error: InputError | None


def known_items(listed: ScriptList) -> list[Any]:
    """The items of a list of known length."""
    if listed.sequence is not None:
        raise refuse("using a list one by one whose length is only known when running")
    return listed.items


def static_key(key: Any) -> Any:
    """A key of a dictionary, which must be known."""
    if not isinstance(key, (str, bool, int, float)):
        raise refuse("a dictionary with keys that are only known when running")
    return key


# ---------------------------------------------------------------------- forms that are no calls


def _annotate(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    if len(node.args) != 2:
        raise InvalidModelError("annotate takes a type and a value")
    value = machine.evaluate(node.args[1], env)
    if isinstance(value, ScriptList) and value.kind is None and not value.items:
        text = ast.unparse(node.args[0])
        value.kind = {"List[int]": int, "List[float]": float, "List[bool]": bool}.get(text)
    return value


def _unset(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    del machine, node, env
    return UNSET


def _attribute(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    owner, name = (machine.evaluate(a, env) for a in node.args)
    return machine.attribute(owner, name)


def _instance(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    value = machine.evaluate(node.args[0], env)
    wanted = ast.unparse(node.args[1])
    return _type_text(value) in wanted.strip("[]()").replace(" ", "").split(",")


def _type_text(value: Any) -> str:
    if isinstance(value, Cell):
        return "Tensor"
    if value is None:
        return "NoneType"
    return number_kind(value).__name__ if is_number(value) else type(value).__name__


def _device(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    return machine.evaluate(node.args[0], env)


def _raise(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    from pyflame_rt.importers.torchscript.machine import ScriptError

    message = machine.evaluate(node.args[0], env)
    raise ScriptError(f"the model raised: {message}")


SPECIAL: dict[str, Callable[[Machine, ast.Call, dict[str, Any]], Any]] = {
    "annotate": _annotate,
    "unchecked_cast": lambda machine, node, env: machine.evaluate(node.args[1], env),
    "uninitialized": _unset,
    "getattr": _attribute,
    "isinstance": _instance,
    "torch.device": _device,
    "ops.prim.RaiseException": _raise,
}


# ---------------------------------------------------------------------- bodies


@contextmanager
def _inside(machine: Machine, body: Body) -> Iterator[dict[int, tuple[Any, Any]]]:
    machine.depth += 1
    machine.journal.append({})
    guards, machine.guards = machine.guards, []
    try:
        with scope(body):
            yield machine.journal[-1]
    finally:
        machine.depth -= 1
        machine.journal.pop()
        machine.guards = guards


def _traced(machine: Machine, body: Body, run: Callable[[dict[str, Any]], None], env: dict[str, Any]) -> _Path:
    """Run in a body, then put back what it changed of outside."""
    from pyflame_rt.importers.torchscript.machine import ScriptError

    local, error = dict(env), None
    with _inside(machine, body) as journal:
        try:
            run(local)
        except ScriptError as raised:
            error = raised
        changes = Changes.taken(journal)
        if machine.guards and error is None:
            raise UnsupportedOperatorError(
                f"a check inside of control flow that only running decides is not lowered: {machine.guards[0][1]}"
            )
    for owner, state in journal.values():
        Changes.put(owner, state)
        for outer in machine.journal:
            if owner.depth < machine.depth:
                outer.setdefault(id(owner), (owner, state))
    return _Path(body, local, changes, error)


def guarded(machine: Machine, value: Value) -> Value:
    """A value that is there only if every check of the model held."""
    for ok, message in machine.guards:
        seen = Look(number(ok, DType.Int64), low=1, what=message)
        value = After(value, seen)
    return value


# ---------------------------------------------------------------------- if


def branch(machine: Machine, condition: Any, node: ast.If, env: dict[str, Any]) -> None:
    """One of two paths."""
    if isinstance(condition, Cell):
        raise InvalidModelError("a condition is a tensor, not a number")
    if is_static(condition):
        machine.block(node.body if condition else node.orelse, env)
        return
    flag = number(condition, DType.Bool)
    paths = [
        _traced(machine, Body(name), lambda local, part=part: machine.block(part, local), env)
        for name, part in (("then", node.body), ("else", node.orelse))
    ]
    if paths[0].error is not None and paths[1].error is not None:
        raise paths[0].error
    for i, path in enumerate(paths):
        if path.error is not None:
            _checked(machine, flag, i, str(path.error))
            machine.block(node.orelse if i == 0 else node.body, env)
            return
    _merged(machine, flag, paths, env)


def _checked(machine: Machine, flag: Value, raising: int, message: str) -> None:
    from pyflame_rt.ops.onnx.logic import Not

    machine.guards.append((Num(Not(flag) if raising == 0 else flag, bool), message))


def _merged(machine: Machine, flag: Value, paths: list[_Path], env: dict[str, Any]) -> None:
    yes, no = paths
    names = [n for n in yes.env if n in no.env and not (n in env and yes.env[n] is env[n] and no.env[n] is env[n])]
    owners = {**yes.changes.owners, **no.changes.owners}
    merge = Merge(machine, (yes.body, no.body))
    rebuild = {name: merge.pair(yes.env[name], no.env[name], name) for name in names}
    states = {key: merge.states(owner, yes.changes.after(key, owner), no.changes.after(key, owner))
              for key, owner in owners.items()}  # fmt: skip
    made: tuple[Value, ...] = ()
    if merge.outputs:
        for body, outputs in zip((yes.body, no.body), zip(*merge.outputs, strict=True), strict=True):
            body.finish(outputs)
        captures, graphs = with_captures((yes.body, no.body))
        found = If(flag, *captures, then_branch=graphs[0], else_branch=graphs[1], captured=len(captures))
        made = found if isinstance(found, tuple) else (found,)
    for key, build in states.items():
        machine.touch(owners[key])
        Changes.put(owners[key], build(made))
    env.update({name: build(made) for name, build in rebuild.items()})


# ---------------------------------------------------------------------- loops


def repeat(machine: Machine, node: ast.While, env: dict[str, Any]) -> None:
    """``while``: turn by turn as long as the condition is known, a Loop after that."""
    turns, size = 0, _size(node.body)
    while True:
        condition = machine.evaluate(node.test, env)
        if not is_static(condition):
            break
        if not condition:
            return
        turns += 1
        if turns > MAX_UNROLLED or turns * size > MAX_TURNS_WORK:
            break
        machine.block(node.body, env)
    _looped(machine, node.body, env, None, node.test, None)


def iterate(machine: Machine, node: ast.For, env: dict[str, Any]) -> None:
    """``for i in range(n)``, or over a list."""
    call = node.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
        for item in machine.items(machine.evaluate(node.iter, env)):
            machine.bind(node.target, item, env)
            machine.block(node.body, env)
        return
    limits = [machine.evaluate(a, env) for a in call.args]
    if all(is_static(x) for x in limits):
        turns = range(*limits)
        if len(turns) <= MAX_UNROLLED and len(turns) * _size(node.body) <= MAX_TURNS_WORK:
            for turn in turns:
                machine.bind(node.target, turn, env)
                machine.block(node.body, env)
            return
    if len(limits) != 1 or not isinstance(node.target, ast.Name):
        raise refuse("a loop over a range with a start or a step that is only known when running")
    _looped(machine, node.body, env, limits[0], None, node.target.id)


def _size(statements: list[ast.stmt]) -> int:
    return sum(1 for statement in statements for _ in ast.walk(statement))


def _assigned(statements: list[ast.stmt], env: dict[str, Any]) -> list[str]:
    """Names of outside that a body sets."""
    found: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in env:
                found[node.id] = None
    return list(found)


class _Carried:
    """What a loop takes from turn to turn: names, and the states of lists and tensors of outside."""

    def __init__(self, names: dict[str, Any], owners: dict[int, Any]) -> None:
        self.names = names
        self.owners = owners

    def values(self, env: dict[str, Any], after: Changes | None) -> list[Any]:
        """The parts, in order."""
        states = [Changes.state(o) if after is None else after.after(key, o) for key, o in self.owners.items()]
        return [*[env[name] for name in self.names], *states]


def _looped(
    machine: Machine, statements: list[ast.stmt], env: dict[str, Any], count: Any, test: ast.expr | None,
    target: str | None,
) -> None:  # fmt: skip
    carried = _Carried(dict.fromkeys(_assigned(statements, env)), {})
    kinds: list[ValueType | None] | None = None
    shapes: list[Any] | None = None
    for _ in range(_MAX_ROUNDS):
        start = carried.values(env, None) if shapes is None else shapes
        leaves, build = flattened(start)
        kinds = [leaf.type for leaf in leaves] if kinds is None or len(kinds) != len(leaves) else kinds
        body = Body(machine_name(machine))
        inputs = _inputs(body, kinds)
        path = _turn(machine, body, inputs, build, carried, statements, env, test, target)
        fresh = {key: owner for key, owner in path.changes.owners.items() if key not in carried.owners}
        if fresh:
            carried.owners |= fresh
            kinds = shapes = None
            continue
        after = carried.values(path.env, path.changes)
        widened = _widened(machine, body, start, after)
        if widened is not None:
            shapes, kinds = widened, None
            continue
        with scope(body):
            results, _ = flattened(after)
        joint = [joined_type(kind, value.type) for kind, value in zip(kinds, results, strict=True)]
        if joint == kinds:
            _emit(machine, body, path, leaves, results, build, carried, env, count, test)
            return
        kinds = joint
    raise UnsupportedOperatorError("a loop whose values change their type from turn to turn is not lowered")


def machine_name(machine: Machine) -> str:
    """A name for a body of a loop."""
    return f"loop{machine.steps}"


def _inputs(body: Body, kinds: list[ValueType | None]) -> list[Value]:
    body.argument("turn", TensorType(DType.Int64, Shape([])))
    body.argument("going", TensorType(DType.Bool, Shape([])))
    return [body.argument(f"v{i}", kind) for i, kind in enumerate(kinds)]


def _turn(
    machine: Machine, body: Body, inputs: list[Value], build: Any, carried: _Carried, statements: list[ast.stmt],
    env: dict[str, Any], test: ast.expr | None, target: str | None,
) -> _Path:  # fmt: skip
    def run(local: dict[str, Any]) -> None:
        parts = rebuilt(machine, build, inputs)
        local.update(zip(carried.names, parts, strict=False))
        for owner, state in zip(carried.owners.values(), parts[len(carried.names) :], strict=True):
            machine.touch(owner)
            Changes.put(owner, Changes.state_of(owner, state))
        if target is not None:
            local[target] = Num(body.formal[0], int)
        machine.block(statements, local)
        local["__going__"] = True if test is None else machine.evaluate(test, local)

    return _traced(machine, body, run, env)


def _widened(machine: Machine, body: Body, start: list[Any], after: list[Any]) -> list[Any] | None:
    """The start in a form that later turns have, too: lists that grow become sequences; None when it has it."""
    changed = False
    made: list[Any] = []
    for before, now in zip(start, after, strict=True):
        wider = Merge.widened(machine, body, before, now)
        changed = changed or wider is not before
        made.append(wider)
    return made if changed else None


def _emit(
    machine: Machine, body: Body, path: _Path, leaves: list[Value], results: list[Value], build: Any,
    carried: _Carried, env: dict[str, Any], count: Any, test: ast.expr | None,
) -> None:  # fmt: skip
    if path.error is not None:
        raise path.error
    with scope(body):
        going = number(path.env["__going__"], DType.Bool)
    body.finish([going, *results])
    captures, (graph,) = with_captures((body,))
    first = None if test is None else number(machine.evaluate(test, env), DType.Bool)
    turns = None if count is None else number(count, DType.Int64)
    made = Loop(turns, first, *leaves, *captures, body=graph, captured=len(captures))
    values = list(made) if isinstance(made, tuple) else [made]
    parts = rebuilt(machine, build, values)
    env.update(zip(carried.names, parts, strict=False))
    for owner, state in zip(carried.owners.values(), parts[len(carried.names) :], strict=True):
        machine.touch(owner)
        Changes.put(owner, Changes.state_of(owner, state))
