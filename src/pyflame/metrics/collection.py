"""Several metrics fed together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyflame.metrics.base import Metric, Score
from pyflame_rt.graph.named_arguments import NamedArguments


class MetricCollection(NamedArguments):
    """Metrics by name, updated and computed together.

    Args:
        metrics: A mapping of names, or metrics that are called by their own names.
        prefix: Put before each name in the results.

    Example:
        >>> from pyflame.metrics import Accuracy, MetricCollection, Recall
        >>> metrics = MetricCollection([Accuracy(), Recall(average="binary")], prefix="val_")
        >>> metrics.update([1, 0, 1], [1, 1, 1])
        >>> {name: round(value, 2) for name, value in metrics.compute().items()}
        {'val_accuracy': 0.67, 'val_recall': 0.67}
    """

    def __init__(self, metrics: Mapping[str, Metric] | Sequence[Metric], *, prefix: str = "") -> None:
        named = list(metrics.items()) if isinstance(metrics, Mapping) else [(metric.name, metric) for metric in metrics]
        self._metrics: dict[str, Metric] = {}
        for name, metric in named:
            if name in self._metrics:
                raise ValueError(f"Two metrics are called {name!r}; give them names with a mapping")
            self._metrics[name] = metric
        self.prefix = prefix

    def update(self, preds: Any, target: Any) -> None:
        """Feed one batch to every metric."""
        for metric in self._metrics.values():
            metric.update(preds, target)

    def compute(self) -> dict[str, Score]:
        """The answers by name."""
        return {self.prefix + name: metric.compute() for name, metric in self._metrics.items()}

    def reset(self) -> None:
        """Make every metric forget."""
        for metric in self._metrics.values():
            metric.reset()

    def clone(self, *, prefix: str | None = None) -> "MetricCollection":
        """The same metrics afresh, perhaps under another prefix."""
        twins = {name: metric.clone() for name, metric in self._metrics.items()}
        return MetricCollection(twins, prefix=self.prefix if prefix is None else prefix)

    def state_dict(self) -> dict[str, Any]:
        """The states of all, by name."""
        return {name: metric.state_dict() for name, metric in self._metrics.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; metrics that it does not have stay as they are."""
        for name, saved in state.items():
            if name in self._metrics:
                self._metrics[name].load_state_dict(saved)

    def __call__(self, preds: Any, target: Any) -> dict[str, Score]:
        """Update all, and answer for this batch alone."""
        return {self.prefix + name: metric(preds, target) for name, metric in self._metrics.items()}

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)
