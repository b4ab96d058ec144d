"""Weight-only quantization: matrices of 4 or 8 bits a weight, a scale for each block (MatMulNBits), tensors in float32.

With data, rounding is done by GPTQ (Frantar et al., 2023): one input after the other is rounded, and what that costs is
made up for by the inputs that are still real, as far as the data says they carry the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.microsoft.block_weights import MatMulNBits
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm
from pyflame_rt.quantization.calibrator import Probe
from pyflame_rt.quantization.config import ACCURACY_LEVELS, BLOCK_SIZES, QuantConfig, QuantMode
from pyflame_rt.quantization.feeds import feeds_of
from pyflame_rt.quantization.prepare import Candidate, select
from pyflame_rt.quantization.report import QuantizationResult, QuantStats
from pyflame_rt.quantization.rewriting import Rewriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.graph import Graph
    from pyflame_rt.quantization.feeds import FeedSource

__all__ = ["quantize_weights"]

DAMPING = 0.01  # of the mean of the diagonal, at least: keeps the inverse well behaved
TOLD_APART = 4096  # rows of data told apart by their hashes, which are kept; what comes after them is taken for new


class _Moments:
    """What data of a product carry: second moments summed over rows, and how many rows that differ there were."""

    def __init__(self) -> None:
        self.sums: Any = 0.0
        self._seen: set[int] = set()
        self._further = 0

    def add(self, rows: np.ndarray[Any, Any]) -> None:
        """Rows of one batch."""
        real = rows.astype(np.float64)
        self.sums = self.sums + real.T @ real
        for at, row in enumerate(rows):
            if len(self._seen) == TOLD_APART:
                self._further += len(rows) - at
                break
            self._seen.add(hash(row.tobytes()))

    @property
    def vary(self) -> bool:
        """Rows that are all alike, such as those that zeros make, say nothing of what carries the same."""
        return len(self._seen) > 1

    def damped(self) -> np.ndarray[Any, Any]:
        """The moments with some of their mean in every direction: what few rows did not show may still come.

        Among n + 1 rows of r directions at most r are not made of the others, so the next row leaves what n have
        shown with a chance of r / (n + 1) at most. Rounding errors pushed into unseen directions cost nothing in this
        data, and without that share several times what plain rounding costs in other data. Inputs that were always
        zero are left alone.
        """
        diagonal = np.diag(self.sums)
        squares = float(np.square(self.sums).sum())
        directions = float(diagonal.sum()) ** 2 / squares if squares else 0.0  # weighted by what they carry
        share = max(DAMPING, directions / (len(self._seen) + self._further + 1)) * max(float(diagonal.mean()), 1e-12)
        return self.sums + np.diag(np.where(diagonal > 0, share, 1.0))


class _Packed(NamedTuple):
    """A matrix as MatMulNBits takes it."""

    blob: np.ndarray[Any, Any]
    scales: np.ndarray[Any, Any]
    zeros: np.ndarray[Any, Any] | None


@names_arguments
def quantize_weights(
    graph: Graph,
    bits: int = 4,
    block_size: int = 32,
    data: FeedSource | None = None,
    *,
    symmetric: bool = False,
    accuracy_level: int = 4,
    batches: int = 100,
    exclude_nodes: Iterable[str] = (),
    exclude_ops: Iterable[str] = (),
) -> QuantizationResult:
    """Products with constant matrices as MatMulNBits: few bits a weight, tensors in float32.

    Args:
        graph: left as it is.
        bits: 4 or 8.
        block_size: how many weights of an output share a scale: 16, 32, 64, 128 or 256.
        data: a function that gives one feed a call, or an iterable of feeds; with it, weights are rounded by GPTQ,
            but for products whose data are always the same.
        symmetric: no zero points; the middle integer stands for zero.
        accuracy_level: 4 lets products round their rows to 8-bit steps, a scale for each block as weights have, which
            costs some thousandths of the largest result and is several times as fast; 1 multiplies rows as they are.
        batches: feeds to take at most.
        exclude_nodes: nodes that stay as they are, by name.
        exclude_ops: operators that stay as they are, by type.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 32]), g.add_output("y", ["N", 8])
        >>> _ = g.add_initializer("w", np.ones((32, 8), np.float32)), g.add_node("m", "MatMul", ["x", "w"], ["y"])
        >>> quantize_weights(g).quantized_graph.nodes
        [m: com.microsoft::MatMulNBits(x, w/int4, w/scale, w/zero_point) -> y]
    """
    if bits not in (4, 8):
        raise InputError(f"bits is {bits!r}, not 4 or 8")
    if block_size not in BLOCK_SIZES:
        raise InputError(f"block_size is {block_size!r}, not one of {', '.join(map(str, BLOCK_SIZES))}")
    if accuracy_level not in ACCURACY_LEVELS:
        raise InputError(f"accuracy_level is {accuracy_level!r}, not one of {', '.join(map(str, ACCURACY_LEVELS))}")
    left = QuantConfig(exclude_nodes=list(exclude_nodes), exclude_ops=list(exclude_ops))
    selection = select(graph, left, static=False)
    made, chosen = selection.graph, {c.node: c for c in selection.chosen if _is_matrix(selection.graph, c)}
    convs = [c.node.name for c in selection.chosen if c.node not in chosen]
    skipped = {**selection.skipped, **dict.fromkeys(convs, "its weight is no matrix")}
    moments = {} if data is None else _moments(made, chosen.values(), data, batches)
    out = Rewriter(made)
    packed: dict[tuple[str, int], list[str]] = {}
    for node in made.topological_sort():
        candidate = chosen.get(node)
        if candidate is None:
            out.keep(node)
            continue
        weight = _rows(made, candidate)
        key = candidate.weight, candidate.axis
        if key not in packed:
            found = _pack(weight, bits, block_size, moments.get(candidate.data[0]), symmetric=symmetric)
            packed[key] = _constants(out, candidate.weight, bits, found)
        bias = (*node.inputs, "")[2] if node.op_type == Gemm.name else ""
        attributes = {
            "K": weight.shape[1], "N": weight.shape[0], "bits": bits, "block_size": block_size,
            "accuracy_level": accuracy_level,
        }  # fmt: skip
        inputs, target = [candidate.data[0], *packed[key]], [] if bias else node.outputs
        product = out.emit(
            MatMulNBits, inputs, outputs=target, name=node.name, domain="com.microsoft", attributes=attributes
        )
        if bias:
            out.emit(Add, [product, bias], outputs=node.outputs, name=f"{node.name}/bias")
    return _result(graph, out.finish(), [n.name for n in chosen], len(packed), skipped)


def _result(graph: Graph, made: Graph, names: list[str], weights: int, skipped: dict[str, str]) -> QuantizationResult:
    sizes = [sum(t.size_bytes for t in g.initializers.values()) for g in (graph, made)]
    stats = QuantStats(len(names), len(skipped), len(graph.nodes), weights, 0, *sizes)
    whole = made if names else graph.copy()
    result = QuantizationResult(whole, bool(names), QuantMode.WeightOnly, stats, skipped=skipped)
    if not names:
        result.error_message = f"model {graph.name!r} has no product of float32 data with a constant matrix"
    return result


def _is_matrix(graph: Graph, candidate: Candidate) -> bool:
    return candidate.node.op_type != Conv.name and graph.initializers[candidate.weight].ndim == 2


def _rows(graph: Graph, candidate: Candidate) -> np.ndarray[Any, Any]:
    """A weight as [outputs, inputs]."""
    weight = graph.initializers[candidate.weight].raw()
    return weight if candidate.axis == 0 else weight.T


def _moments(graph: Graph, chosen: Iterable[Candidate], data: FeedSource, batches: int) -> dict[str, _Moments]:
    """What each product's data carry."""
    found = {c.data[0]: _Moments() for c in chosen}
    probe, count = Probe(graph, list(found)), 0
    for feed in feeds_of(data, batches):
        count += 1
        for name, array in probe.run(feed):
            found[name].add(array.reshape(-1, array.shape[-1]))
    probe.close()
    if not count:
        raise InputError("no data came: leave data out, or give at least one feed")
    for name, moments in found.items():
        if not np.isfinite(moments.sums).all():
            raise InputError(f"{name!r} was infinite or NaN, or too large to square, in the data: leave such rows out")
    return {name: moments for name, moments in found.items() if moments.vary}


