"""Outputs in the memory of inputs: which pairs a plan allows, and where in it the inputs begin to be overwritten.

A training step hands out new parameters and reads the old ones. Where nobody else holds the old ones, the new may take
their place: no memory for both, and half of it warm. That is right when the plan reads the input for the last time
before it writes the output, or while it does, element by element, or by a kernel that is made for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.backends.cpu.ir.kernel_program import Map, RowKernel
from pyflame_rt.backends.cpu.lower.lowering import HostStep, KernelStep
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place, View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.backends.cpu.lower.lowering import Lowered

__all__ = ["Donation", "donation_of"]


class Donation(NamedTuple):
    """Which output may lie in which input, by number, and the first step that writes one of them."""

    pairs: dict[int, int]
    commit: int


def donation_of(lowered: Lowered, wanted: Iterable[tuple[str, int]]) -> Donation | None:
    """The pairs of those wanted (input's name, output's number) that a plan allows; None where there are none."""
    if lowered.windows or any(isinstance(step, HostStep) for step in lowered.steps):
        return None
    numbers = {name: k for k, name in enumerate(lowered.inputs)}
    inputs = {b.index: b for b in lowered.buffers if b.place is Place.INPUT}
    pairs: dict[int, int] = {}
    commit = len(lowered.steps)
    for name, out in wanted:
        source = inputs.get(numbers.get(name, -1))
        view = lowered.outputs[out]
        if source is None or source.index in pairs.values() or not _fits(lowered, source, view):
            continue
        pairs[out] = source.index
        commit = min(commit, view.buffer.first)
    return Donation(pairs, commit) if pairs else None


def _fits(lowered: Lowered, source: Buffer, view: View) -> bool:
    target = view.buffer
    if target.place is not Place.OUTPUT or target.nbytes != source.nbytes or target.first < 0:
        return False
    if target.first != source.last:
        return target.first > source.last
    step = lowered.steps[target.first]
    if not isinstance(step, KernelStep) or not _elementwise(step):
        return False
    reads, writes = ([v for v in step.views if v.buffer is b] for b in (source, target))
    return all(_same_elements(v, w) for v in reads for w in writes)


def _same_elements(one: View, other: View) -> bool:
    """Whether both have each element at the same place; a stride along an axis of one element says nothing."""
    if one.shape != other.shape or one.offset != other.offset:
        return False
    return all(a == b or n == 1 for n, a, b in zip(one.shape, one.strides, other.strides, strict=True))


def _elementwise(step: KernelStep) -> bool:
    """Whether a kernel reads and writes each element once, in one pass, or says that it may write in place."""
    kernel = step.kernel
    if getattr(kernel, "in_place", False):
        return True
    return isinstance(kernel, RowKernel) and len(kernel.stages) == 1 and isinstance(kernel.stages[0], Map)
