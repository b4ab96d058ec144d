"""Fine-tuning pruned graphs: masks that hold, and pruning that grows step by step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.pruning.config import PruningCriterion, PruningGranularity
from pyflame_rt.pruning.masks import PruningMask
from pyflame_rt.pruning.scores import prunable_weights
from pyflame_rt.training import GraphTrainer, SupervisedLoss, TrainingConfig, TrainingHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.graph import Graph
    from pyflame_rt.ops.core.value import Value
    from pyflame_rt.pruning.pruner import WeightPruner

__all__ = ["FineTuned", "fine_tune", "zero_masks"]


@dataclass(slots=True)
class FineTuned:
    """What fine-tuning gives: the graph, what was measured, and the masks that held."""

    graph: Graph
    history: TrainingHistory
    masks: dict[str, PruningMask]


def zero_masks(graph: Graph) -> dict[str, PruningMask]:
    """Masks of the weights of layers that hold zeros, so that they stay zero.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_initializer("w", np.eye(2, dtype=np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 2])
        >>> zero_masks(g)
        {'w': PruningMask([2, 2], sparsity 0.500)}
    """
    masks = {name: PruningMask.from_tensor(graph.initializers[name].raw()) for name in prunable_weights(graph)}
    return {name: mask for name, mask in masks.items() if mask.num_zeros()}


@names_arguments
def fine_tune(
    graph: Graph,
    data: Any,
    config: TrainingConfig | None = None,
    *,
    pruner: WeightPruner | None = None,
    masks: Mapping[str, PruningMask] | None = None,
    loss_fn: str | Callable[..., Value] = "cross_entropy",
    validation: Any = None,
    callback: Callable[[dict[str, float]], Any] | None = None,
) -> FineTuned:
    """Train a graph and keep what was pruned at zero.

    Args:
        graph: left as it is.
        data: ``(inputs, labels)``, an InMemoryDataset, or an iterable of pairs.
        config: the settings of the training.
        pruner: prunes while training, as its schedule says; structured channels are taken out at the end.
        masks: what stays; by default, weights of layers that are zero stay zero.
        loss_fn: ``"cross_entropy"``, ``"mse"``, or a function of values (outputs, labels).
        validation: data to measure after every epoch.
        callback: called after every epoch with what was measured; False ends the training.
    """
    held = dict(zero_masks(graph) if masks is None else masks)
    loss = SupervisedLoss([info.name for info in graph.outputs], loss_fn)
    trainer = GraphTrainer(graph, loss, config, masks=held)
    grow = None if pruner is None else _Growing(trainer, pruner, data, loss_fn)
    history = trainer.fit(data, validation, callback, grow)
    if grow is not None:
        grow.finish()
    result = trainer.graph()
    if pruner is not None and pruner.config.granularity is PruningGranularity.STRUCTURED:
        return FineTuned(_without_zeros(pruner, result), history, {})
    return FineTuned(result, history, {n: PruningMask(mask.numpy()) for n, mask in trainer.masks.items()})


def _without_zeros(pruner: WeightPruner, graph: Graph) -> Graph:
    """Take out the channels that the masks hold at zero: the weakest by magnitude, whatever they were chosen by.

    By movement a channel of zeros is worth nothing, and others may be worth less.
    """
    own = pruner.config
    scope = "global" if own.criterion is PruningCriterion.LAMP else own.scope
    pruner.config = dataclasses.replace(own, criterion=PruningCriterion.MAGNITUDE, scope=scope)
    try:
        return pruner.prune(graph)
    finally:
        pruner.config = own


class _Growing:
    """Masks that are made anew as the schedule goes on."""

    def __init__(self, trainer: GraphTrainer, pruner: WeightPruner, data: Any, loss_fn: Any) -> None:
        self._trainer, self._pruner, self._data, self._loss = trainer, pruner, data, loss_fn
        self._last = -1.0

    def __call__(self, step: int) -> None:
        config = self._pruner.config
        due = step <= config.end_step and (step - config.start_step) % config.pruning_frequency == 0
        if step >= config.start_step and (due or step == config.end_step):
            self._to(config.sparsity_at(step))

    def finish(self) -> None:
        """What the schedule ends with, where training was shorter than it."""
        self._to(self._pruner.config.target_sparsity)

    def _to(self, share: float) -> None:
        if share <= self._last:
            return
        self._last = share
        graph = self._trainer.graph()
        masks = self._pruner.compute_masks(graph, data=self._data, loss_fn=self._loss, sparsity=share)
        self._trainer.set_masks(masks)
