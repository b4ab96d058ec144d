"""What a plan's steps are and cost: for ``explain()``, profiles and the memory limit."""

from __future__ import annotations

import math
import string
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep
from pyflame_rt.backends.cpu.memory.buffer_views import Place, View
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.flop_counts import count_flops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyflame_rt.backends.cpu.lower.lowering import Lowered
    from pyflame_rt.graph import DType
    from pyflame_rt.opt.specialized_graph import SpecializedNode

    Types = Mapping[str, tuple[DType, tuple[int, ...]]]
    AnyStep = KernelStep | DnnStep | HostStep

__all__ = ["StepFacts", "flops_of", "layout_of", "step_facts", "views_of"]

MEASURED = 32  # runs whose times are kept


@dataclass(slots=True)
class StepFacts:
    """One step of a plan.

    Attributes:
        label: operators it does.
        kind: "llvm", the library's implementation, or "reference".
        nodes: names of the nodes it does.
        flops: arithmetic of one execution, an estimate.
        flops_by_node: the same, node by node.
        nbytes: bytes read and written, each once.
        layout: how its result lies in memory, ``ab``, ``acdb`` or ``aBcd16b``.
        inputs: element type and sizes of what comes in from outside.
        outputs: the same of what its last node makes.
        reason: why the reference runs it.
        kernel: key of the generated kernel that does it, "" where none does.
        times: nanoseconds of the first run that was measured, then of the latest ones.
    """

    label: str
    kind: str
    nodes: tuple[str, ...]
    flops: int
    flops_by_node: dict[str, int]
    nbytes: int
    layout: str
    inputs: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    outputs: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    reason: str = ""
    kernel: str = ""
    times: list[int] = field(default_factory=list)

    def measured(self, ns: int) -> None:
        """The step has run once more, for so long."""
        if len(self.times) > MEASURED:
            del self.times[1]
        self.times.append(ns)

    @property
    def seconds(self) -> float | None:
        """Median of the measured runs; the first one, which touches memory and code anew, counts only when alone."""
        warm = self.times[1:] or self.times
        return float(np.median(warm)) / 1e9 if warm else None


def views_of(step: AnyStep) -> list[View]:
    """What a step reads and writes."""
    match step:
        case KernelStep(views=views):
            return list(views)
        case DnnStep(args=args):
            return list(args.values())
        case HostStep(inputs=inputs, outputs=outputs):
            return [v for v in (*inputs, *outputs) if v is not None]


def step_facts(lowered: Lowered, steps: Sequence[SpecializedNode], types: Types) -> list[StepFacts]:
    """Facts about every step; ``steps`` and ``types`` are the concrete graph's."""
    by_name = {step.node.name: step for step in steps}
    return [_facts(step, [by_name[n] for n in step.nodes if n in by_name], types) for step in lowered.steps]


def _facts(step: AnyStep, sources: list[SpecializedNode], types: Types) -> StepFacts:
    # Moving a value into another layout is no part of the node it is done for.
    moves = step.label in ("reorder", "copy")
    flops = {} if moves else {s.node.name: flops_of(s, types) for s in sources}
    made = {o for s in sources for o in s.node.outputs}
    read = dict.fromkeys(n for s in sources for n in s.node.inputs if n and n not in made and n in types)
    last = [o for o in sources[-1].node.outputs if o in types] if sources else []
    return StepFacts(
        step.label,
        _kind(step),
        step.nodes,
        sum(flops.values()),
        flops,
        _traffic(views_of(step)),
        layout_of(_result(step)),
        [_described(types[n]) for n in read],
        [_described(types[n]) for n in last],
        step.reason if isinstance(step, HostStep) else "",
        step.kernel.key if isinstance(step, KernelStep) else "",
    )


def _described(kind: tuple[DType, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    return kind[0].label, kind[1]


def _kind(step: AnyStep) -> str:
    match step:
        case KernelStep():
            return "llvm"
        case DnnStep(primitive=primitive):
            return f"onednn {primitive.impl}"
        case HostStep():
            return "reference"


def _result(step: AnyStep) -> View | None:
    """The view a step writes last."""
    if isinstance(step, DnnStep):
        return step.args.get("dst") or next(iter(step.args.values()), None)
    written = [v for v in views_of(step) if v.buffer.place is not Place.FLAG]
    return written[-1] if written else None


def _traffic(views: Iterable[View]) -> int:
    """Bytes of all views, one that is there twice counted once."""
    seen = {(id(v.buffer), v.offset, v.shape, v.strides): _bytes(v) for v in views}
    return sum(seen.values())


def _bytes(view: View) -> int:
    if view.desc is not None:
        return int(view.desc.size)
    return math.prod(n for n, s in zip(view.shape, view.strides, strict=True) if s) * view.dtype.itemsize


def layout_of(view: View | None) -> str:
    """The order of axes in memory, outermost first, as the library spells it."""
    if view is None:
        return ""
    if view.desc is not None:
        return view.desc.layout
    axes = [k for k, n in enumerate(view.shape) if n != 1]
    order = iter(sorted(axes, key=lambda k: -view.strides[k]))
    letters = string.ascii_lowercase
    names = [letters[next(order)] if n != 1 else letters[k % 26] for k, n in enumerate(view.shape)]
    return "".join(names) or "scalar"


# ---------------------------------------------------------------------- arithmetic


def flops_of(step: SpecializedNode, types: Types) -> int:
    """Arithmetic of one node."""
    shapes = [types[n][1] if n in types else () for n in step.node.inputs]
    out = types[step.node.outputs[0]][1] if step.node.outputs and step.node.outputs[0] in types else ()
    return count_flops(step.op, shapes, out, step.attributes)
