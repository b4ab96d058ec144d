"""Training runs in Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.integrations.logged import needed, numbers, save_model, settings
from pyflame.training.callbacks import Callback

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WandbCallback"]


class WandbCallback(Callback):
    """Sends what a Trainer measures to Weights & Biases; needs the package ``wandb``.

    Args:
        project: The project a run belongs to.
        entity: The user or team.
        name: Of the run.
        config: Settings to show, besides the trainer's own.
        tags: Of the run.
        notes: Of the run.
        log_model: Keep the weights as an artifact at the end.
        log_parameters: Send histograms of the parameters after each epoch.
        log_freq: Batches between two records.

    Raises:
        MissingExtra: the package is not installed.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        log_model: bool = False,
        log_parameters: bool = False,
        log_freq: int = 1,
    ) -> None:
        if log_freq < 1:
            raise ValueError(f"log_freq must be at least 1. Received: {log_freq}")
        self._wandb = needed("wandb", "WandbCallback")
        self._init = {"project": project, "entity": entity, "name": name, "tags": tags, "notes": notes}
        self.config = dict(config or {})
        self.log_model, self.log_parameters, self.log_freq = log_model, log_parameters, log_freq
        self.run: Any = None
        self._own = False

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Begin a run, or go on with the one that is active."""
        self.run = self._wandb.run
        self._own = self.run is None
        config = {**settings(self.trainer), **self.config}
        if self._own:
            given = {name: value for name, value in self._init.items() if value is not None}
            self.run = self._wandb.init(config=config, **given)
        else:
            self.run.config.update(config, allow_val_change=True)

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Send the numbers of a batch, every so often."""
        if self.run is not None and batch % self.log_freq == 0:
            self.run.log({**numbers(logs, "batch/"), "global_step": self.trainer.global_step})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Send the numbers of an epoch."""
        if self.run is None:
            return
        record: dict[str, Any] = {**numbers(logs), "epoch": epoch, "lr": self.trainer.optimizer.get_lr()}
        if self.log_parameters:
            for name, parameter in self.trainer.model.named_parameters():
                record[f"parameters/{name}"] = self._wandb.Histogram(parameter.numpy())
        self.run.log(record)

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Keep the weights where that is wanted, and end a run that was begun here."""
        if self.run is None:
            return
        if self.log_model:
            name = type(self.trainer.model).__name__
            folder, path = save_model(self.trainer, name)
            with folder:
                artifact = self._wandb.Artifact(name, type="model")
                artifact.add_file(str(path))
                self.run.log_artifact(artifact)
                if hasattr(artifact, "wait"):
                    artifact.wait()  # the file goes with its folder
        if self._own:
            self.run.finish()
        self.run = None
