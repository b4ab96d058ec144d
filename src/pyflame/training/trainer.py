"""The training loop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd import no_grad
from pyflame.data.collate import to_arrays, to_tensors
from pyflame.metrics import Metric, MetricCollection
from pyflame.random import get_rng_state, manual_seed, set_rng_state
from pyflame.training.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pyflame.training.checkpoints import prune_checkpoints, read_checkpoint, write_whole
from pyflame.training.config import TrainerConfig
from pyflame.training.history import History
from pyflame.training.interrupts import Interrupts
from pyflame.training.orders import begin_order, order_state, restore_order
from pyflame.training.progress import ProgressBar
from pyflame.training.step import TrainingStep, apply_model
from pyflame_rt.graph.named_arguments import NamedArguments

if TYPE_CHECKING:
    from pyflame.nn import Module
    from pyflame.optim import Optimizer
    from pyflame.tensors import Tensor

__all__ = ["Trainer"]


class Trainer(NamedArguments):
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
        self._order: list[dict[str, Any]] = []
        self._next_order: list[dict[str, Any]] = []
        self._resume: dict[str, Any] | None = None
        self._running: list[float] = []
        self._epoch_over, self._partial_row = False, False
        self._interrupts = Interrupts()
        self._whole_position: dict[str, Any] | None = None
        self._step = TrainingStep(model, optimizer, loss_fn, self.config)

    def fit(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        epochs: int | None = None,
    ) -> History:
        """Train, and return what was measured in each epoch.

        Ctrl-C lets the step under way end (pressed twice, it does not), writes a checkpoint where there is a
        `checkpoint_dir`, and raises KeyboardInterrupt. After that, or any other exception, a further `fit` goes on
        behind the last batch that was done.

        Args:
            train_loader: Gives batches: (inputs, targets), or inputs alone, of arrays or tensors.
            val_loader: Batches to validate with.
            epochs: In place of the config's `max_epochs`: how many there are to be in all, those done before included.
        """
        total = self.config.max_epochs if epochs is None else epochs
        if self.config.seed is not None and self._resume is None:
            manual_seed(self.config.seed)
        self.should_stop, self.stop_reason = False, ""
        self._whole_position = self._position()
        with self._interrupts.watched():
            try:
                self._tell("on_train_begin", {"epochs": total})
                while self.epoch < total and not self.should_stop:
                    self._train_epoch(train_loader, val_loader, total)
            except BaseException as error:
                self._cut_off(error)
                raise
            finally:
                self._tell_all("on_train_end", {"history": self.history})
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
        """End training after the step that is under way; a later `fit` goes on from there."""
        self.should_stop, self.stop_reason = True, reason

    def save_checkpoint(self, path: str | Path) -> None:
        """Write everything needed to go on exactly from here; the file appears whole or not at all."""
        write_whole(self._state(), path)

    def load_checkpoint(self, path: str | Path) -> None:
        """Take over a checkpoint; the next `fit` goes on where it was written, with the same losses.

        Callbacks take over the states of those of the same class; a state that nobody takes is left with a warning.
        """
        state = read_checkpoint(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_callbacks(path, state["callbacks"])
        if self._step.scaler is not None and state["scaler"] is not None:
            self._step.scaler.load_state_dict(state["scaler"])
        self._step.load_pending(state["pending"])
        if self.metrics is not None and state["metrics"] is not None:
            self.metrics.load_state_dict(state["metrics"])
        position = state["position"]
        self.epoch, self.global_step, self._batch = position["epoch"], position["step"], position["batch"]
        self.history = History(state["history"], steps=list(state["steps"]))
        self._running, self._partial_row = list(position["running"]), position["partial_row"]
        self._resume = position

    def save_weights(self, path: str | Path) -> None:
        """Write the model's weights alone; `pf.load` reads them."""
        write_whole(self.model.state_dict(), path)

    def _cut_off(self, error: BaseException) -> None:
        """Training ends in the middle: the next `fit`, and checkpoints, go on behind the last whole batch."""
        if self._resume is None and self._whole_position is not None:
            self._resume = self._whole_position
        wanted = isinstance(error, KeyboardInterrupt) and not self._interrupts.broken
        if wanted and self.config.checkpoint_dir is not None and self.global_step:
            try:
                self._checkpoint()
            except OSError as failure:
                error.add_note(str(failure))

    def _position(self) -> dict[str, Any]:
        """Where training is; a callback that is told of an epoch's end saves the beginning of the next one."""
        if self._resume is not None:
            return self._resume
        over = self._epoch_over
        return {
            "epoch": self.epoch + int(over),
            "step": self.global_step,
            "batch": 0 if over else self._batch,
            "rng": list(get_rng_state()),
            "epoch_rng": list(get_rng_state() if over else self._epoch_rng or get_rng_state()),
            "order": self._next_order if over else self._order,
            "running": [] if over else self._running,
            "partial_row": False if over else self._partial_row,
        }

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "callbacks": [[type(callback).__name__, callback.state_dict()] for callback in self.callbacks],
            "scaler": None if self._step.scaler is None else self._step.scaler.state_dict(),
            "pending": self._step.pending(),
            "metrics": None if self.metrics is None else self.metrics.state_dict(),
            "position": self._position(),
            "history": dict(self.history),
            "steps": self.history.steps,
        }

    def _load_callbacks(self, path: str | Path, saved: list[Any]) -> None:
        waiting = list(self.callbacks)
        for name, state in saved:
            match = next((callback for callback in waiting if type(callback).__name__ == name), None)
            if match is not None:
                waiting.remove(match)
                match.load_state_dict(state)
            elif state:
                warnings.warn(f"{path} has the state of a {name}, which this trainer has not", stacklevel=3)

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

    def _tell_all(self, event: str, *args: Any) -> None:
        """Tell everyone, even when telling one of them fails; the first failure is raised at the end."""
        failed: BaseException | None = None
        for callback in self.callbacks:
            try:
                getattr(callback, event)(*args)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed = failed or error
        if failed is not None:
            raise failed

    def _tell_end(self, logs: dict[str, Any]) -> None:
        """Tell of an epoch's end; those that write checkpoints come last, so that they write what the others did."""
        for callback in sorted(self.callbacks, key=lambda callback: isinstance(callback, ModelCheckpoint)):
            callback.on_epoch_end(self.epoch, logs)

    def _train_epoch(self, loader: Iterable[Any], val_loader: Iterable[Any] | None, total: int) -> None:
        self.model.train()
        if self.metrics is not None and not self._batch:
            self.metrics.reset()
        batches = _length(loader)
        self._tell("on_epoch_begin", self.epoch, {"epochs": total, "batches": batches})
        finished = True
        with closing(self._batches(loader)) as given:
            for batch in given:
                last = self._train_batch(batch, batches, val_loader)
                if self.should_stop and last:
                    finished = self._batch == batches
                    break
        if not self._running:
            raise ValueError("The training loader gave no batches")
        with self._interrupts.held():
            if finished and self._step.finish():
                self.global_step += 1
            self._whole_position = self._position()
        self._next_order = order_state(loader)
        self._end_epoch(val_loader, finished=finished)
        due = self.should_stop or self.epoch % self.config.checkpoint_interval == 0
        if self.config.checkpoint_dir is not None and due:
            self._checkpoint()

    def _end_epoch(self, val_loader: Iterable[Any] | None, *, finished: bool) -> None:
        """Measure and tell; an epoch that was stopped on its way is gone on with by the next `fit`."""
        if self._partial_row:
            self.history.drop_last()
        logs = {"loss": float(np.mean(self._running)), **_numbers(self.metrics)}
        if val_loader is not None:
            logs |= self._validate(val_loader)
        logs["lr"] = self.optimizer.get_lr()
        with self._interrupts.held():
            self.history.add(logs)
            self._partial_row = True  # until everybody was told
            self._whole_position, self._epoch_over = self._position(), finished
            try:
                self._tell_end(logs)
            finally:
                self._epoch_over = False
            if finished:
                self.epoch, self._partial_row = self.epoch + 1, False
                self._batch, self._epoch_rng, self._order, self._running = 0, None, self._next_order, []
                self._whole_position = self._position()
            else:
                self._resume = self._position()

    @property
    def epoch_finished(self) -> bool:
        """Whether `on_epoch_end` is told of a whole epoch; False for one that `stop` or `max_steps` cut off."""
        return self._epoch_over

    def _batches(self, loader: Iterable[Any]) -> Generator[Any]:
        """The batches of this epoch, from where a checkpoint left off."""
        resume, self._resume = self._resume, None
        if resume is not None:
            self._epoch_rng = (int(resume["epoch_rng"][0]), int(resume["epoch_rng"][1]))
            set_rng_state(self._epoch_rng)
            restore_order(loader, resume["order"])
        self._epoch_rng, self._order = get_rng_state(), order_state(loader)
        self._whole_position = self._position() if resume is None else resume
        begin_order(loader, self.epoch)
        batches = iter(loader)
        if resume is not None and self._batch:
            for _ in range(self._batch):
                if next(batches, None) is None:
                    raise ValueError(f"The checkpoint was written after batch {self._batch}; the loader has fewer")
            set_rng_state((int(resume["rng"][0]), int(resume["rng"][1])))
        yield from batches

    def _train_batch(self, batch: Any, batches: int | None, val_loader: Iterable[Any] | None) -> bool:
        """Whether the batch was the last of its step."""
        config = self.config
        inputs, targets = split_batch(batch)
        self._tell("on_batch_begin", self._batch, {})
        last = (self._batch + 1) % config.accumulate_grad_batches == 0 or self._batch + 1 == batches
        size = batch_size(inputs)
        number = self._batch
        with self._interrupts.held():
            value = self._do(inputs, targets, last, size)
            self._tell("on_batch_end", number, {"loss": value, "size": size, "step": self.global_step, "stepped": last})
            self._whole_position = self._position()
        if last and config.max_steps is not None and self.global_step >= config.max_steps:
            self.stop(f"max_steps={config.max_steps} reached")
        if last and config.eval_interval and val_loader is not None and self.global_step % config.eval_interval == 0:
            self._validate(val_loader)
        due = last and config.checkpoint_steps and self.global_step % config.checkpoint_steps == 0
        if due and config.checkpoint_dir is not None:
            self._checkpoint()
        return last

    def _do(self, inputs: Any, targets: Any, last: bool, size: int) -> float:
        """The loss of a batch that was trained with; counts go on with it."""
        loss, outputs = self._step(inputs, targets, last=last, size=size)
        if self.metrics is not None:
            self.metrics.update(outputs, targets)
        value = float(loss.item())
        if not np.isfinite(value) and self._step.scaler is None:
            raise FloatingPointError(f"The loss is {value} at step {self.global_step} of epoch {self.epoch}")
        self._running.append(value)
        self.history.steps.append(value)
        self._batch += 1
        self.global_step += int(last)
        self._whole_position = self._position()
        return value

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


def _length(loader: Iterable[Any]) -> int | None:
    """How many batches there are, where the loader knows."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a loader of a stream without a length
        return None


def _collection(metrics: Any) -> MetricCollection | None:
    if metrics is None or isinstance(metrics, MetricCollection):
        return metrics
    return MetricCollection([metrics] if isinstance(metrics, Metric) else metrics)


def _numbers(metrics: MetricCollection | None) -> dict[str, float]:
    if metrics is None:
        return {}
    return {name: float(value) for name, value in metrics.compute().items() if np.ndim(value) == 0}
