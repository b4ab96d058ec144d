"""Operators whose kernel is an address: the driver calls it, without a stop at the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.kernels.native_calls import BufferCallKernel, ElementCallKernel
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.ops.core.native_call import NativeCall
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["lower_native_call"]

# Elements a thread must have to be worth waking: the function may be a few nanoseconds long.
GRAIN = 16_384


def lower_native_call(low: Lowering, step: SpecializedNode, call: NativeCall) -> None:
    """One step that calls the function."""
    if not all(step.node.inputs) or not all(step.node.outputs):
        raise NotNative("an input or output of the operator is left out")
    if call.form == "elements":
        _elements(low, step, call)
        return
    inputs = [low.dense(name) for name in step.node.inputs]
    outputs = []
    for name in step.node.outputs:
        view = low.places[name] = low.new(low.concrete.shape(name), low.concrete.dtype(name))
        outputs.append(view)
    sizes = [n for view in (*inputs, *outputs) for n in (len(view.shape), *view.shape)]
    kernel = BufferCallKernel(len(inputs), call)
    low.kernel(f"{step.op.name} (call)", kernel, [*inputs, *outputs], [call.address, *sizes], 1, 1)


def _elements(low: Lowering, step: SpecializedNode, call: NativeCall) -> None:
    shape = low.concrete.shape(step.node.outputs[0])
    inputs = [_spread(low, name, shape) for name in step.node.inputs]
    out = low.output(step)
    steps = [int(view.shape == shape) for view in inputs]
    kernel = ElementCallKernel(call.dtypes, call)
    low.kernel(f"{step.op.name} (call)", kernel, [*inputs, out], [call.address, *steps], out.count, GRAIN)


def _spread(low: Lowering, name: str, shape: tuple[int, ...]) -> View:
    """A value as it is where it has the whole shape or one element, else repeated to the shape."""
    view = low.dense(name)
    if view.shape == shape or view.count == 1:
        return view
    lead = len(shape) - len(view.shape)
    strides = [0] * lead + [0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)]
    return low.copied(replace(view, shape=shape, strides=tuple(strides)))
