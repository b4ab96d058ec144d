"""Control flow of TorchScript: taken at once where the condition is known, else If and Loop with carried values.

A path that is only perhaps taken is traced into a body of its own. What it changes of outside (tensors written in
place, lists, names) is noted, put back, and merged after both paths are known.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind, refuse
from pyflame_rt.importers.torchscript.bodies import Body, with_captures
from pyflame_rt.importers.torchscript.loops import Header, looped
from pyflame_rt.importers.torchscript.merging import Changes, Merge
from pyflame_rt.importers.torchscript.objects import UNSET, Cell, Maybe, ScriptList
from pyflame_rt.importers.torchscript.paths import Path, ScriptError, traced
from pyflame_rt.ops.onnx.control import If
from pyflame_rt.ops.pyflame.markers import After
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.importers.torchscript.machine import Machine
    from pyflame_rt.ops.core.value import Value

__all__ = ["SPECIAL", "branch", "guarded", "iterate", "known_items", "repeat"]

MAX_UNROLLED = 4096  # turns of a loop
MAX_TURNS_WORK = 400_000  # turns times the size of the body
_MAX_ROUNDS = 12


def known_items(listed: ScriptList) -> list[Any]:
    """The items of a list of known length."""
    if listed.sequence is not None:
        raise refuse("using a list one by one whose length is only known when running")
    return listed.items


def _cast(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    value = machine.evaluate(node.args[1], env)
    return value.value if isinstance(value, Maybe) else value  # the code has asked whether it is there


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
    if isinstance(value, Maybe):
        raise refuse("isinstance of what is None on some paths")
    return number_kind(value).__name__ if is_number(value) else type(value).__name__


def _device(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    return machine.evaluate(node.args[0], env)


def _raise(machine: Machine, node: ast.Call, env: dict[str, Any]) -> Any:
    message = machine.evaluate(node.args[0], env)
    raise ScriptError(f"the model raised: {message}")


SPECIAL: dict[str, Callable[[Machine, ast.Call, dict[str, Any]], Any]] = {
    "annotate": _annotate,
    "unchecked_cast": _cast,
    "uninitialized": _unset,
    "getattr": _attribute,
    "isinstance": _instance,
    "torch.device": _device,
    "ops.prim.RaiseException": _raise,
}


# ---------------------------------------------------------------------- checks


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
        traced(machine, Body(name), lambda local, part=part: machine.block(part, local), env)
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


def _merged(machine: Machine, flag: Value, paths: list[Path], env: dict[str, Any]) -> None:
    yes, no = paths
    names = [n for n in yes.env if n in no.env and not (n in env and yes.env[n] is env[n] and no.env[n] is env[n])]
    owners = {**yes.changes.owners, **no.changes.owners}
    merge = Merge(machine, (yes.body, no.body), ({id(d) for d in yes.doubts}, {id(d) for d in no.doubts}))
    rebuild = {name: merge.pair(yes.env[name], no.env[name], name) for name in names}
    states = {key: merge.states(yes.changes.after(key, owner), no.changes.after(key, owner))
              for key, owner in owners.items()}  # fmt: skip
    made: tuple[Value, ...] = ()
    if merge.outputs:
        for body, outputs in zip((yes.body, no.body), zip(*merge.outputs, strict=True), strict=True):
            body.finish(outputs)
        captures, graphs = with_captures((yes.body, no.body))
        found = If(flag, *captures, then_branch=graphs[0], else_branch=graphs[1], captured=len(captures))
        made = found if isinstance(found, tuple) else (found,)
    for key, build in states.items():
        machine.note(owners[key])
        Changes.put(owners[key], build(made))
    env.update({name: build(made) for name, build in rebuild.items()})
    machine.doubt([*yes.doubts, *no.doubts])
    merge.linked()


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
        _once(machine, node.body, env)
    looped(machine, Header(node.body, None, node.test, None), env)


def iterate(machine: Machine, node: ast.For, env: dict[str, Any]) -> None:
    """``for i in range(n)``, or over a list."""
    call = node.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
        for item in machine.items(machine.evaluate(node.iter, env)):
            machine.bind(node.target, item, env)
            _once(machine, node.body, env)
        return
    limits = [machine.evaluate(a, env) for a in call.args]
    if all(is_static(x) for x in limits):
        turns = range(*limits)
        if len(turns) <= MAX_UNROLLED and len(turns) * _size(node.body) <= MAX_TURNS_WORK:
            for turn in turns:
                machine.bind(node.target, turn, env)
                _once(machine, node.body, env)
            return
    if len(limits) != 1 or not isinstance(node.target, ast.Name):
        raise refuse("a loop over a range with a start or a step that is only known when running")
    looped(machine, Header(node.body, limits[0], None, node.target.id), env)


def _once(machine: Machine, statements: list[ast.stmt], env: dict[str, Any]) -> None:
    """One turn; names that only it sets end with it, so that no later loop carries them."""
    known = set(env)
    machine.block(statements, env)
    for name in [name for name in env if name not in known]:
        del env[name]


def _size(statements: list[ast.stmt]) -> int:
    return sum(1 for statement in statements for _ in ast.walk(statement))