def _pack(weight: np.ndarray[Any, Any], bits: int, block: int, moments: _Moments | None, *, symmetric: bool) -> _Packed:
    """Round a matrix [outputs, inputs] and pack it."""
    outputs, inputs = weight.shape
    blocks = -(-inputs // block)
    padded = np.zeros((outputs, blocks * block), np.float64)
    padded[:, :inputs] = weight
    correct = None if moments is None else _correction(moments.damped(), blocks * block)
    top, steps, scales, zeros = 2**bits - 1, np.zeros_like(padded), [], []
    for start in range(0, padded.shape[1], block):
        part = padded[:, start : start + block]
        scale, zero = _block_scale(part, top, symmetric=symmetric)
        for j in range(start, start + block):
            column = padded[:, j]
            steps[:, j] = np.clip(np.rint(column / scale) + zero, 0, top)
            if correct is not None and j < inputs:
                error = (column - (steps[:, j] - zero) * scale) / correct[j, j]
                padded[:, j + 1 :] -= np.outer(error, correct[j, j + 1 :])
        scales.append(scale)
        zeros.append(zero)
    blob = _bytes(steps.astype(np.uint8), bits).reshape(outputs, blocks, -1)
    scale_rows = np.stack(scales, axis=1).astype(np.float32).reshape(-1)
    zero_rows = None if symmetric else _bytes(np.stack(zeros, axis=1).astype(np.uint8), bits).reshape(-1)
    return _Packed(blob, scale_rows, zero_rows)


def _block_scale(part: np.ndarray[Any, Any], top: int, *, symmetric: bool) -> tuple[Any, Any]:
    """Scale and zero point of each output in one block, in float32's numbers."""
    low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
    middle = (top + 1) // 2
    reach = np.maximum(-low, high) / (top - middle) if symmetric else (high - low) / top
    scale = np.where(reach > 0, reach, 1.0).astype(np.float32).astype(np.float64)
    scale = np.where(scale > 0, scale, 1.0)
    zero = np.full_like(scale, middle) if symmetric else np.clip(np.rint(-low / scale), 0, top)
    return scale, zero


def _correction(moments: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The upper Cholesky factor of the inverse of damped second moments."""
    count, inverse = len(moments), np.linalg.inv(moments)
    whole = np.eye(size)
    whole[:count, :count] = np.linalg.cholesky((inverse + inverse.T) / 2).T
    return whole


def _bytes(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Numbers of a few bits in bytes, along the last axis, the first in the lowest bits."""
    if bits == 8:
        return values
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    return values[..., 0::2] | (values[..., 1::2] << 4)


def _constants(out: Rewriter, name: str, bits: int, packed: _Packed) -> list[str]:
    made = [out.constant(f"{name}/int{bits}", packed.blob), out.constant(f"{name}/scale", packed.scales)]
    return made if packed.zeros is None else [*made, out.constant(f"{name}/zero_point", packed.zeros)]
