"""Group elementwise steps into loops: values that stay inside a group never touch memory."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES, SLOPES, is_scalar
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.microsoft.block_weights import MatMulNBits
from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.arithmetic import Abs, Add, Mul, Neg, Sub
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv, ConvInteger
from pyflame_rt.ops.onnx.logic import Greater, Less, Not
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul, MatMulInteger
from pyflame_rt.ops.pyflame.stored_blocks import MatMulStoredBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.opt.specialized_graph import Attention, SpecializedGraph, SpecializedNode

__all__ = ["PRODUCTS", "Group", "group_steps", "is_elementwise", "single"]

# Long expressions spill registers; a loop of more inputs than this is split.
MAX_STEPS = 24
LONG = 16  # steps of a loop that is rather given quantized numbers than what they are made of
MAX_INPUTS = 12
MAX_EXTRA = 3
_BYTES = (DType.Int8, DType.UInt8)
PRODUCTS = frozenset({Conv, ConvInteger, Gemm, MatMul, MatMulInteger, MatMulNBits, MatMulStoredBlocks})
CHEAP = frozenset({Abs, Add, Cast, Greater, Less, Mul, Neg, Not, Relu, Sub})


@dataclass(eq=False, slots=True)
class Group:
    """Steps that run as one: a loop when they are elementwise, an attention, else a single step.

    ``extra`` names values of a loop, besides its last, that others read: the loop stores them too.
    """

    steps: list[SpecializedNode]
    shape: tuple[int, ...] = ()
    loop: bool = False
    inputs: set[str] = field(default_factory=set)
    attention: Attention | None = None
    extra: list[str] = field(default_factory=list)
    last: int = 0  # where its last step stands


def is_elementwise(step: SpecializedNode, concrete: SpecializedGraph) -> bool:
    """Whether a step is one scalar expression over types the loop generator has."""
    if not is_scalar(step.op):
        return False
    names = [n for n in (*step.node.inputs, *step.node.outputs) if n]
    return all(concrete.dtype(n) in LOOP_TYPES for n in names) and len(step.node.outputs) == 1


def group_steps(concrete: SpecializedGraph) -> list[Group]:
    """Groups in running order; each elementwise step joins the loop that alone reads it."""
    steps, beside = _with_slopes(concrete.steps)
    readers: dict[str, set[int]] = {}
    for i, step in enumerate(steps):
        for name in step.node.inputs:
            readers.setdefault(name, set()).add(i)
    home: dict[int, list[Group]] = {}
    outputs = set(concrete.outputs)
    products = {s.node.outputs[0] for s in steps if s.op in PRODUCTS}
    taken = _attentions(concrete)
    for i in reversed(range(len(steps))):
        step = steps[i]
        whole = taken.get(id(step))
        if i in beside and _accompanies(step, home[i + 1][0], concrete, readers, home):
            home[i] = [home[i + 1][0]]
            continue
        home[i] = [whole] if whole is not None else _join(step, concrete, readers, home, outputs, products)
        for group in home[i]:
            group.last = max(group.last, i)
    # A group runs where its last step stood: everything it reads is made by then.
    return sorted({id(g): g for groups in home.values() for g in groups}.values(), key=lambda g: g.last)


def _with_slopes(steps: Sequence[SpecializedNode]) -> tuple[Sequence[SpecializedNode], set[int]]:
    """Steps with each slope before the activation of the same value, and where these slopes are then.

    What a step back needs of an activation is its slope alone: one value is kept, not those the slope is made from.
    """
    slopes = {(SLOPES[s.op], s.node.inputs[0]): s for s in steps if s.op in SLOPES}
    if not slopes:
        return steps, set()
    result: list[SpecializedNode] = []
    moved: set[int] = set()
    places: set[int] = set()
    seen: set[int] = set()
    for step in steps:
        seen.add(id(step))
        slope = slopes.get((step.op, step.node.inputs[0])) if step.node.inputs else None
        if slope is not None and id(slope) not in seen and slope.attributes == step.attributes:
            places.add(len(result))
            moved.add(id(slope))
            seen.add(id(slope))
            result.append(slope)
            result.append(step)
        elif id(step) not in moved:
            result.append(step)
    return result, places


def _accompanies(
    step: SpecializedNode,
    group: Group,
    concrete: SpecializedGraph,
    readers: dict[str, set[int]],
    home: dict[int, list[Group]],
) -> bool:
    """Have a loop store a slope too, where those who read it run later."""
    name = step.node.outputs[0]
    later = all(g.last > group.last for r in readers.get(name, ()) for g in home[r])
    fits = (
        group.loop
        and group.shape == concrete.shape(name)
        and _has_room(group, step, concrete)
        and is_elementwise(step, concrete)
    )
    if not (later and fits) or len(group.extra) >= MAX_EXTRA:
        return False
    group.steps.insert(0, step)
    group.inputs |= {n for n in step.node.inputs if n}
    group.extra.append(name)
    return True


def _attentions(concrete: SpecializedGraph) -> dict[int, Group]:
    """The group of each step that is part of an attention."""
    groups = {}
    for found in concrete.attentions:
        group = Group(found.steps, attention=found)
        groups |= {id(step): group for step in found.steps}
    return groups


def _join(
    step: SpecializedNode,
    concrete: SpecializedGraph,
    readers: dict[str, set[int]],
    home: dict[int, list[Group]],
    outputs: set[str],
    products: set[str],
) -> list[Group]:
    """The groups a step is part of: one, or all that read it where it costs less to compute again than to store."""
    if not is_elementwise(step, concrete):
        return [Group([step])]
    name = step.node.outputs[0]
    shape = concrete.shape(name)
    homes = list({id(g): g for r in readers.get(name, ()) for g in home[r]}.values())
    fitting = [g for g in homes if g.loop and g.shape == shape and _has_room(g, step, concrete)]
    if concrete.dtype(name) in _BYTES:
        fitting = [g for g in fitting if len(g.steps) < LONG]
    # The group that runs first may make the value for all: the others run when it has.
    first = min(homes, key=lambda g: g.last, default=None)
    if first is None or not any(first is g for g in fitting):
        return [single(step, concrete)]
    shared = len(homes) > 1 or name in outputs
    if shared and _ends_product(step, readers, products, outputs):
        return [single(step, concrete)]
    again = shared and name not in outputs and len(fitting) == len(homes) and _is_cheap(step, concrete)
    if shared and not again and len(first.extra) >= MAX_EXTRA:
        return [single(step, concrete)]
    joined = homes if again else [first]
    for group in joined:
        group.steps.insert(0, step)
        group.inputs = (group.inputs - {name}) | {n for n in step.node.inputs if n}
    if shared and not again:
        first.extra.append(name)
    return joined


def _is_cheap(step: SpecializedNode, concrete: SpecializedGraph) -> bool:
    """Whether a step is one instruction on one value, besides constant numbers."""
    constants = concrete.constants
    read = {n for n in step.node.inputs if n and (n not in constants or constants[n].size != 1)}
    return step.op in CHEAP and len(read) <= 1


def _ends_product(step: SpecializedNode, readers: dict[str, set[int]], products: set[str], outputs: set[str]) -> bool:
    """Whether a step can be done while a product is stored, which a loop of several results cannot."""
    return any(n in products and n not in outputs and len(readers[n]) == 1 for n in step.node.inputs)


def single(step: SpecializedNode, concrete: SpecializedGraph) -> Group:
    """A group of one step."""
    if not is_elementwise(step, concrete):
        return Group([step])
    return Group([step], concrete.shape(step.node.outputs[0]), True, {n for n in step.node.inputs if n})


def _has_room(group: Group, step: SpecializedNode, concrete: SpecializedGraph) -> bool:
    constants = concrete.constants
    inputs = group.inputs | {n for n in step.node.inputs if n}
    read = [n for n in inputs if n not in constants or constants[n].size != 1]  # single numbers are part of the code
    return len(group.steps) < MAX_STEPS and len(read) <= MAX_INPUTS
