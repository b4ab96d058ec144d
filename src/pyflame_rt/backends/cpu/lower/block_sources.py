"""Weights in blocks wherever they come from: numbers, scales and zero points of MatMulNBits, or of blocks of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyflame_rt.backends.cpu.lower.lowering import NotNative
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import Context, run_op
from pyflame_rt.ops.pyflame.stored_blocks import FORMATS, MatMulStoredBlocks, StoredNumbers, StoredScales

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__ = ["BlockSource", "NBits", "Stored", "bias_of", "block_source"]

NEXT_TO_NOTHING = np.float32(1e-24)  # a scale for blocks whose weights are one number: it divides the minimum
Array = np.ndarray[Any, Any]


class BlockSource(Protocol):
    """Constant weights [columns, depth] in blocks."""

    @property
    def array(self) -> Array:
        """The memory they are known by."""
        ...

    @property
    def form(self) -> tuple[Any, ...]:
        """Names how they lie there, together with the shape of the array."""
        ...

    @property
    def bits(self) -> int:
        """Of a number."""
        ...

    @property
    def depth(self) -> int:
        """Weights of a column."""
        ...

    @property
    def zero(self) -> int:
        """The number that stands for zero where blocks have no points."""
        ...

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Columns, blocks of each, weights of a block."""
        ...

    def known_by(self, what: str) -> Array:
        """The memory that scales or points are made of."""
        ...

    def numbers(self) -> Array:
        """One weight in each byte [columns, blocks, block]."""
        ...

    def scales(self) -> Array:
        """Of blocks, as float32 [columns, blocks]."""
        ...

    def half_scales(self) -> bool:
        """Whether scales are numbers of 16 bits."""
        ...

    def point_type(self) -> str:
        """The type of zero points as kernels read them: "" for none, "uint8" or "float32"."""
        ...

    def points(self) -> Array | None:
        """Zero points as float32 [columns, blocks]."""
        ...


@dataclass(frozen=True)
class NBits:
    """Constants of a MatMulNBits."""

    array: Array
    steps: Array  # scales [columns, blocks]
    zeros: Array | None
    bits: int
    block: int
    depth: int

    @property
    def form(self) -> tuple[Any, ...]:
        """Sizes say everything."""
        return (self.bits, self.block)

    @property
    def zero(self) -> int:
        """The middle of the range."""
        return 1 << (self.bits - 1)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Columns, blocks of each, weights of a block."""
        return (*self.steps.shape, self.block)

    def known_by(self, what: str) -> Array:
        """Each has its own."""
        return self.steps if what == "scales" or self.zeros is None else self.zeros

    def numbers(self) -> Array:
        """One weight in each byte."""
        return unpacked(self.array, self.sizes, self.bits)

    def scales(self) -> Array:
        """As they are."""
        return self.steps

    def half_scales(self) -> bool:
        """Whether it happens that 16 bits hold them."""
        with np.errstate(over="ignore"):
            return np.array_equal(self.steps.astype(np.float16), self.steps)

    def point_type(self) -> str:
        """Bytes where they are whole numbers of the weights' range."""
        return "" if self.zeros is None else "uint8" if is_packed(self.zeros) else "float32"

    def points(self) -> Array | None:
        """Zero points as floats."""
        if self.zeros is None:
            return None
        columns, blocks = self.steps.shape
        return _points(self.zeros, columns, blocks, self.bits)


@dataclass(frozen=True)
class Stored:
    """Blocks of a file."""

    array: Array
    format: str

    @property
    def form(self) -> tuple[Any, ...]:
        """The format, and the code that reads it: what was packed before it changed is not taken."""
        return (self.format, code_signature("ops"))

    @property
    def bits(self) -> int:
        """Of a number."""
        return FORMATS[self.format].bits

    @property
    def zero(self) -> int:
        """As the format says."""
        return FORMATS[self.format].zero

    @property
    def depth(self) -> int:
        """Weights of a row of bytes."""
        form = FORMATS[self.format]
        return self.array.shape[1] // form.size * form.weights

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Columns, blocks of each, weights of a block."""
        block = FORMATS[self.format].block
        return self.array.shape[0], self.depth // block, block

    def known_by(self, what: str) -> Array:  # noqa: ARG002 - all lies together
        """The blocks."""
        return self.array

    def numbers(self) -> Array:
        """One weight in each byte."""
        return self._evaluated(StoredNumbers)[0].reshape(self.sizes)

    def scales(self) -> Array:
        """Of blocks; never zero where there is a minimum, which is a multiple of the scale to kernels."""
        scales, minimums = self._evaluated(StoredScales)
        return np.where((scales == 0) & (minimums != 0), NEXT_TO_NOTHING, scales)

    def half_scales(self) -> bool:
        """As the format says."""
        return FORMATS[self.format].half

    def point_type(self) -> str:
        """Minimums are points that are no whole numbers."""
        return "float32" if self.format in _MINIMUMS else ""

    def points(self) -> Array | None:
        """What a number must be to stand for zero."""
        if self.format not in _MINIMUMS:
            return None
        minimums, scales = self._evaluated(StoredScales)[1], self.scales()
        return np.divide(minimums, scales, out=np.zeros_like(scales), where=scales != 0) + np.float32(self.zero)

    def _evaluated(self, op: Op) -> list[Array]:
        return run_op(op, [self.array], {"format": self.format}, Context.of())


_MINIMUMS = frozenset(("Q4_1", "Q4_K", "Q5_K"))


def block_source(low: Lowering, step: SpecializedNode) -> BlockSource:
    """The weights of a product with blocks."""
    _, name, scale_name, zero_name = (*step.node.inputs, "", "")[:4]
    array, given = low.constant_of(name), step.attributes
    if step.op is MatMulStoredBlocks:
        if array is None:
            raise NotNative("weights that are not constant")
        return Stored(array, given["format"])
    scales = low.constant_of(scale_name)
    zeros = low.constant_of(zero_name) if zero_name else None
    if array is None or scales is None or (zero_name and zeros is None):
        raise NotNative("weights that are not constant")
    return NBits(array, scales.reshape(given["N"], -1), zeros, given["bits"], given["block_size"], given["K"])


def bias_of(step: SpecializedNode) -> str:
    """The name of what is added to the product, or ""."""
    place = 2 if step.op is MatMulStoredBlocks else 5
    return (*step.node.inputs, "", "", "", "")[place]


def is_packed(zeros: Array) -> bool:
    """Whether zero points are whole numbers in the bits of weights."""
    return zeros.dtype == np.uint8


def unpacked(array: Array, sizes: tuple[int, ...], bits: int) -> Array:
    """One number in each byte."""
    data = array.reshape(-1).view(np.uint8)
    if bits == 4:
        data = np.stack([data & 15, data >> 4], -1)
    return data.reshape(sizes)


def _points(zeros: Array, columns: int, blocks: int, bits: int) -> Array:
    """Zero points as floats [columns, blocks]; bytes hold two of 4 bits each, and begin anew for every column."""
    if not is_packed(zeros):
        return zeros.reshape(columns, blocks).astype(np.float32)
    each = 8 // bits
    data = zeros.reshape(columns, -1)
    numbers = unpacked(np.ascontiguousarray(data), (columns, data.shape[1] * each), bits)
    return numbers[:, :blocks].astype(np.float32)
