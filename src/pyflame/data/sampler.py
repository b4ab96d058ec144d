"""In which order samples are drawn, and how they are grouped."""

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from pyflame.arrays import as_generator
from pyflame.random import Generator
from pyflame_rt.graph.named_arguments import NamedArguments


class Sampler(NamedArguments):
    """An order of sample numbers: write `__iter__`, and `__len__` where it is known.

    Example:
        >>> from pyflame.data import Sampler
        >>> class Backwards(Sampler):
        ...     def __init__(self, data):
        ...         self.data = data
        ...     def __iter__(self):
        ...         return iter(range(len(self.data) - 1, -1, -1))
        >>> list(Backwards("abc"))
        [2, 1, 0]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must write __iter__")


class SequentialSampler(Sampler):
    """The numbers in order.

    Example:
        >>> from pyflame.data import SequentialSampler
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """The numbers shuffled anew each time, or drawn with replacement.

    Example:
        >>> from pyflame.data import RandomSampler
        >>> sorted(RandomSampler("abc", generator=0))
        [0, 1, 2]
        >>> len(list(RandomSampler("abc", replacement=True, num_samples=7)))
        7
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: np.random.Generator | Generator | int | None = None,
    ) -> None:
        if num_samples is not None and num_samples <= 0:
            raise ValueError(f"num_samples must be positive. Received: {num_samples}")
        self.data_source, self.replacement = data_source, replacement
        self._num_samples = num_samples
        self.generator = generator if generator is None else as_generator(generator)

    @property
    def num_samples(self) -> int:
        """How many numbers one pass draws."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        generator, size = as_generator(self.generator), len(self.data_source)
        if not size:
            return
        if self.replacement:
            yield from generator.integers(size, size=self.num_samples).tolist()
            return
        left = self.num_samples
        while left > 0:
            yield from generator.permutation(size)[:left].tolist()
            left -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given numbers, shuffled anew each time.

    Example:
        >>> from pyflame.data import SubsetRandomSampler
        >>> sorted(SubsetRandomSampler([5, 7]))
        [5, 7]
    """

    def __init__(self, indices: Sequence[int], generator: np.random.Generator | Generator | int | None = None) -> None:
        self.indices = indices
        self.generator = generator if generator is None else as_generator(generator)

    def __iter__(self) -> Iterator[int]:
        order = as_generator(self.generator).permutation(len(self.indices))
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Numbers drawn as often as their weights say.

    Example:
        >>> from pyflame.data import WeightedRandomSampler
        >>> set(WeightedRandomSampler([0.0, 1.0, 3.0], num_samples=50, generator=0)) <= {1, 2}
        True
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: np.random.Generator | Generator | int | None = None,
    ) -> None:
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise ValueError("weights must be a list of finite numbers that are not negative")
        if not self.weights.any():
            raise ValueError("weights must not all be zero")
        if num_samples <= 0:
            raise ValueError(f"num_samples must be positive. Received: {num_samples}")
        if not replacement and num_samples > np.count_nonzero(self.weights):
            raise ValueError(f"Only {np.count_nonzero(self.weights)} samples have a weight. Received: {num_samples}")
        self.num_samples, self.replacement = num_samples, replacement
        self.generator = generator if generator is None else as_generator(generator)

    def __iter__(self) -> Iterator[int]:
        shares = self.weights / self.weights.sum()
        drawn = as_generator(self.generator).choice(len(shares), self.num_samples, replace=self.replacement, p=shares)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """The numbers of another sampler in lists of `batch_size`.

    Example:
        >>> from pyflame.data import BatchSampler
        >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(f"batch_size must be a positive int. Received: {batch_size!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"{type(self.sampler).__name__} has no length")
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)


class DistributedSampler(Sampler):
    """The share of one process among several: equal sizes, no overlap, the same shuffle everywhere.

    Call `set_epoch` before each epoch, or every epoch has the same order.

    Example:
        >>> from pyflame.data import DistributedSampler
        >>> [list(DistributedSampler("abcde", num_replicas=2, rank=r, shuffle=False)) for r in range(2)]
        [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to {num_replicas - 1}. Received: {rank}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = list(range(size))
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(size).tolist()
        total = len(self) * self.num_replicas
        if total > size and size:
            order = (order * math.ceil(total / size))[:total]
        return iter(order[self.rank : total : self.num_replicas])

    def __len__(self) -> int:
        size = len(self.dataset)
        return size // self.num_replicas if self.drop_last else math.ceil(size / self.num_replicas)
