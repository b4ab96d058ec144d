"""Bring nodes of older opsets to the newest form of their operator.

One small function per changed operator version, declared beside the operator:

    @upgrade("Clip", to=11)
    def clip_bounds_became_inputs(node, up):
        ...

A node of version v passes through every function with ``to`` > v, in order, so each needs to know
only its own change. Versions that merely allow more element types need no function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph import Attribute, Node
from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Upgrade", "last_change", "refuse", "upgrade", "upgrade_node", "versions"]

UpgradeFn: TypeAlias = "Callable[[Node, Upgrade], Node | list[Node]]"

_upgrades: dict[tuple[str, str], list[tuple[int, UpgradeFn]]] = {}


class Upgrade:
    """What an upgrade function may use: constants, further nodes, and what is known of values."""

    def __init__(
        self,
        version: int,
        fresh: Callable[[str], str],
        add_constant: Callable[[str, np.ndarray[Any, Any]], None],
        find_constant: Callable[[str], np.ndarray[Any, Any] | None],
    ) -> None:
        self.version = version
        self.nodes: list[Node] = []
        self._fresh = fresh
        self._add_constant = add_constant
        self._find_constant = find_constant

    def fresh(self, hint: str) -> str:
        """A value name nobody uses."""
        return self._fresh(hint)

    def constant(self, data: Any, dtype: Any = None, hint: str = "const") -> str:
        """The name of a new constant (int64 for Python ints unless told)."""
        name = self._fresh(hint)
        self._add_constant(name, np.asarray(data, dtype=dtype))
        return name

    def constant_like(self, value: float, like: str, hint: str = "const") -> str:
        """The name of a scalar constant with the element type of the value ``like``."""
        return self.emit("CastLike", [self.constant(value, np.float64, hint), like])

    def known(self, name: str) -> np.ndarray[Any, Any] | None:
        """Contents of a constant, or None."""
        return self._find_constant(name)

    def emit(
        self, op_type: str, inputs: Iterable[str], attributes: Mapping[str, Attribute] | None = None, domain: str = ""
    ) -> str:
        """Add a node with one output before the upgraded one; returns the output's name."""
        name = self._fresh(op_type.lower())
        self.nodes.append(Node(name, op_type, inputs, [name], attributes, domain))
        return name


def upgrade(op_type: str | Sequence[str], *, to: int, domain: str = "") -> Callable[[UpgradeFn], UpgradeFn]:
    """Declare how a node of a version before ``to`` becomes one of version ``to``."""

    def declare(fn: UpgradeFn) -> UpgradeFn:
        for name in [op_type] if isinstance(op_type, str) else op_type:
            steps = _upgrades.setdefault((domain, name), [])
            steps.append((to, fn))
            steps.sort(key=lambda step: step[0])
        return fn

    return declare


def upgrade_node(node: Node, version: int, up: Upgrade) -> list[Node]:
    """The node in its newest form, with the nodes it now needs before and after it.

    A function may rename the operator (Upsample becomes Resize); the remaining steps are then
    those of the new name.
    """
    pending, done = [node], []
    while pending:
        current = pending.pop(0)
        step = _next_step(current, version)
        if step is None:
            done.append(current)
            continue
        to, fn = step
        before, up.nodes = up.nodes, []
        result = fn(current, up)
        made = [*up.nodes, *(result if isinstance(result, list) else [result])]
        up.nodes = before
        main = [n for n in made if n.outputs == current.outputs or set(n.outputs) & set(current.outputs)]
        for n in made:
            done.extend(_rest(n, to, up) if n in main else [n])
    return done


def last_change(op_type: str, domain: str = "") -> int:
    """The newest version that changed an operator's form; 1 when none did."""
    steps = _upgrades.get((domain, op_type), ())
    return steps[-1][0] if steps else 1


def versions(op_type: str, domain: str = "") -> list[int]:
    """The versions that changed an operator's form, in order."""
    return [to for to, _ in _upgrades.get((domain, op_type), ())]


def _rest(node: Node, version: int, up: Upgrade) -> list[Node]:
    return [node] if _next_step(node, version) is None else upgrade_node(node, version, up)


def _next_step(node: Node, version: int) -> tuple[int, UpgradeFn] | None:
    steps = _upgrades.get((node.domain, node.op_type), ())
    return next((step for step in steps if step[0] > version), None)


def refuse(node: Node, reason: str) -> UnsupportedOperatorError:
    """An error for a form that cannot be brought up to date."""
    return UnsupportedOperatorError(f"node {node.name!r} ({node.full_name}): {reason}")
