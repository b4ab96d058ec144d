"""Inputs given on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import typer

from pyflame_rt.feeds import random_feed
from pyflame_rt.graph import Dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.graph import Graph, ValueType

__all__ = ["build_feed", "check_sizes", "parse_shapes", "parse_sizes"]


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Sizes of symbolic dimensions from ``N=4``.

    Example:
        >>> parse_sizes(["N=4"])
        {'N': 4}
    """
    sizes = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not number.isdigit():
            raise typer.BadParameter(f"{text!r} is not of the form NAME=NUMBER", param_hint="--size")
        sizes[name] = int(number)
    return sizes


def parse_shapes(texts: Sequence[str]) -> dict[str, list[int | None]]:
    """Shapes of inputs from ``x=1,3,?``.

    Example:
        >>> parse_shapes(["x=1,3,?"])
        {'x': [1, 3, None]}
    """
    shapes: dict[str, list[int | None]] = {}
    for text in texts:
        name, equals, listed = text.rpartition("=")
        parts = [part.strip() for part in listed.split(",")] if listed else []
        if not equals or not all(part == "?" or part.isdigit() for part in parts):
            raise typer.BadParameter(f"{text!r} is not of the form NAME=2,3,?", param_hint="--shape")
        shapes[name] = [None if part == "?" else int(part) for part in parts]
    return shapes


def build_feed(graph: Graph, files: Sequence[str], *, random: bool, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    """A feed from files; what is missing is made up when ``random``."""
    check_sizes(graph, sizes)
    feed: dict[str, Any] = {}
    for text in files:
        feed.update(_read(text, graph))
    if random:
        made = random_feed([i for i in graph.required_inputs if i.name not in feed], seed=seed, sizes=sizes)
        feed = {**made, **feed}
    return feed


def check_sizes(graph: Graph, sizes: dict[str, int]) -> None:
    """Refuse a size of a name that no input of the model has."""
    known = sorted({name for info in graph.inputs for name in _symbols(info.type)})
    for name in sizes:
        if name not in known:
            there = f"its inputs have {', '.join(known)}" if known else "all sizes of its inputs are fixed"
            raise typer.BadParameter(f"the model has no size {name!r}: {there}", param_hint="--size")


def _symbols(kind: ValueType) -> Iterator[str]:
    inner = getattr(kind, "elem", None)
    if inner is not None:
        yield from _symbols(inner)
    for dim in getattr(kind, "shape", None) or ():
        if isinstance(dim, Dim):
            yield from dim.symbols()


def _read(text: str, graph: Graph) -> dict[str, Any]:
    name, equals, rest = text.partition("=")
    path = Path(rest if equals else text)
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {str(path)!r}", param_hint="--input")
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = loaded if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise typer.BadParameter(f"{path.name} is no .npy or .npz file: {error}", param_hint="--input") from error
    if isinstance(arrays, np.ndarray):
        return {name if equals else _only_input(graph, path): arrays}
    if not equals:
        return arrays
    if name not in arrays and len(arrays) != 1:
        raise typer.BadParameter(f"{path.name} holds {', '.join(arrays)}, not {name!r}", param_hint="--input")
    return {name: arrays.get(name, next(iter(arrays.values())))}


def _only_input(graph: Graph, path: Path) -> str:
    names = [info.name for info in graph.required_inputs]
    if len(names) != 1:
        raise typer.BadParameter(
            f"say which input {path.name} is for: NAME={path.name}. Inputs: {', '.join(names)}", param_hint="--input"
        )
    return names[0]
