"""What may run inside a product of the library: the elementwise steps that alone read its result.

Those that turn NaN into a number there (Relu, Clip, HardSigmoid), or an infinity into NaN (Gelu by erf), stay loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.backends.cpu.onednn.attr import Attr
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.activation import Elu, Gelu, HardSwish, LeakyRelu, Sigmoid, Swish
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.math import Tanh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.backends.cpu.onednn.memory import MemDesc
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__ = ["Epilogue", "find_epilogue"]


class Epilogue(NamedTuple):
    """Post-ops in order, as (kind, alpha, beta); kinds ``add`` and ``mul`` take the next operand."""

    posts: tuple[tuple[str, float, float], ...]
    operands: tuple[str, ...]
    names: tuple[str, ...] = ()

    def attr(self, descs: Sequence[MemDesc]) -> Attr:
        """The library's form; ``descs`` describe the operands."""
        attr, rest = Attr(), list(descs)
        for kind, alpha, beta in self.posts:
            attr = attr.binary(kind, rest.pop(0)) if kind in ("add", "mul", "sub") else attr.eltwise(kind, alpha, beta)
        return attr


def find_epilogue(concrete: SpecializedGraph, group: Group, start: str) -> Epilogue | None:
    """The group as a chain of post-ops on the value ``start``; None when it is something else."""
    if concrete.dtype(start) is not DType.Float32 or concrete.shape(start) != group.shape:
        return None
    posts, operands, names, value = [], [], [], start
    steps = list(group.steps)
    inside = {start, *(s.node.outputs[0] for s in steps)}
    while steps:
        silu = _silu(steps, value)
        if silu is not None:
            posts.append(("swish", 1.0, 0.0))
            names.append(Swish.name)
            value = silu
            del steps[:2]
            continue
        step = steps.pop(0)
        if value not in step.node.inputs or concrete.dtype(step.node.outputs[0]) is not DType.Float32:
            return None
        found = _eltwise(step) or _binary(concrete, step, value, group.shape)
        if found is None:
            return None
        post, operand = found
        if inside.intersection(operand):
            return None  # an earlier value of the chain comes back: no longer a chain
        posts.append(post)
        operands += operand
        names.append(step.op.name)
        value = step.node.outputs[0]
    return Epilogue(tuple(posts), tuple(operands), tuple(names)) if len(operands) <= 2 else None


def _silu(steps: Sequence[SpecializedNode], value: str) -> str | None:
    """Sigmoid and the product with its input, as exporters write SiLU."""
    if len(steps) < 2 or steps[0].op is not Sigmoid or steps[1].op is not Mul:
        return None
    first, second = steps[0].node, steps[1].node
    if first.inputs[0] == value and sorted(second.inputs) == sorted([value, first.outputs[0]]):
        return second.outputs[0]
    return None


_Post = tuple[tuple[str, float, float], list[str]]


def _eltwise(step: SpecializedNode) -> _Post | None:
    if step.op.domain:
        return None
    a: Mapping[str, Any] = step.attributes
    match step.op.name:
        case LeakyRelu.name if a["alpha"] != 0.0:
            return ("relu", a["alpha"], 0.0), []
        case Elu.name:
            return ("elu", a["alpha"], 0.0), []
        case Sigmoid.name:
            return ("logistic", 0.0, 0.0), []
        case Tanh.name:
            return ("tanh", 0.0, 0.0), []
        case HardSwish.name:
            return ("hardswish", 1 / 6, 0.5), []
        case Swish.name:
            return ("swish", a["alpha"], 0.0), []
        case Gelu.name if a["approximate"] == "tanh":
            return ("gelu_tanh", 0.0, 0.0), []
        case _:
            return None


def _binary(concrete: SpecializedGraph, step: SpecializedNode, value: str, shape: tuple[int, ...]) -> _Post | None:
    if step.op not in (Add, Mul) or len(step.node.inputs) != 2:
        return None
    left, right = step.node.inputs
    other = right if left == value else left
    if other == value or concrete.dtype(other) is not DType.Float32:
        return None
    array = concrete.constants.get(other)
    if array is not None and array.size == 1:
        number = float(array.reshape(-1)[0])
        return (("linear", 1.0, number) if step.op is Add else ("linear", number, 0.0)), []
    sizes = concrete.shape(other)
    padded = (1,) * (len(shape) - len(sizes)) + sizes
    per_channel = all(n == 1 or (i == 1 and n == shape[1]) for i, n in enumerate(padded))
    last_axis = all(n == 1 or i == len(shape) - 1 for i, n in enumerate(padded))
    if padded != shape and not per_channel and not last_axis:
        return None
    return (step.op.name.lower(), 0.0, 0.0), [other]
