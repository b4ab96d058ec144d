"""Products of matrices with what is added to them, and sums and products of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.matmul import Gemm
from pyflame_rt.ops.onnx.shape import Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.pyflame.fused import FMA, FusedAddRelu
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from pyflame_rt.graph import DimLike

_OWN = "pyflame"
_GEMM = (DType.Float32, DType.Float64, DType.Float16, DType.BFloat16, DType.Int32, DType.Int64)


@rule(lambda op, a, b, c: op.Add(op.MatMul(a, b), c), switch="fuse_matmul_add", turn=2)
def matmul_add(m: Match, a: str, b: str, c: str) -> str | NoMatch:
    """A product of two matrices and what is added to it."""
    left, right, bias = m.shape(a), m.shape(b), m.shape(c)
    if left is None or right is None or bias is None or len(left) != 2 or len(right) != 2:
        return NoMatch("the factors are not known to be matrices")
    if m.dtype(a) not in _GEMM:
        return NoMatch("Gemm does not take this element type")
    if _rows_of_table(m, a):
        return NoMatch("the rows come from a table, whose product with the matrix can be made once")
    if not _broadcasts(bias, (left[0], right[1])):
        return NoMatch("what is added is larger than the product, or may be")
    return m.emit(Gemm, [a, b, c])


def _rows_of_table(m: Match, name: str) -> bool:
    """Whether a value is made of rows of a table, perhaps reshaped or added up."""
    pending = [name]
    for _ in range(8):
        node = m.editor.maker(pending.pop()) if pending else None
        if node is None:
            continue
        if node.full_name == Gather.name and not node.get_attr("axis", 0):
            return True
        if node.full_name in (Add.name, Flatten.name, Reshape.name, Squeeze.name, Transpose.name, Unsqueeze.name):
            pending += node.inputs[:1] if node.full_name != Add.name else node.inputs
    return False


def _broadcasts(shape: tuple[DimLike, ...], to: tuple[DimLike, ...]) -> bool:
    """Whether a value surely broadcasts to a shape without enlarging it."""
    if len(shape) > len(to):
        return False
    return all(n == 1 or (n is not None and n == size) for n, size in zip(reversed(shape), reversed(to), strict=False))


@rule(lambda op, a, b: op.Relu(op.Add(a, b)), switch="fuse_elementwise_activation", turn=3, own=True)
def add_relu(m: Match, a: str, b: str) -> str:
    """A sum and the Relu after it."""
    return m.emit(FusedAddRelu, [a, b])


@rule(lambda op, a, b, c: op.Add(op.Mul(a, b), c), switch="fuse_elementwise_activation", turn=3, own=True)
def mul_add(m: Match, a: str, b: str, c: str) -> str:
    """A product of elements and what is added to it; the product is rounded as before."""
    return m.emit(FMA, [a, b, c])
