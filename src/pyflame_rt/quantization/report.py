"""What quantization did: counts and sizes, and for each node that stayed in float32 the reason."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.graph.records import dataclass
from pyflame_rt.quantization.config import QuantMode
from pyflame_rt.quantization.params import GraphQuantInfo

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["QuantStats", "QuantizationReport", "QuantizationResult", "Ratio"]

MEGABYTE = 2**20


class Ratio(float):
    """A number that also answers when it is called.

    Example:
        >>> ratio = Ratio(2.0)
        >>> ratio == ratio() == 2.0
        True
    """

    def __call__(self) -> float:
        """The number."""
        return float(self)


@dataclass(slots=True)
class QuantStats:
    """Counts of a quantization.

    Attributes:
        nodes_quantized: nodes that compute with integers, or read weights of 16 bits.
        nodes_skipped: nodes that could, but stayed as they were.
        nodes_total: nodes of the model.
        weights_quantized: weights in few bits.
        activations_quantized: tensors of data in few bits.
        original_size_bytes: bytes of the model's constants.
        quantized_size_bytes: bytes of the constants after it.

    Example:
        >>> QuantStats(original_size_bytes=400, quantized_size_bytes=100).compression_ratio()
        4.0
    """

    nodes_quantized: int = 0
    nodes_skipped: int = 0
    nodes_total: int = 0
    weights_quantized: int = 0
    activations_quantized: int = 0
    original_size_bytes: int = 0
    quantized_size_bytes: int = 0

    def compression_ratio(self) -> float:
        """How many times smaller the constants are."""
        return self.original_size_bytes / self.quantized_size_bytes if self.quantized_size_bytes else 1.0

    def original_size_mb(self) -> float:
        """Megabytes (2**20 bytes) of constants before."""
        return self.original_size_bytes / MEGABYTE

    def quantized_size_mb(self) -> float:
        """Megabytes (2**20 bytes) of constants after."""
        return self.quantized_size_bytes / MEGABYTE


@dataclass(slots=True)
class QuantizationResult:
    """What a Quantizer gives.

    Attributes:
        success: whether anything was quantized.
        quantized_graph: the new graph; the model itself, copied, where nothing was.
        mode: what was done.
        stats: counts.
        quant_info: scales and zero points of data (StaticInt8).
        error_message: why nothing was quantized.
        skipped: nodes (and weights) that stayed as they were, and why.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> QuantizationResult(Graph("g")).success
        False
    """

    quantized_graph: Graph
    success: bool = False
    mode: QuantMode = QuantMode.NONE
    stats: QuantStats = field(default_factory=QuantStats)
    quant_info: GraphQuantInfo = field(default_factory=GraphQuantInfo)
    error_message: str = ""
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class QuantizationReport:
    """What a session's quantization did; plain numbers.

    Attributes:
        mode: what was done; not always what was asked for, see ``notes``.
        nodes_quantized: nodes that compute with integers, or read weights of 16 bits.
        nodes_total: nodes of the model.
        compression_ratio: how many times smaller the constants are.
        original_size_mb: megabytes of constants before.
        quantized_size_mb: megabytes of constants after.
        weights_quantized: weights in few bits.
        activations_quantized: tensors of data in few bits.
        skipped: nodes that stayed as they were, and why.
        notes: what else should be known.

    Example:
        >>> QuantizationReport.of(QuantStats(nodes_quantized=1, nodes_total=3), QuantMode.FP16).nodes_total
        3
    """

    mode: QuantMode
    nodes_quantized: int
    nodes_total: int
    compression_ratio: Ratio
    original_size_mb: float
    quantized_size_mb: float
    weights_quantized: int
    activations_quantized: int
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, stats: QuantStats, mode: QuantMode, skipped: dict[str, str] | None = None, notes: list[str] | None = None
    ) -> QuantizationReport:
        """The report of some counts."""
        return cls(
            mode, stats.nodes_quantized, stats.nodes_total, Ratio(stats.compression_ratio()),
            stats.original_size_mb(), stats.quantized_size_mb(), stats.weights_quantized,
            stats.activations_quantized, dict(skipped or {}), list(notes or []),
        )  # fmt: skip

    def __str__(self) -> str:
        sizes = f"{self.original_size_mb:.2f} MB to {self.quantized_size_mb:.2f} MB ({self.compression_ratio():.2f}x)"
        lines = [
            f"{self.mode.name}: {self.nodes_quantized} of {self.nodes_total} nodes, {sizes}",
            *self.notes,
            *(f"{name} stays as it is: {reason}" for name, reason in self.skipped.items()),
        ]
        return "\n".join(lines)
