"""Random words from a key: each is a function of its place alone, so that a loop makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Expr, Map, RowKernel, Store, apply, cast, const, index, load
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.row_loops import Nest
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.random import PARITY, ROTATIONS
from pyflame_rt.ops.pyflame.seeded_random import KeyedBits

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["keyed_bits"]

WORD = "uint32"


@lowers(KeyedBits)
def keyed_bits(low: Lowering, step: SpecializedNode) -> None:
    """The first words of all counters, then the second ones."""
    key = low.dense(step.node.inputs[1])
    if key.dtype is not DType.Int64 or key.count != 2:
        raise NotNative(f"a key of {key.count} words of {key.dtype.label}")
    out = low.output(step)
    bits, stream = step.attributes["bits"], step.attributes["stream"]
    half = (out.count + 1) // 2
    words = _words(stream)
    for word, start, count in ((words[0], 0, half), (words[1], half, out.count - half)):
        if count:
            flat = replace(out, shape=(count,), strides=(1,), offset=out.offset + start)
            _make(low, key, cast(apply("shr", word, const(32 - bits, WORD)), "int32"), flat)


def _make(low: Lowering, key: View, value: Expr, out: View) -> None:
    words = [replace(key, shape=out.shape, strides=(0,), offset=key.offset + i) for i in range(2)]
    nest = Nest((), out.count, ((0,), (0,), (1,)))
    operands = [nest.operand(i, v.dtype.label) for i, v in enumerate([*words, out])]
    kernel = RowKernel(0, tuple(operands[:2]), tuple(operands[2:]), (Map((Store(2, value),)),))
    low.row_kernel(KeyedBits.name, kernel, nest, [*words, out])


def _words(stream: int) -> tuple[Expr, Expr]:
    """Both words of the counter that is the place in the loop, as `pyflame_rt.ops.onnx.random.threefry` has them."""
    first, second = (cast(load(i, "int64"), WORD) for i in range(2))
    keys = (first, second, apply("xor", apply("xor", first, second), const(PARITY, WORD)))
    x0 = apply("add", cast(index(), WORD), keys[0])
    x1 = apply("add", keys[1], const(stream, WORD))
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x0 = apply("add", x0, x1)
            left, right = apply("shl", x1, const(rotation, WORD)), apply("shr", x1, const(32 - rotation, WORD))
            x1 = apply("xor", apply("or", left, right), x0)
        x0 = apply("add", x0, keys[(block + 1) % 3])
        x1 = apply("add", x1, apply("add", keys[(block + 2) % 3], const(block + 1, WORD)))
    return x0, x1
