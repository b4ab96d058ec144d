"""The progress bar of a training, on standard error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(total: int, done: int = 0, console: Console | None = None) -> Iterator[Callable[[float], None]]:
    """A bar over all steps; what it gives is called with the loss of each.

    Example:
        >>> import io
        >>> with progress_bar(2, console=Console(file=io.StringIO())) as tell:
        ...     tell(0.5)
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=total, completed=done, note="")
        yield lambda loss: bar.update(task, advance=1, note=f"loss {loss:.4f}")
