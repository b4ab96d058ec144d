"""Where accuracy goes: each layer quantized alone, and layers left out until a budget holds."""

from __future__ import annotations

import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.quantization.calibrator import Calibrator
from pyflame_rt.quantization.config import QuantConfig, QuantMode
from pyflame_rt.quantization.prepare import select
from pyflame_rt.quantization.quantizer import Quantizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Graph
    from pyflame_rt.quantization.params import GraphQuantInfo
    from pyflame_rt.quantization.report import QuantizationResult

__all__ = ["BudgetResult", "LayerError", "measured_ratio", "quantize_within", "sensitivity"]


@dataclass(frozen=True, slots=True)
class LayerError:
    """What quantizing one layer alone does to the model's outputs.

    Attributes:
        name: the node.
        op_type: its operator.
        error: root mean square of the change, over that of the outputs.
        weight_bytes: bytes of its weight before.

    Example:
        >>> LayerError("conv1", "Conv", 0.01, 4000).error
        0.01
    """

    name: str
    op_type: str
    error: float
    weight_bytes: int = 0


@dataclass(slots=True)
class BudgetResult:
    """A quantized model within a budget.

    Attributes:
        result: the quantization that was kept.
        baseline: the score of the model as it was.
        score: the score after it.
        excluded: the nodes that stay in float32, in the order in which they were left out.
        layers: what each layer costs alone, the worst first.
        met: whether the budget holds.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> from pyflame_rt.quantization.report import QuantizationResult
        >>> BudgetResult(QuantizationResult(Graph("g")), 0.9, 0.89, met=True).score
        0.89
    """

    result: QuantizationResult
    baseline: float
    score: float
    excluded: list[str] = field(default_factory=list)
    layers: list[LayerError] = field(default_factory=list)
    met: bool = False


@names_arguments
def sensitivity(graph: Graph, config: QuantConfig, feeds: Sequence[Mapping[str, Any]]) -> list[LayerError]:
    """How much each layer costs when it alone is quantized, the worst first.

    Args:
        graph: the model.
        config: StaticInt8 or DynamicInt8.
        feeds: data to calibrate and to compare with; a list, since each layer sees it again.

    Example:
        >>> from pyflame_rt.demo import model_path, test_set
        >>> from pyflame_rt.session import InferenceSession
        >>> graph, images = InferenceSession(model_path()).graph(), test_set()[0]
        >>> layers = sensitivity(graph, QuantConfig.static_int8(), [{"image": images[:64]}])
        >>> sorted(layer.op_type for layer in layers)
        ['Conv', 'Conv', 'Gemm', 'Gemm']
    """
    feeds = _checked(feeds)
    config = replace(config)
    static = _is_static(config)
    selection = select(graph, config, static=static)
    info = _calibrated(graph, config, feeds) if static else None
    real = _outputs(graph, feeds)
    names = {c.node.name: _source(selection.origins, c.node.name, graph) for c in selection.chosen}
    found: list[LayerError] = []
    for candidate in selection.chosen:
        name = candidate.node.name
        others = {names[c.node.name] for c in selection.chosen} - {names[name]}
        alone = replace(config, exclude_nodes=sorted({*config.exclude_nodes, *others}))
        made = _quantized(graph, alone, info)
        size = selection.graph.initializers[candidate.weight].size_bytes if candidate.weight else 0
        error = _relative(_outputs(made.quantized_graph, feeds), real)
        found.append(LayerError(names[name], candidate.node.op_type, error, size))
    return sorted(found, key=lambda layer: -layer.error)


