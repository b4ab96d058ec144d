"""Training data: samples in memory, and batches of one size drawn from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Tensor
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.graph import Graph

__all__ = ["InMemoryDataset", "Rows", "rows_of"]

Array = np.ndarray[Any, Any]


class InMemoryDataset:
    """Samples, each a feed by input name and perhaps a label.

    A sample with as many axes as the model's input is a batch: its rows are the samples, and are batched anew.

    Example:
        >>> data = InMemoryDataset()
        >>> data.add_sample({"input": np.zeros((8, 3), np.float32)}, labels=np.arange(8))
        >>> data.size(), len(data.get_batch(0, 4))
        (1, 1)
    """

    def __init__(self) -> None:
        self._samples: list[tuple[dict[str, Array], Array | None]] = []

    def add_sample(self, inputs: Mapping[str, Any], labels: Any = None) -> None:
        """Add a sample, or a batch of them."""
        if not isinstance(inputs, Mapping) or not inputs:
            raise InputError(f"a sample is a mapping from input names to arrays, got {type(inputs).__name__}")
        given = {name: _array(value) for name, value in inputs.items()}
        self._samples.append((given, None if labels is None else _array(labels)))

    def size(self) -> int:
        """How often something was added."""
        return len(self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    def clear(self) -> None:
        """Forget all samples."""
        self._samples.clear()

    def shuffle(self, seed: int = 0) -> None:
        """Put the samples into a random order."""
        order = np.random.default_rng(seed).permutation(len(self._samples))
        self._samples = [self._samples[i] for i in order]

    def get_batch(self, start: int, count: int) -> list[tuple[dict[str, Array], Array | None]]:
        """Samples as they were added: inputs and labels."""
        return self._samples[start : start + count]


def _array(value: Any) -> Array:
    return value.numpy() if isinstance(value, Tensor) else np.asarray(value)


@dataclass(slots=True)
class Rows:
    """All samples as one array for each input, and one of labels."""

    inputs: dict[str, Array]
    labels: Array | None = None
    fixed_batch: int | None = None
    _order: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batch_size(self, wanted: int) -> int:
        """Rows of a batch: what the graph has fixed, or what is wanted, or all there are."""
        return self.fixed_batch or min(wanted, len(self))

    def take(self, index: Array) -> tuple[dict[str, Array], Array | None]:
        """Some of the rows."""
        return {n: a[index] for n, a in self.inputs.items()}, None if self.labels is None else self.labels[index]

    def batches(self, size: int, rng: np.random.Generator | None) -> Iterator[tuple[dict[str, Array], Array | None]]:
        """Batches of one size; the last is filled up from the beginning."""
        count = len(self)
        order = np.arange(count) if rng is None else rng.permutation(count)
        for start in range(0, count, size):
            yield self.take(np.resize(np.roll(order, -start), size))

    def plain_batches(self, size: int) -> Iterator[tuple[dict[str, Array], Array | None]]:
        """Batches in order, the last as short as it is."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))


def rows_of(graph: Graph, data: Any) -> Rows:
    """Data in any accepted form, as rows that fit the inputs of a graph.

    Args:
        graph: whose inputs say how many axes a batch has.
        data: an InMemoryDataset, a pair of inputs and labels, a mapping of inputs, or an iterable of such pairs.
            Inputs may be an array where the graph has one input.
    """
    infos = {info.name: info for info in graph.required_inputs}
    samples = _samples(data, list(infos))
    if not samples:
        raise InputError("there is no data to train with: the dataset is empty")
    inputs: dict[str, list[Array]] = {name: [] for name in infos}
    labels: list[Array] = []
    for given, label in samples:
        _check_names(given, infos)
        batch = True
        for name, array in given.items():
            shape = infos[name].shape
            batch = shape is None or array.ndim >= len(shape)
            row = array if batch else array[None]
            inputs[name].append(np.ascontiguousarray(row, dtype=infos[name].dtype.numpy))
        if label is not None:
            labels.append(np.atleast_1d(label) if batch else np.asarray(label)[None])
    return _joined(infos, inputs, labels, len(samples))


def _joined(infos: Any, inputs: dict[str, list[Array]], labels: list[Array], samples: int) -> Rows:
    try:
        whole = {name: np.concatenate(parts) for name, parts in inputs.items()}
        answers = np.concatenate(labels) if labels else None
    except ValueError as error:
        raise ShapeMismatchError(f"samples have different sizes: {error}") from error
    if labels and len(labels) != samples:
        raise InputError(f"{len(labels)} of {samples} samples have labels: give labels to all of them, or to none")
    counts = {name: len(array) for name, array in whole.items()} | ({} if answers is None else {"labels": len(answers)})
    if len(set(counts.values())) != 1 or not next(iter(counts.values())):
        raise ShapeMismatchError(f"inputs and labels have different numbers of rows, or none: {counts}")
    if answers is not None and answers.dtype.kind in "iu":
        answers = answers.astype(np.int64)
    sizes = {info.shape[0] for info in infos.values() if info.shape}
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    return Rows(whole, answers, fixed)


def _samples(data: Any, names: list[str]) -> list[tuple[dict[str, Array], Array | None]]:
    if isinstance(data, InMemoryDataset):
        return data.get_batch(0, data.size())
    if isinstance(data, Rows):
        return [(data.inputs, data.labels)]
    if isinstance(data, Mapping):
        return [_pair((data, None), names)]
    if isinstance(data, tuple) and len(data) == 2:
        return [_pair(data, names)]
    if isinstance(data, Iterable) and not isinstance(data, np.ndarray):
        return [_pair(item if isinstance(item, tuple) else (item, None), names) for item in data]
    raise InputError(
        f"data is an InMemoryDataset, (inputs, labels), a mapping of inputs, or an iterable of these; "
        f"got {type(data).__name__}"
    )


def _pair(item: Any, names: list[str]) -> tuple[dict[str, Array], Array | None]:
    inputs, labels = item
    if not isinstance(inputs, Mapping):
        if len(names) != 1:
            raise InputError(f"the model has the inputs {', '.join(names)}: give them by name")
        inputs = {names[0]: inputs}
    return {name: _array(value) for name, value in inputs.items()}, None if labels is None else _array(labels)


def _check_names(given: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
    if set(given) != set(infos):
        raise InputError(f"a sample has the inputs {', '.join(given)}; the model needs {', '.join(infos)}")
