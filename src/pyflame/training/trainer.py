"""The training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd import no_grad
from pyflame.data.collate import to_arrays, to_tensors
from pyflame.metrics import Metric, MetricCollection
from pyflame.random import get_rng_state, manual_seed, set_rng_state
from pyflame.training.callbacks import Callback, EarlyStopping
from pyflame.training.checkpoints import prune_checkpoints, read_checkpoint, write_whole
from pyflame.training.config import TrainerConfig
from pyflame.training.history import History
from pyflame.training.progress import ProgressBar
from pyflame.training.step import Step, apply_model

if TYPE_CHECKING:
    from pyflame.nn import Module
    from pyflame.optim import Optimizer
    from pyflame.tensors import Tensor

__all__ = ["Trainer"]


class Trainer:
    """Trains a model: epochs, validation, checkpoints, callbacks.

    Args:
        model: What is trained.
        optimizer: What changes its parameters.
        loss_fn: Called with the outputs and the targets (or with the outputs alone, for batches without targets).
        config: The settings.
        callbacks: What else happens.
        metrics: Metrics, by list or name, measured in training and validation.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
        >>> data = pf.data.DataLoader(pf.data.TensorDataset(x, x.sum(axis=1, keepdims=True)), batch_size=16)
        >>> model = pf.nn.Linear(3, 1)
        >>> config = pf.training.TrainerConfig(max_epochs=20, progress=False)
        >>> trainer = pf.training.Trainer(model, pf.optim.Adam(model.parameters(), lr=0.1), pf.nn.MSELoss(), config)
        >>> history = trainer.fit(data)
        >>> history["loss"][-1] < history["loss"][0]
        True
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss_fn: Callable[..., Tensor],
        config: TrainerConfig | None = None,
        callbacks: Sequence[Callback] | None = None,
        metrics: Any = None,
    ) -> None:
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.config = config or TrainerConfig()
        self.callbacks = [*(callbacks or ()), *self._own_callbacks(callbacks or ())]
        for callback in self.callbacks:
            callback.trainer = self
        self.metrics = _collection(metrics)
        self.history = History()
        self.epoch, self.global_step, self._batch = 0, 0, 0
        self.should_stop, self.stop_reason = False, ""
        self._epoch_rng: tuple[int, int] | None = None
        self._resume: dict[str, Any] | None = None
        self._running: list[float] = []
        self._step = Step(model, optimizer, loss_fn, self.config)

    def fit(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        epochs: int | None = None,
    ) -> History:
        """Train, and return what was measured in each epoch.

        Args:
            train_loader: Gives batches: (inputs, targets), or inputs alone, of arrays or tensors.
            val_loader: Batches to validate with.
            epochs: In place of the config's `max_epochs`.
        """
        total = epochs or self.config.max_epochs
        if self.config.seed is not None and self._resume is None:
            manual_seed(self.config.seed)
        self.should_stop, self.stop_reason = False, ""
        self._tell("on_train_begin", {"epochs": total})
        try:
            while self.epoch < total and not self.should_stop:
                self._train_epoch(train_loader, val_loader, total)
        finally:
            self._tell("on_train_end", {"history": self.history})
        if self.config.checkpoint_dir is not None and self.history:
            folder = Path(self.config.checkpoint_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.history.save(folder / "history.json")
            self.history.plot(folder / "loss_curve.svg")
        return self.history

    def evaluate(self, loader: Iterable[Any], prefix: str = "") -> dict[str, float]:
        """The mean loss and the metrics over a loader, in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        metrics = None if self.metrics is None else self.metrics.clone(prefix=prefix)
        total, seen = 0.0, 0
        try:
            with no_grad():
                for batch in loader:
                    inputs, targets = split_batch(batch)
                    loss, outputs = self._step.forward(inputs, targets)
                    size = batch_size(inputs)
                    total, seen = total + float(loss.item()) * size, seen + size
                    if metrics is not None:
                        metrics.update(outputs, targets)
        finally:
            self.model.train(was_training)
        return {f"{prefix}loss": total / seen if seen else float("nan"), **_numbers(metrics)}

    def test(self, loader: Iterable[Any]) -> dict[str, float]:
        """As `evaluate`, with names that begin with "test_"."""
        return self.evaluate(loader, prefix="test_")

    def predict(self, loader: Iterable[Any]) -> np.ndarray:
        """The model's outputs for all batches (targets are ignored), one after the other."""
        was_training = self.model.training
        self.model.eval()
        try:
            with no_grad():
                parts = [to_arrays(apply_model(self.model, split_batch(batch)[0])) for batch in loader]
        finally:
            self.model.train(was_training)
        if not parts:
            raise ValueError("The loader gave no batches to predict")
        return np.concatenate(parts)

    def stop(self, reason: str = "") -> None:
        """End training after the batch that is under way."""
        self.should_stop, self.stop_reason = True, reason

    def save_checkpoint(self, path: str | Path) -> None:
        """Write everything needed to go on exactly from here; the file appears whole or not at all."""
        write_whole(self._state(), path)

    def load_checkpoint(self, path: str | Path) -> None:
        """Take over a checkpoint; the next `fit` goes on where it was written, with the same losses."""
        state = read_checkpoint(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if len(state["callbacks"]) != len(self.callbacks):
            raise ValueError(
                f"The checkpoint has {len(state['callbacks'])} callbacks, this trainer {len(self.callbacks)}"
            )
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        if self._step.scaler is not None and state["scaler"] is not None:
            self._step.scaler.load_state_dict(state["scaler"])
        position = state["position"]
        self.epoch, self.global_step, self._batch = position["epoch"], position["step"], position["batch"]
        self.history = History(state["history"], steps=list(state["steps"]))
        self._running = list(position["running"])
        self._resume = position

    def save_weights(self, path: str | Path) -> None:
        """Write the model's weights alone; `pf.load` reads them."""
        write_whole(self.model.state_dict(), path)

    def _state(self) -> dict[str, Any]:
        position = {
            "epoch": self.epoch,
            "step": self.global_step,
            "batch": self._batch,
            "rng": list(get_rng_state()),
            "epoch_rng": list(self._epoch_rng or get_rng_state()),
            "running": self._running,
        }
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "scaler": None if self._step.scaler is None else self._step.scaler.state_dict(),
            "position": position,
            "history": dict(self.history),
            "steps": self.history.steps,
        }

    def _own_callbacks(self, given: Sequence[Callback]) -> list[Callback]:
        own: list[Callback] = []
        config = self.config
        if config.early_stopping_patience is not None:
            monitor, mode = config.early_stopping_metric, config.early_stopping_mode
            own.append(EarlyStopping(monitor, config.early_stopping_patience, mode))
        if config.progress and not any(isinstance(callback, ProgressBar) for callback in given):
            own.append(ProgressBar())
        return own

    def _tell(self, event: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*args)

    def _train_epoch(self, loader: Iterable[Any], val_loader: Iterable[Any] | None, total: int) -> None:
        self.model.train()
        if self.metrics is not None:
            self.metrics.reset()
        batches = len(loader) if isinstance(loader, Sized) else None
        self._tell("on_epoch_begin", self.epoch, {"epochs": total, "batches": batches})
        finished = True
        for batch in self._batches(loader):
            self._train_batch(batch, batches, val_loader)
            if self.should_stop:
                finished = False
                break
        if not self._running:
            raise ValueError("The training loader gave no batches")
        logs = {"loss": float(np.mean(self._running)), **_numbers(self.metrics)}
        if val_loader is not None:
            logs |= self._validate(val_loader)
        logs["lr"] = self.optimizer.get_lr()
        self.history.add(logs)
        self._tell("on_epoch_end", self.epoch, logs)
        self.epoch += int(finished or self.should_stop)
        self._batch, self._epoch_rng, self._running = 0, None, []
        if self.config.checkpoint_dir is not None and self.epoch % self.config.checkpoint_interval == 0:
            self._checkpoint()

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of this epoch, from where a checkpoint left off."""
        resume, self._resume = self._resume, None
        if resume is None:
            self._epoch_rng = get_rng_state()
            yield from loader
            return
        self._epoch_rng = (int(resume["epoch_rng"][0]), int(resume["epoch_rng"][1]))
        set_rng_state(self._epoch_rng)
        batches = iter(loader)
        for _ in range(self._batch):
            if next(batches, None) is None:
                raise ValueError(f"The checkpoint was written after batch {self._batch}; the loader has fewer")
        set_rng_state((int(resume["rng"][0]), int(resume["rng"][1])))
        yield from batches

    def _train_batch(self, batch: Any, batches: int | None, val_loader: Iterable[Any] | None) -> None:
        config = self.config
        inputs, targets = split_batch(batch)
        self._tell("on_batch_begin", self._batch, {})
        last = (self._batch + 1) % config.accumulate_grad_batches == 0 or self._batch + 1 == batches
        loss, outputs = self._step(inputs, targets, last=last)
        if self.metrics is not None:
            self.metrics.update(outputs, targets)
        value = float(loss.item())
        if not np.isfinite(value) and self._step.scaler is None:
            raise FloatingPointError(f"The loss is {value} at step {self.global_step} of epoch {self.epoch}")
        self._running.append(value)
        self.history.steps.append(value)
        number = self._batch
        self._batch += 1
        self.global_step += int(last)
        self._tell("on_batch_end", number, {"loss": value, "size": batch_size(inputs), "step": self.global_step})
        if last and config.max_steps is not None and self.global_step >= config.max_steps:
            self.stop(f"max_steps={config.max_steps} reached")
        if last and config.eval_interval and val_loader is not None and self.global_step % config.eval_interval == 0:
            self._validate(val_loader)
        due = last and config.checkpoint_steps and self.global_step % config.checkpoint_steps == 0
        if due and config.checkpoint_dir is not None:
            self._checkpoint()

    def _validate(self, loader: Iterable[Any]) -> dict[str, float]:
        logs = self.evaluate(loader, prefix="val_")
        self._tell("on_validation_end", logs)
        return logs

    def _checkpoint(self) -> None:
        folder = Path(os.fspath(self.config.checkpoint_dir or "."))
        self.save_checkpoint(folder / f"checkpoint-{self.global_step:08d}.pf")
        prune_checkpoints(folder, self.config.keep_checkpoints)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch, as tensors; (x, y) are both, three parts and more are inputs and then targets."""
    if isinstance(batch, dict):
        inputs = dict(batch)
        for name in ("target", "targets", "label", "labels"):
            if name in inputs:
                targets = inputs.pop(name)
                return to_tensors(inputs), to_tensors(targets)
        return to_tensors(inputs), None
    if isinstance(batch, tuple | list):
        if len(batch) == 1:
            return to_tensors(batch[0]), None
        *inputs, targets = batch
        return to_tensors(inputs[0] if len(inputs) == 1 else tuple(inputs)), to_tensors(targets)
    return to_tensors(batch), None


def batch_size(inputs: Any) -> int:
    """How many samples a batch has."""
    first = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
    first = first[0] if isinstance(first, tuple | list) else first
    return int(first.shape[0]) if len(first.shape) else 1


def _collection(metrics: Any) -> MetricCollection | None:
    if metrics is None or isinstance(metrics, MetricCollection):
        return metrics
    return MetricCollection([metrics] if isinstance(metrics, Metric) else metrics)


def _numbers(metrics: MetricCollection | None) -> dict[str, float]:
    if metrics is None:
        return {}
    return {name: float(value) for name, value in metrics.compute().items() if np.ndim(value) == 0}
