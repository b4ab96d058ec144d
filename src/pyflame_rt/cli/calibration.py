"""Data for calibration on the command line: arrays whose first axis counts samples, in batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Graph

__all__ = ["batches_of", "read_data", "scorer"]

BATCH = 32


def read_data(graph: Graph, texts: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by input from ``NAME=FILE.npy``, ``FILE.npy`` or ``FILE.npz``; files of one array are mapped, not read."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    names = [info.name for info in graph.required_inputs]
    for text in texts:
        name, equals, rest = text.partition("=")
        loaded = _load(Path(rest if equals else text), "--data")
        if not isinstance(loaded, np.ndarray):
            arrays |= loaded
        elif equals or len(names) == 1:
            arrays[name if equals else names[0]] = loaded
        else:
            raise typer.BadParameter(f"say which input {text} is for: NAME={text}", param_hint="--data")
    for name in arrays:
        if name not in names:
            raise typer.BadParameter(f"the model has no input {name!r}: {', '.join(names)}", param_hint="--data")
    missing = [name for name in names if name not in arrays]
    if arrays and missing:
        raise typer.BadParameter(f"there is no data for {', '.join(missing)}", param_hint="--data")
    counts = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise typer.BadParameter(f"the inputs have different numbers of samples: {counts}", param_hint="--data")
    return arrays


def _load(path: Path, hint: str) -> Any:
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {str(path)!r}", param_hint=hint)
    try:
        loaded = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise typer.BadParameter(f"{path.name} is no .npy or .npz file: {error}", param_hint=hint) from error


def batches_of(graph: Graph, arrays: dict[str, np.ndarray[Any, Any]], size: int) -> list[dict[str, Any]]:
    """Feeds of ``size`` samples; 0 for the size that the model asks for, or 32. Samples left over are dropped then."""
    if not arrays:
        return []
    firsts = [info.shape[0] for info in graph.required_inputs if info.name in arrays and info.shape]
    fixed = [first for first in firsts if isinstance(first, int)]
    step = size or (min(fixed) if fixed else BATCH)
    count = len(next(iter(arrays.values())))
    if count < step and fixed:
        raise typer.BadParameter(f"a batch of the model has {step} samples, the data {count}", param_hint="--data")
    end = count - count % step if fixed else count
    return [{name: a[i : i + step] for name, a in arrays.items()} for i in range(0, end, step)]


def scorer(
    graph: Graph, arrays: dict[str, np.ndarray[Any, Any]], labels: Path | None, size: int
) -> Callable[[Graph], float] | None:
    """A function that gives a graph's share of right answers; without labels, of those equal to the model's.

    None where nothing can be counted: there are no data, or neither labels nor scores of classes.
    """
    from pyflame_rt.session import InferenceSession

    feeds = batches_of(graph, arrays, size)
    if not feeds:
        if labels is not None:
            raise typer.BadParameter("labels need --data", param_hint="--labels")
        return None
    if labels is None and not _classes(graph, feeds[0]):
        return None

    def answers(which: Graph) -> np.ndarray[Any, Any]:
        with InferenceSession(which) as session:
            made = [_scores(session.run(None, feed)) for feed in feeds]
        return np.concatenate([a.reshape(-1, a.shape[-1]).argmax(axis=1) for a in made])

    mine = answers(graph)
    expected = mine if labels is None else _labels(labels, len(next(iter(arrays.values()))), len(mine))
    return lambda which: float((answers(which) == expected).mean())


def _scores(outputs: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The first output that can be scores of classes: of a row of numbers, samples may be what it counts."""
    for array in outputs:
        if array.dtype.kind == "f" and array.ndim > 1 and array.shape[-1] > 1:
            return array
    raise typer.BadParameter("no output of the model has scores of classes: two numbers or more, along its last axis")


def _classes(graph: Graph, feed: dict[str, Any]) -> bool:
    """Whether the model has answers to count."""
    from pyflame_rt.session import InferenceSession

    try:
        with InferenceSession(graph) as session:
            _scores(session.run(None, feed))
    except typer.BadParameter:
        return False
    return True


def _labels(path: Path, samples: int, answers: int) -> np.ndarray[Any, Any]:
    """The right answers of all samples that are run."""
    labels = _load(path, "--labels")
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or not labels.ndim:
        what = f"{labels.dtype} numbers" if isinstance(labels, np.ndarray) else "several arrays"
        wanted = "a .npy file of the numbers of classes is needed"
        raise typer.BadParameter(f"{path.name} holds {what}: {wanted}", param_hint="--labels")
    if len(labels) != samples or labels.size < answers or labels.size % samples:
        wanted = f"{answers} answers to {samples} samples"
        raise typer.BadParameter(
            f"{len(labels)} labels of shape {list(labels.shape)} for {wanted}", param_hint="--labels"
        )
    return np.asarray(labels).reshape(-1)[:answers]
