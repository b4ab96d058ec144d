"""Group elementwise steps into loops: values that stay inside a group never touch memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.plan.attention import find_attention
from pyflame_rt.backends.cpu.plan.claims import ACTIVATIONS, ELEMENTWISE, LOOP_TYPES

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.plan.attention import Attention
    from pyflame_rt.backends.cpu.plan.concrete import Concrete, Step

__all__ = ["Group", "group_steps", "is_elementwise", "single"]

# Long expressions spill registers; a loop of more inputs than this is split.
MAX_STEPS = 24
MAX_INPUTS = 12


@dataclass(eq=False, slots=True)
class Group:
    """Steps that run as one: a loop when they are elementwise, an attention, else a single step."""

    steps: list[Step]
    shape: tuple[int, ...] = ()
    loop: bool = False
    inputs: set[str] = field(default_factory=set)
    attention: Attention | None = None


def is_elementwise(step: Step, concrete: Concrete) -> bool:
    """Whether a step is one scalar expression over types the loop generator has."""
    if step.op.domain or step.op.name not in ELEMENTWISE | ACTIVATIONS:
        return False
    names = [n for n in (*step.node.inputs, *step.node.outputs) if n]
    return all(concrete.dtype(n) in LOOP_TYPES for n in names) and len(step.node.outputs) == 1


def group_steps(concrete: Concrete) -> list[Group]:
    """Groups in running order; each elementwise step joins the loop that alone reads it."""
    readers: dict[str, set[int]] = {}
    for i, step in enumerate(concrete.steps):
        for name in step.node.inputs:
            readers.setdefault(name, set()).add(i)
    home: dict[int, Group] = {}
    outputs = set(concrete.outputs)
    taken = _attentions(concrete)
    for i in reversed(range(len(concrete.steps))):
        step = concrete.steps[i]
        home[i] = taken.get(id(step)) or _join(step, concrete, readers, home, outputs)
    ordered = dict.fromkeys(home[i] for i in range(len(concrete.steps)))
    return _in_order(list(ordered), home)


def _attentions(concrete: Concrete) -> dict[int, Group]:
    """The group of each step that is part of an attention."""
    groups = {}
    for found in find_attention(concrete):
        group = Group(found.steps, attention=found)
        groups |= {id(step): group for step in found.steps}
    return groups


def _join(
    step: Step, concrete: Concrete, readers: dict[str, set[int]], home: dict[int, Group], outputs: set[str]
) -> Group:
    if not is_elementwise(step, concrete):
        return Group([step])
    name = step.node.outputs[0]
    shape = concrete.shape(name)
    homes = {id(home[r]): home[r] for r in readers.get(name, ())}
    if len(homes) == 1 and name not in outputs:
        (group,) = homes.values()
        if group.loop and group.shape == shape and _has_room(group, step):
            group.steps.insert(0, step)
            group.inputs = (group.inputs - {name}) | {n for n in step.node.inputs if n}
            return group
    return single(step, concrete)


def single(step: Step, concrete: Concrete) -> Group:
    """A group of one step."""
    if not is_elementwise(step, concrete):
        return Group([step])
    return Group([step], concrete.shape(step.node.outputs[0]), True, {n for n in step.node.inputs if n})


def _has_room(group: Group, step: Step) -> bool:
    inputs = group.inputs | {n for n in step.node.inputs if n}
    return len(group.steps) < MAX_STEPS and len(inputs) <= MAX_INPUTS


def _in_order(groups: list[Group], home: dict[int, Group]) -> list[Group]:
    """A group runs where its last step stood: everything it reads is made by then."""
    last = {id(home[i]): i for i in sorted(home)}
    return sorted(groups, key=lambda g: last[id(g)])