@names_arguments
def quantize_within(
    graph: Graph,
    config: QuantConfig,
    feeds: Sequence[Mapping[str, Any]],
    score: Callable[[Graph], float],
    budget: float,
) -> BudgetResult:
    """Quantize as many layers as a loss of accuracy allows.

    Layers are left in float32, the most sensitive first, twice as many each time, until the score is at most ``budget``
    below that of the model; then as few as that needs.

    Args:
        graph: the model.
        config: StaticInt8 or DynamicInt8.
        feeds: data to calibrate with and to find sensitive layers by.
        score: of a graph, higher is better, such as the share of right answers.
        budget: how much of the score may be lost.

    Raises:
        InputError: the budget is negative or no number.
    """
    if not isinstance(budget, (int, float)) or not budget >= 0:
        raise InputError(f"budget is {budget!r}, not a number of at least 0")
    feeds = _checked(feeds)
    config = replace(config)
    static = _is_static(config)
    info = _calibrated(graph, config, feeds) if static else None
    baseline = float(score(graph))
    tried: dict[int, tuple[QuantizationResult, float]] = {}
    layers: list[LayerError] = []

    def attempt(count: int) -> bool:
        if count not in tried:
            left = [layer.name for layer in layers[:count]]
            made = _quantized(graph, replace(config, exclude_nodes=[*config.exclude_nodes, *left]), info)
            tried[count] = made, float(score(made.quantized_graph))
        return tried[count][1] >= baseline - budget

    if not attempt(0):
        layers = sensitivity(graph, config, feeds)
        _fewest(attempt, len(layers))
    good = [count for count, (_, value) in tried.items() if value >= baseline - budget]
    count = min(good) if good else max(tried)
    result, value = tried[count]
    names = [layer.name for layer in layers[:count]]
    return BudgetResult(result, baseline, value, names, layers, met=bool(good))


def _fewest(attempt: Callable[[int], bool], most: int) -> None:
    """Try doubled counts until one is good, then halve the gap below it."""
    low, high = 0, 1
    while high < most and not attempt(high):
        low, high = high, 2 * high
    high = min(high, most)
    if not attempt(high):
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attempt(middle) else (middle, high)


def measured_ratio(before: Graph, after: Graph, feed: Mapping[str, Any], rounds: int = 7) -> float:
    """How long a run of ``after`` takes on this machine, over one of ``before``: the least of interleaved runs.

    Above 1, the second is slower.
    """
    from pyflame_rt.options import SessionOptions
    from pyflame_rt.session import InferenceSession

    sessions = [InferenceSession(g, SessionOptions(quick_start=False)) for g in (before, after)]
    best = [np.inf, np.inf]
    for session in sessions:
        session.run(None, feed)
    for _ in range(rounds):
        for i, session in enumerate(sessions):
            started = time.perf_counter()
            session.run(None, feed)
            best[i] = min(best[i], time.perf_counter() - started)
    for session in sessions:
        session.close()
    return float(best[1] / best[0])


def _checked(feeds: Any) -> Any:
    if not isinstance(feeds, (list, tuple)) or not feeds:
        raise InputError(f"feeds is a list of at least one feed, got {type(feeds).__name__} {feeds!r:.60}")
    return feeds


def _is_static(config: QuantConfig) -> bool:
    if config.check().mode not in (QuantMode.StaticInt8, QuantMode.DynamicInt8):
        raise InputError(f"layers are compared in StaticInt8 and DynamicInt8, not in {config.mode.name}")
    return config.mode is QuantMode.StaticInt8


def _source(origins: Mapping[str, tuple[str, ...]], name: str, graph: Graph) -> str:
    """A name of the user's model for a node that a rule made."""
    known = {node.name for node in graph.nodes}
    return name if name in known else next((n for n in origins.get(name, ()) if n in known), name)


def _calibrated(graph: Graph, config: QuantConfig, feeds: Any) -> GraphQuantInfo:
    calibrator = Calibrator(graph, config)
    calibrator.calibrate(feeds, len(feeds))
    calibrator.close()
    return calibrator.compute_quant_params()


def _quantized(graph: Graph, config: QuantConfig, info: GraphQuantInfo | None) -> QuantizationResult:
    quantizer = Quantizer(config)
    return quantizer.quantize_dynamic(graph) if info is None else quantizer.quantize(graph, info)


def _outputs(graph: Graph, feeds: Any) -> list[np.ndarray[Any, Any]]:
    """The real-valued outputs for all feeds."""
    from pyflame_rt.session import InferenceSession

    with InferenceSession(graph) as session:
        return [np.asarray(a) for feed in feeds for a in session.run(None, feed) if _is_real(a)]


def _is_real(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _relative(found: list[np.ndarray[Any, Any]], real: list[np.ndarray[Any, Any]]) -> float:
    squares = sum(float(np.square(a - b, dtype=np.float64).sum()) for a, b in zip(found, real, strict=True))
    whole = sum(float(np.square(b, dtype=np.float64).sum()) for b in real)
    return float(np.sqrt(squares / whole)) if whole else float(np.sqrt(squares))
