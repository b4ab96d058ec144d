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
    """A function that gives a graph's share of right answers; without labels, of those equal to the model's."""
    from pyflame_rt.session import InferenceSession

    feeds = batches_of(graph, arrays, size)
    if not feeds:
        if labels is not None:
            raise typer.BadParameter("labels need --data", param_hint="--labels")
        return None

    def answers(which: Graph) -> np.ndarray[Any, Any]:
        with InferenceSession(which) as session:
            made = [next(a for a in session.run(None, feed) if a.dtype.kind == "f") for feed in feeds]
        return np.concatenate([a.reshape(-1, a.shape[-1]).argmax(axis=1) for a in made])

    expected = answers(graph) if labels is None else np.asarray(_load(labels, "--labels")).reshape(-1)
    found = len(answers(graph)) if labels is not None else len(expected)
    if len(expected) < found:
        raise typer.BadParameter(f"{len(expected)} labels for {found} answers", param_hint="--labels")
    return lambda which: float((answers(which) == expected[:found]).mean())
