"""What pruning did, in numbers."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.records import dataclass
from pyflame_rt.pruning.scores import prunable_weights

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["LayerSparsity", "PruningStats", "analyze_sparsity", "stats_of"]


@dataclass
class PruningStats:
    """What a pruner did, counted in the weights of layers (two or more axes).

    Attributes:
        total_params: weights before.
        pruned_params: weights that are gone or zero.
        per_layer_sparsity: the share of each weight that is gone or zero.
        original_size_bytes: bytes of all constants before.
        pruned_size_bytes: bytes of all constants after, zeros included.
        removed_channels: channels and heads that were taken out, and how many there were, by the layers that make them.
        zeroed_channels: those that could only be set to zero.
    """

    total_params: int = 0
    pruned_params: int = 0
    per_layer_sparsity: dict[str, float] = field(default_factory=dict)
    original_size_bytes: int = 0
    pruned_size_bytes: int = 0
    removed_channels: dict[str, tuple[int, int]] = field(default_factory=dict)
    zeroed_channels: dict[str, tuple[int, int]] = field(default_factory=dict)

    def actual_sparsity(self) -> float:
        """The share of the weights that is gone or zero."""
        return self.pruned_params / self.total_params if self.total_params else 0.0

    def compression_ratio(self) -> float:
        """Weights before over weights that are left and not zero."""
        left = self.total_params - self.pruned_params
        return self.total_params / left if left else float(self.total_params or 1)


def stats_of(before: Graph, after: Graph) -> PruningStats:
    """Compare a graph with what became of it."""
    stats = PruningStats()
    for name in prunable_weights(before):
        total = before.initializers[name].num_elements
        tensor = after.initializers.get(name)
        left = 0 if tensor is None else int(np.count_nonzero(tensor.raw()))
        stats.total_params += total
        stats.pruned_params += total - left
        stats.per_layer_sparsity[name] = (total - left) / total if total else 0.0
    stats.original_size_bytes = sum(t.size_bytes for t in before.initializers.values())
    stats.pruned_size_bytes = sum(t.size_bytes for t in after.initializers.values())
    return stats


@dataclass(frozen=True, slots=True)
class LayerSparsity:
    """How sparse one weight is, and in which patterns.

    Attributes:
        name: of the weight.
        shape: its sizes.
        zeros: how many elements are zero.
        sparsity: their share.
        zero_rows: output channels (first axis) that are zero as a whole.
        zero_columns: places of the flattened rest that are zero in every row.
        zero_blocks: the share of 4 x 4 blocks that are zero.
        two_of_four: whether every four consecutive weights of a row hold at most two that are not zero.
    """

    name: str
    shape: tuple[int, ...]
    zeros: int
    sparsity: float
    zero_rows: int
    zero_columns: int
    zero_blocks: float
    two_of_four: bool


def analyze_sparsity(graph: Graph) -> dict[str, LayerSparsity]:
    """How sparse the weights of a graph's layers are.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_initializer("w", np.eye(2, dtype=np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 2])
        >>> analyze_sparsity(g)["w"].sparsity
        0.5
    """
    return {name: _layer(name, graph.initializers[name].raw()) for name in prunable_weights(graph)}


def _layer(name: str, weight: Any) -> LayerSparsity:
    rows = weight.reshape(weight.shape[0], -1) != 0
    zeros = int(rows.size - np.count_nonzero(rows))
    high, wide = (-(-n // 4) * 4 for n in rows.shape)
    padded = np.zeros((high, wide), bool)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    blocks = padded.reshape(high // 4, 4, wide // 4, 4).any(axis=(1, 3))
    groups = padded[: rows.shape[0]].reshape(-1, 4).sum(axis=1)
    return LayerSparsity(
        name,
        tuple(int(n) for n in weight.shape),
        zeros,
        zeros / rows.size if rows.size else 0.0,
        int((~rows.any(axis=1)).sum()),
        int((~rows.any(axis=0)).sum()),
        float(1 - blocks.mean()) if blocks.size else 0.0,
        bool((groups <= 2).all()),
    )
