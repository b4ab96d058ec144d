"""Sensitivity scan: how much each layer can lose before a measure of the model falls."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.curves import draw
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.pruning.config import PruningConfig, PruningGranularity
from pyflame_rt.pruning.coupling import analyse
from pyflame_rt.pruning.pruner import WeightPruner
from pyflame_rt.pruning.scores import named, prunable_weights
from pyflame_rt.pruning.structured import PruningWarning

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Graph

__all__ = ["SensitivityReport", "sensitivity_scan"]


@dataclass
class SensitivityReport:
    """What a measure is when one layer at a time is pruned.

    Attributes:
        baseline: the measure of the whole model.
        sparsities: the shares that were tried.
        scores: the measure for each of them, by layer.
    """

    baseline: float
    sparsities: list[float]
    scores: dict[str, list[float]] = field(default_factory=dict)

    def suggest(self, max_drop: float) -> dict[str, float]:
        """The largest share of each layer that costs at most ``max_drop``, for ``per_layer_sparsity``.

        Example:
            >>> SensitivityReport(0.9, [0.3, 0.6], {"fc": [0.89, 0.5]}).suggest(0.02)
            {'fc': 0.3}
        """
        found = {}
        for name, scores in self.scores.items():
            fits = [s for s, value in zip(self.sparsities, scores, strict=True) if value >= self.baseline - max_drop]
            found[name] = max(fits, default=0.0)
        return found

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """One curve for each layer as an SVG picture, written to a file where one is given."""
        curves = {
            name: [(0.0, self.baseline), *zip(self.sparsities, scores, strict=True)]
            for name, scores in self.scores.items()
        }
        picture = draw(curves, "sparsity")
        if path is not None:
            Path(path).write_text(picture, "utf-8")
        return picture


@names_arguments
def sensitivity_scan(
    graph: Graph,
    measure: Callable[[Graph], float],
    config: PruningConfig | None = None,
    sparsities: Sequence[float] = (0.25, 0.5, 0.75, 0.9),
) -> SensitivityReport:
    """Prune one layer at a time, and measure.

    Args:
        graph: left as it is.
        measure: gives a number for a graph that is larger for better models, such as its accuracy.
        config: granularity and criterion; excluded layers are left out.
        sparsities: the shares to try.

    Raises:
        InputError: there is nothing to measure with, or no share to try.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_initializer("w", np.ones((2, 2), np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 2])
        >>> sensitivity_scan(g, lambda g: float(g.get_initializer("w").numpy().sum()), sparsities=[0.5]).scores
        {'w': [2.0]}
    """
    chosen = PruningConfig() if config is None else config
    shares = [float(s) for s in sparsities]
    if not callable(measure):
        raise InputError(f"measure is a function that gives a number for a graph, got {type(measure).__name__}")
    if not shares:
        raise InputError("a sensitivity scan needs at least one share to try")
    report = SensitivityReport(float(measure(graph)), shares)
    for name in _layers(graph, chosen):
        report.scores[name] = [_measured(graph, measure, chosen, name, share) for share in shares]
    return report


def _layers(graph: Graph, config: PruningConfig) -> list[str]:
    if config.granularity is PruningGranularity.STRUCTURED:
        _, families = analyse(graph)
        found = [family.owners[0] for family in families if family.owners and not family.pinned]
    else:
        found = list(prunable_weights(graph))
    nodes = prunable_weights(graph)
    return [name for name in found if not any(named(out, name, nodes.get(name, [])) for out in config.exclude_layers)]


def _measured(graph: Graph, measure: Callable[[Graph], float], config: PruningConfig, name: str, share: float) -> float:
    alone = dataclasses.replace(config, target_sparsity=0.0, per_layer_sparsity={name: share})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PruningWarning)
        return float(measure(WeightPruner(alone).prune(graph)))
