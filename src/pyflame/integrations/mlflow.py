"""Training runs in MLflow."""

from __future__ import annotations

from typing import Any

from pyflame.integrations.logged import needed, numbers, save_model, settings
from pyflame.training.callbacks import Callback

__all__ = ["MLflowCallback"]


class MLflowCallback(Callback):
    """Sends what a Trainer measures to MLflow; needs the package ``mlflow``.

    Args:
        tracking_uri: Where the server, or the folder, is.
        experiment_name: The experiment a run belongs to.
        run_name: Of the run.
        log_models: Keep the weights as an artifact at the end.
        log_params: Send the settings.
        log_metrics_every_n_steps: Steps between two records within an epoch.
        nested: The run may lie inside another.
        tags: Of the run.

    Raises:
        MissingExtra: the package is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str | None = None,
        run_name: str | None = None,
        log_models: bool = True,
        log_params: bool = True,
        log_metrics_every_n_steps: int = 1,
        nested: bool = False,
        tags: dict[str, str] | None = None,
    ) -> None:
        if log_metrics_every_n_steps < 1:
            raise ValueError(f"log_metrics_every_n_steps must be at least 1. Received: {log_metrics_every_n_steps}")
        self._mlflow = needed("mlflow", "MLflowCallback")
        self.tracking_uri, self.experiment_name, self.run_name = tracking_uri, experiment_name, run_name
        self.log_models, self.log_params, self.nested = log_models, log_params, nested
        self.every, self.tags = log_metrics_every_n_steps, dict(tags or {})
        self._own = False
        self._active = False

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Begin a run, or go on with the one that is active."""
        if self.tracking_uri is not None:
            self._mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment_name is not None:
            self._mlflow.set_experiment(self.experiment_name)
        self._own = self.nested or self._mlflow.active_run() is None
        if self._own:
            self._mlflow.start_run(run_name=self.run_name, nested=self.nested)
        self._active = True
        if self.tags:
            self._mlflow.set_tags(self.tags)
        if self.log_params:
            self._mlflow.log_params(
                {name: value for name, value in settings(self.trainer).items() if value is not None}
            )

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Send the numbers of a step, every so often."""
        step = self.trainer.global_step
        if self._active and step % self.every == 0:
            self._mlflow.log_metrics(numbers(logs, "batch_"), step=step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Send the numbers of an epoch."""
        if self._active:
            self._mlflow.log_metrics({**numbers(logs), "lr": self.trainer.optimizer.get_lr()}, step=epoch)

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Keep the weights where that is wanted, and end a run that was begun here."""
        if not self._active:
            return
        if self.log_models:
            folder, path = save_model(self.trainer, "model")
            with folder:
                self._mlflow.log_artifact(str(path), artifact_path="model")
        if self._own:
            self._mlflow.end_run()
        self._active = False
