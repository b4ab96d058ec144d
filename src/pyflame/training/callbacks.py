"""What may happen besides the training itself."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pyflame.optim import LRScheduler, ReduceLROnPlateau
from pyflame_rt.graph.named_arguments import NamedArguments

if TYPE_CHECKING:
    from pyflame.training.trainer import Trainer

__all__ = ["CSVLogger", "Callback", "EarlyStopping", "LearningRateScheduler", "ModelCheckpoint"]


class Callback(NamedArguments):
    """Called as training goes on: overwrite the methods that matter. `self.trainer` is set before the first call.

    Example:
        >>> from pyflame.training import Callback
        >>> class Bell(Callback):
        ...     def on_epoch_end(self, epoch, logs):
        ...         print("epoch", epoch, "ended")
        >>> Bell().on_epoch_end(0, {})
        epoch 0 ended
    """

    trainer: Trainer

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Before the first epoch."""

    def on_train_end(self, logs: dict[str, Any]) -> None:
        """After the last epoch, also when training was interrupted."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any]) -> None:
        """Before an epoch (the first is 0)."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """After an epoch and its validation; logs hold what was measured."""

    def on_batch_begin(self, batch: int, logs: dict[str, Any]) -> None:
        """Before a batch."""

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """After a batch; logs hold its loss and size, the steps done, and whether it ended one (`stepped`)."""

    def on_validation_end(self, logs: dict[str, Any]) -> None:
        """After a validation."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should keep for this callback."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class _Best:
    """The best value so far of a measure."""

    def __init__(self, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max. Received: {mode!r}")
        self.mode, self.min_delta = mode, abs(min_delta)
        self.value = math.inf if mode == "min" else -math.inf

    def takes(self, value: float) -> bool:
        """Whether a value is the best so far; it is remembered then."""
        better = value < self.value - self.min_delta if self.mode == "min" else value > self.value + self.min_delta
        if better:
            self.value = value
        return better


def _measured(logs: dict[str, Any], name: str, who: str) -> float:
    if name not in logs:
        raise KeyError(f"{who} watches {name!r}, which was not measured; there are: {', '.join(sorted(logs))}")
    return float(logs[name])


class EarlyStopping(Callback):
    """Ends training when a measure has not become better for `patience` epochs.

    Args:
        monitor: The measure's name in the logs.
        patience: Epochs to wait.
        mode: Whether less or more is better.
        min_delta: By how much it must become better to count.
        restore_best_weights: Put the weights of the best epoch back at the end.

    Example:
        >>> from pyflame.training import EarlyStopping
        >>> EarlyStopping(monitor="val_loss", patience=3).patience
        3
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 10,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        restore_best_weights: bool = True,
    ) -> None:
        self.monitor, self.patience, self.restore_best_weights = monitor, patience, restore_best_weights
        self._best, self.wait, self.stopped_epoch = _Best(mode, min_delta), 0, None
        self._weights: dict[str, Any] | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Compare, and ask the trainer to stop where it is time; an epoch that was cut off does not count."""
        if not self.trainer.epoch_finished:
            return
        if self._best.takes(_measured(logs, self.monitor, "EarlyStopping")):
            self.wait = 0
            if self.restore_best_weights:
                self._weights = {k: v.clone() for k, v in self.trainer.model.state_dict().items()}
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self.trainer.stop(f"{self.monitor} has not become better for {self.wait} epochs")

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Put the best weights back."""
        if self._weights is not None:
            self.trainer.model.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """The best value, how long ago it was, and its weights."""
        return {"best": self._best.value, "wait": self.wait, "weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._best.value, self.wait, self._weights = state["best"], state["wait"], state["weights"]


class ModelCheckpoint(Callback):
    """Writes the model after an epoch, always or only when a measure is at its best.

    Args:
        filepath: May hold names in braces, such as "model-{epoch:02d}-{val_loss:.3f}.pf".
        monitor: The measure's name in the logs.
        mode: Whether less or more is better.
        save_best_only: Write only when the measure is at its best.
        save_weights_only: The weights alone, which `pf.load` reads; else the whole state, for `load_checkpoint`.

    Example:
        >>> from pyflame.training import ModelCheckpoint
        >>> ModelCheckpoint("best.pf", save_best_only=True).monitor
        'val_loss'
    """

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        mode: Literal["min", "max"] = "min",
        save_best_only: bool = False,
        save_weights_only: bool = False,
    ) -> None:
        self.filepath, self.monitor = str(filepath), monitor
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self._best = _Best(mode)
        self.last_path: Path | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Write, where there is reason to."""
        if self.save_best_only and not self._best.takes(_measured(logs, self.monitor, "ModelCheckpoint")):
            return
        path = Path(self.filepath.format(**{**logs, "epoch": epoch + 1}))
        if self.save_weights_only:
            self.trainer.save_weights(path)
        else:
            self.trainer.save_checkpoint(path)
        self.last_path = path

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self._best.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._best.value = state["best"]


class LearningRateScheduler(Callback):
    """Moves a scheduler on after each epoch, or after each step of the optimizer.

    Example:
        >>> import pyflame as pf
        >>> sgd = pf.optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        >>> callback = pf.training.LearningRateScheduler(pf.optim.ExponentialLR(sgd, gamma=0.5))
        >>> callback.on_epoch_end(0, {})
        >>> sgd.get_lr()
        0.5
    """

    def __init__(
        self, scheduler: LRScheduler, monitor: str = "val_loss", interval: Literal["epoch", "step"] = "epoch"
    ) -> None:
        if interval not in ("epoch", "step"):
            raise ValueError(f"interval must be epoch or step. Received: {interval!r}")
        self.scheduler, self.monitor, self.interval = scheduler, monitor, interval

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """One step, where the interval is a step."""
        if self.interval == "step" and logs.get("stepped", True):
            self._move(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """One step, where the interval is an epoch; one that was cut off does not count."""
        if self.interval == "epoch" and (self._trainer() is None or self.trainer.epoch_finished):
            self._move(logs)

    def _trainer(self) -> Trainer | None:
        return getattr(self, "trainer", None)

    def _move(self, logs: dict[str, Any]) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(_measured(logs, self.monitor, "LearningRateScheduler"))
        else:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.scheduler.load_state_dict(state)


class CSVLogger(Callback):
    """One line for each epoch in a table that spreadsheets read.

    Example:
        >>> import tempfile, pathlib
        >>> from pyflame.training import CSVLogger
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> logger = CSVLogger(path)
        >>> logger.on_train_begin({}); logger.on_epoch_end(0, {"loss": 0.5}); logger.on_train_end({})
        >>> path.read_text().split()
        ['epoch,loss', '0,0.5']
    """

    def __init__(self, path: str | Path, separator: str = ",", append: bool = False) -> None:
        self.path, self.separator, self.append = Path(path), separator, append
        self._file: TextIO | None = None
        self._names: list[str] | None = None

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Open the file; the columns of one that is continued stay as they are."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._names = None
        if self.append and self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="") as file:
                self._names = next(csv.reader(file, delimiter=self.separator))
        self._file = self.path.open("a" if self.append else "w", newline="")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Write a line."""
        if self._file is None:
            raise RuntimeError("CSVLogger writes between on_train_begin and on_train_end")
        writer = csv.writer(self._file, delimiter=self.separator, lineterminator="\n")
        row = {"epoch": epoch, **logs}
        if self._names is None:
            self._names = list(row)
            writer.writerow(self._names)
        writer.writerow([row.get(name, "") for name in self._names])
        self._file.flush()

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
