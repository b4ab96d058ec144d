"""Pruning while training: masks that hold after every step, and grow as a schedule says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.training.callbacks import Callback
from pyflame_rt.pruning import PruningMask, WeightPruner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph

__all__ = ["PruningCallback"]


class PruningCallback(Callback):
    """Keeps pruned weights at zero while a model is trained.

    Args:
        pruning: masks by name of the parameter, or a WeightPruner that makes them as its schedule goes on.
        example: one argument of the model, or a tuple of them; a pruner needs it, to see how layers are connected.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> from pyflame_rt.pruning import PruningMask
        >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
        >>> data = pf.data.DataLoader(pf.data.TensorDataset(x, x.sum(axis=1, keepdims=True)), batch_size=16)
        >>> model = pf.nn.Linear(3, 1)
        >>> keep = pf.training.PruningCallback({"weight": PruningMask([[1, 0, 1]])})
        >>> config = pf.training.TrainerConfig(max_epochs=3, progress=False)
        >>> adam = pf.optim.Adam(model.parameters(), lr=0.1)
        >>> _ = pf.training.Trainer(model, adam, pf.nn.MSELoss(), config, [keep]).fit(data)
        >>> model.weight.numpy()[0, 1], model.weight.numpy()[0, 0] != 0
        (np.float32(0.0), np.True_)
    """

    def __init__(self, pruning: WeightPruner | Mapping[str, PruningMask], example: Any = None) -> None:
        self.pruner = pruning if isinstance(pruning, WeightPruner) else None
        self.masks: dict[str, PruningMask] = {} if isinstance(pruning, WeightPruner) else dict(pruning)
        if self.pruner is not None and example is None:
            raise ValueError("a pruner has to see the model: give an example of its argument")
        self._example = example if isinstance(example, tuple) else (example,)
        self._held: dict[str, tuple[Any, Any]] = {}
        self._share = -1.0

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Mask the weights as they are."""
        self._held = {}
        self._advance(self.trainer.global_step)
        self._hold()

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Mask again what the step has changed; the schedule may take more away."""
        if logs.get("stepped", True):
            self._advance(self.trainer.global_step)
            self._hold()

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Leave the weights masked."""
        self._hold()

    def state_dict(self) -> dict[str, Any]:
        """The masks, for a checkpoint."""
        return {"share": self._share, "masks": {name: mask.numpy() for name, mask in self.masks.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the masks of a checkpoint."""
        self._share = float(state["share"])
        self.masks = {name: PruningMask(np.asarray(keep)) for name, keep in state["masks"].items()}
        self._held = {}

    def _advance(self, step: int) -> None:
        if self.pruner is None:
            return
        config = self.pruner.config
        since = step - config.start_step
        if since < 0 or (since % config.pruning_frequency and step < config.end_step):
            return
        share = config.sparsity_at(step)
        if share > self._share:
            self._share = share
            self.masks |= self.pruner.compute_masks(self._graph(), sparsity=share)
            self._held = {}

    def _graph(self) -> Graph:
        return self.trainer.model.__runtime_graph__(self._example)

    def _hold(self) -> None:
        """Multiply the parameters by their masks."""
        if not self._held:
            known = dict(self.trainer.model.named_parameters())
            missing = sorted(name for name in self.masks if name not in known)
            if missing:
                raise KeyError(f"the model has no parameter {', '.join(missing)}; it has {', '.join(sorted(known))}")
            self._held = {n: (known[n], adopt(m.numpy().astype(known[n].dtype.numpy))) for n, m in self.masks.items()}
        with no_grad():
            for parameter, mask in self._held.values():
                parameter.mul_(mask)
