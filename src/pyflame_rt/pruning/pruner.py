"""WeightPruner: a graph in, a smaller or sparser graph out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.pruning.config import PruningConfig, PruningGranularity
from pyflame_rt.pruning.coupling import analyse
from pyflame_rt.pruning.masks import PruningMask, apply_masks
from pyflame_rt.pruning.narrow import narrow
from pyflame_rt.pruning.patterns import pattern_masks
from pyflame_rt.pruning.scores import named, prunable_weights, quantized_weights, score
from pyflame_rt.pruning.stats import PruningStats, stats_of
from pyflame_rt.pruning.structured import Choice, choose, masks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.ops.core.value import Value
    from pyflame_rt.pruning.coupling import Coupling

__all__ = ["WeightPruner"]


class WeightPruner:
    """Prunes the weights of graphs.

    Example:
        >>> import numpy as np
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 4]), g.add_initializer("w", np.arange(8, dtype=np.float32).reshape(4, 2))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 2])
        >>> pruner = WeightPruner(PruningConfig.magnitude_pruning(0.5))
        >>> pruner.prune(g).get_initializer("w").numpy().ravel().tolist()
        [0.0, 0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0]
        >>> pruner.get_stats().actual_sparsity()
        0.5
    """

    def __init__(self, config: PruningConfig | None = None) -> None:
        self.config = PruningConfig() if config is None else config
        expect(self.config, PruningConfig, "the config of a WeightPruner")
        self.config.check()
        self._stats = PruningStats()

    def get_stats(self) -> PruningStats:
        """What the last ``prune`` did."""
        return self._stats

    def get_sparsity_at_step(self, step: int) -> float:
        """The share to have pruned at a step of training, by the schedule."""
        return self.config.sparsity_at(step)

    def prune(
        self,
        graph: Graph,
        *,
        data: Any = None,
        loss_fn: str | Callable[..., Value] = "cross_entropy",
        gradients: Mapping[str, Any] | None = None,
        sparsity: float | None = None,
    ) -> Graph:
        """A pruned copy of a graph.

        STRUCTURED removes channels and heads from every weight that has them: the outputs of the graph keep their
        sizes. Where an operator needs the number of channels they are set to zero instead, with a PruningWarning.

        Args:
            graph: left as it is.
            data: inputs and labels to take gradients with, for MOVEMENT and TAYLOR.
            loss_fn: ``"cross_entropy"``, ``"mse"``, or a function of values (outputs, labels).
            gradients: gradients by name of the weight, in place of ``data``.
            sparsity: in place of the config's ``target_sparsity``.

        Raises:
            InputError: the criterion needs gradients and there is neither data nor gradients; a layer that is named
                in the config is not in the graph.
        """
        self._check(graph, sparsity)
        slopes = self._gradients(graph, data, loss_fn, gradients)
        if self.config.granularity is PruningGranularity.STRUCTURED:
            coupling, choice = self._choice(graph, sparsity, slopes)
            masked = apply_masks(graph, masks_of(coupling, Choice(zeroed=choice.zeroed)))
            coupling.graph = masked
            pruned = narrow(coupling, choice.channels())
            self._stats = stats_of(graph, pruned)
            self._stats.removed_channels = choice.counts
            self._stats.zeroed_channels = {f.name: (len(gone), len(f.channels)) for f, gone in choice.zeroed}
            return pruned
        pruned = apply_masks(graph, self._pattern(graph, sparsity, slopes))
        self._stats = stats_of(graph, pruned)
        return pruned

    def compute_masks(
        self,
        graph: Graph,
        *,
        data: Any = None,
        loss_fn: str | Callable[..., Value] = "cross_entropy",
        gradients: Mapping[str, Any] | None = None,
        sparsity: float | None = None,
    ) -> dict[str, PruningMask]:
        """What would stay of each weight; STRUCTURED masks whole channels. Arguments are those of ``prune``."""
        self._check(graph, sparsity)
        slopes = self._gradients(graph, data, loss_fn, gradients)
        if self.config.granularity is PruningGranularity.STRUCTURED:
            return masks_of(*self._choice(graph, sparsity, slopes))
        return self._pattern(graph, sparsity, slopes)

    def apply_masks(self, graph: Graph, masks: Mapping[str, PruningMask]) -> Graph:
        """A copy of a graph with its weights masked; ``get_stats`` tells what that did."""
        pruned = apply_masks(graph, masks)
        self._stats = stats_of(graph, pruned)
        return pruned

    def _choice(
        self, graph: Graph, sparsity: float | None, slopes: Mapping[str, Any] | None
    ) -> tuple[Coupling, Choice]:
        coupling, families = analyse(graph)
        target = self.config.target_sparsity if sparsity is None else sparsity
        return coupling, choose(coupling, families, self.config, target, slopes)

    def _pattern(
        self, graph: Graph, sparsity: float | None, slopes: Mapping[str, Any] | None
    ) -> dict[str, PruningMask]:
        config, shares, own = self.config, {}, []
        for name, nodes in prunable_weights(graph).items():
            if any(named(wanted, name, nodes) for wanted in config.exclude_layers):
                continue
            targets = [share for wanted, share in config.per_layer_sparsity.items() if named(wanted, name, nodes)]
            own += [name] if targets else []
            shares[name] = targets[-1] if targets else config.target_sparsity if sparsity is None else sparsity
        scores = {name: score(name, graph.initializers[name].raw(), config, slopes) for name in shares}
        return pattern_masks(scores, shares, own, config)

    def _check(self, graph: Graph, sparsity: float | None) -> None:
        if not isinstance(graph, Graph):
            raise InputError(f"a pruner takes a Graph (session.graph()), got {type(graph).__name__}")
        self.config.check()
        if sparsity is not None and (not isinstance(sparsity, (int, float, np.floating)) or not 0 <= sparsity < 1):
            raise InputError(f"sparsity must be at least 0 and below 1, got {sparsity!r}")
        quantized = quantized_weights(graph)
        if quantized:
            raise InputError(
                f"graph {graph.name!r} has quantized weights ({', '.join(quantized[:3])}): "
                f"prune the graph first, then quantize what is left"
            )
        weights = prunable_weights(graph)
        nodes = [node.name for node in graph.nodes]
        for wanted in (*self.config.per_layer_sparsity, *self.config.exclude_layers):
            if not any(named(wanted, name, nodes) for name in (*weights, *graph.initializers)):
                raise InputError(
                    f"no layer of graph {graph.name!r} is called {wanted!r}; weights: {', '.join(weights) or 'none'}"
                )

    def _gradients(
        self, graph: Graph, data: Any, loss_fn: Any, gradients: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        if gradients is not None or data is None or not self.config.criterion.needs_gradients:
            return gradients
        from pyflame_rt.training import GraphTrainer, SupervisedLoss

        loss = SupervisedLoss([info.name for info in graph.outputs], loss_fn)
        return GraphTrainer(graph, loss).gradients(data)
