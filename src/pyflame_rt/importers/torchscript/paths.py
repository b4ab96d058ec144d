"""Paths of control flow: statements run in a body, after which what they changed of outside is put back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.importers.torchscript.merging import Changes
from pyflame_rt.ops.core.value import scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame_rt.importers.torchscript.bodies import Body
    from pyflame_rt.importers.torchscript.machine import Machine
    from pyflame_rt.importers.torchscript.objects import Shared

__all__ = ["Path", "ScriptError", "traced"]


class ScriptError(InputError):
    """The model raised an exception of its own."""


class Path(NamedTuple):
    """What running some statements in a body gave.

    Attributes:
        body: with the nodes.
        env: the names afterwards.
        changes: of what was made outside.
        error: that the model raises on this path.
        doubts: what was made outside, and may have been changed under another name.
    """

    body: Body
    env: dict[str, Any]
    changes: Changes
    error: InputError | None
    doubts: list[Shared]


@contextmanager
def _inside(machine: Machine, body: Body, journal: dict[int, tuple[Any, Any]]) -> Iterator[None]:
    machine.depth += 1
    machine.journal.append(journal)
    guards, machine.guards = machine.guards, []
    try:
        with scope(body):
            yield
    finally:
        machine.depth -= 1
        machine.journal.pop()
        machine.guards = guards


def traced(machine: Machine, body: Body, run: Callable[[dict[str, Any]], None], env: dict[str, Any]) -> Path:
    """Run in a body, then put back what it changed of outside."""
    local, error, before = dict(env), None, len(machine.doubts)
    journal: dict[int, tuple[Any, Any]] = {}
    doubts: list[Shared] = []
    try:
        with _inside(machine, body, journal):
            try:
                run(local)
            except ScriptError as raised:
                error = raised
            changes = Changes.taken(journal)
            if machine.guards and error is None:
                raise UnsupportedOperatorError(
                    f"a check inside of control flow that only running decides is not lowered: {machine.guards[0][1]}"
                )
        return Path(body, local, changes, error, doubts)
    finally:
        for owner, state in journal.values():
            Changes.put(owner, state)
            for outer in machine.journal:
                if owner.depth < machine.depth:
                    outer.setdefault(id(owner), (owner, state))
        doubts += [shared for shared in machine.doubts[before:] if shared.depth <= machine.depth]
        del machine.doubts[before:]
        for shared in doubts:
            shared.doubted = False
