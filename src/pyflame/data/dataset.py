"""Where samples come from."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from pyflame.arrays import as_generator
from pyflame.random import Generator
from pyflame_rt.graph.named_arguments import NamedArguments, names_arguments
from pyflame_rt.graph.tensor import whole

T = TypeVar("T")
U = TypeVar("U")


class Dataset(NamedArguments, ABC, Generic[T]):
    """Samples by number: write `__getitem__` and `__len__`.

    Example:
        >>> from pyflame.data import Dataset
        >>> class Squares(Dataset):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return index**2
        >>> list(Squares() + Squares())
        [0, 1, 4, 9, 0, 1, 4, 9]
    """

    @abstractmethod
    def __getitem__(self, index: int) -> T:
        """The sample with this number."""

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say how many samples it has; write __len__")

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: "Dataset[T]") -> "ConcatDataset[T]":
        return ConcatDataset([self, other])


class IterableDataset(NamedArguments, ABC, Generic[T]):
    """Samples in a row, without numbers: write `__iter__`.

    With several workers each has its own copy: `get_worker_info()` in `__iter__` tells it which share is its own.

    Example:
        >>> from pyflame.data import DataLoader, IterableDataset
        >>> class Count(IterableDataset):
        ...     def __iter__(self):
        ...         return iter(range(3))
        >>> [batch.numpy().tolist() for batch in DataLoader(Count(), batch_size=2)]
        [[0, 1], [2]]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """All samples, from the first."""

    def __add__(self, other: "IterableDataset[T]") -> "ChainDataset[T]":
        return ChainDataset([self, other])


class ChainDataset(IterableDataset[T]):
    """Iterable datasets one after the other.

    Example:
        >>> from pyflame.data import ChainDataset
        >>> list(ChainDataset([[1, 2], [3]]))
        [1, 2, 3]
    """

    def __init__(self, datasets: Iterable[Iterable[T]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self.datasets)


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Arrays or tensors cut along their first axis: sample `i` is the tuple of their rows `i`.

    Example:
        >>> import numpy as np
        >>> from pyflame.data import TensorDataset
        >>> pairs = TensorDataset(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
        >>> len(pairs), [part.tolist() for part in pairs[1]]
        (3, [[2, 3], 8])
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ValueError("TensorDataset needs at least one tensor")
        self.tensors = tuple(whole(tensor, "the tensor") for tensor in tensors)
        if len({len(tensor) if tensor.ndim else -1 for tensor in self.tensors}) > 1 or not self.tensors[0].ndim:
            shapes = [list(tensor.shape) for tensor in self.tensors]
            raise ValueError(f"All tensors must have the same first size. Received: {shapes}")

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[T]):
    """The samples of a dataset with the given numbers, in that order.

    Example:
        >>> from pyflame.data import Subset
        >>> list(Subset("abcd", [3, 0]))
        ['d', 'a']
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> T:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T]):
    """Datasets one after the other, numbered through.

    Example:
        >>> from pyflame.data import ConcatDataset
        >>> both = ConcatDataset(["ab", "cde"])
        >>> len(both), both[3], both[-1]
        (5, 'd', 'e')
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> T:
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} is outside of {len(self)} samples")
        which = bisect.bisect_right(self.cumulative_sizes, number)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][number - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class MapDataset(Dataset[U]):
    """A dataset seen through a function.

    Example:
        >>> from pyflame.data import MapDataset
        >>> list(MapDataset([1, 2, 3], lambda x: 10 * x))
        [10, 20, 30]
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], U]) -> None:
        self.dataset, self.fn = dataset, fn

    def __getitem__(self, index: int) -> U:
        return self.fn(self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)


@names_arguments
def random_split(
    dataset: Any,
    lengths: Sequence[int] | Sequence[float],
    generator: np.random.Generator | Generator | int | None = None,
) -> list[Subset[Any]]:
    """Cut a dataset at random into parts that share no sample.

    Args:
        dataset: Anything with a length and numbered samples.
        lengths: Sizes that add up to the dataset's, or fractions that add up to 1 (what rounding leaves over goes to
            the parts in turn).
        generator: A NumPy generator, a `pf.Generator` or a seed; drawn from `pf.manual_seed`'s generator when left out.

    Example:
        >>> from pyflame.data import random_split
        >>> [len(part) for part in random_split(range(10), [0.75, 0.25], generator=0)]
        [8, 2]
    """
    sizes = _sizes(len(dataset), lengths)
    order = as_generator(generator).permutation(len(dataset)).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _sizes(total: int, lengths: Sequence[int] | Sequence[float]) -> list[int]:
    if any(length < 0 for length in lengths):
        raise ValueError(f"lengths must not be negative. Received: {list(lengths)}")
    if all(isinstance(length, int | np.integer) for length in lengths) and sum(lengths) == total:
        return [int(length) for length in lengths]
    if not np.isclose(sum(lengths), 1.0):
        raise ValueError(f"lengths must add up to {total} samples or to 1. Received: {list(lengths)}")
    sizes = [int(total * length) for length in lengths]
    for extra in range(total - sum(sizes)):
        sizes[extra % len(sizes)] += 1
    return sizes
