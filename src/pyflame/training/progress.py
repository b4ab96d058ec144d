"""The progress bar of a training run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyflame.training.callbacks import Callback

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["ProgressBar"]


class ProgressBar(Callback):
    """A bar for each epoch with loss, throughput and the time left, and one line for each epoch that has ended.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> from pyflame.training import ProgressBar
        >>> bar = ProgressBar(console=Console(file=io.StringIO()))
        >>> bar.console.file.getvalue()
        ''
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started, self._samples = 0.0, 0

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Show the bar."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self.console, transient=True)
        self._progress.start()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any]) -> None:
        """Begin a new bar."""
        if self._progress is None:
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        title = f"epoch {epoch + 1}/{logs.get('epochs', '?')}"
        self._task = self._progress.add_task(title, total=logs.get("batches"), note="")
        self._started, self._samples = time.perf_counter(), 0

    def on_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Move on; the loss is read only as often as the config says."""
        if self._progress is None or self._task is None:
            return
        self._samples += int(logs.get("size", 0))
        if (batch + 1) % self.trainer.config.log_interval == 0:
            speed = self._samples / max(time.perf_counter() - self._started, 1e-9)
            loss = float(logs["loss"])
            self._progress.update(self._task, completed=batch + 1, note=f"loss {loss:.4f}  {speed:,.0f} samples/s")
        else:
            self._progress.update(self._task, completed=batch + 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Leave a line behind."""
        if self._progress is None:
            return
        seconds = time.perf_counter() - self._started
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in logs.items() if isinstance(value, float))
        speed = self._samples / max(seconds, 1e-9)
        self._progress.console.print(
            f"epoch {epoch + 1}  {numbers}  {speed:,.0f} samples/s  {seconds:.1f} s", highlight=False
        )

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._task = None, None
