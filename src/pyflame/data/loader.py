"""Batches from a dataset, made here or by worker processes."""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np

from pyflame.arrays import as_generator
from pyflame.data.collate import collate_arrays, to_tensors
from pyflame.data.dataset import IterableDataset
from pyflame.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from pyflame.data.workers import Job, WorkerPool, gather, load_batch, next_batch, rewind
from pyflame.random import Generator


class DataLoader:
    """Batches of a dataset, in order or shuffled, made in this process or ahead of time by others.

    Args:
        dataset: Samples by number, or an `IterableDataset`.
        batch_size: Samples in a batch; None gives single samples as they are.
        shuffle: Draw in a new order each time.
        sampler: An order of sample numbers, in place of `shuffle`.
        batch_sampler: Lists of sample numbers, in place of batch_size, shuffle, sampler and drop_last.
        num_workers: Processes that load ahead; 0 loads in this one. Results do not depend on it.
        collate_fn: Makes a batch of a list of samples; by default arrays are stacked into tensors.
        drop_last: Leave out a last batch that is not full.
        pin_memory: Has no effect, and a warning says so: there is no device memory to copy to.
        timeout: Seconds to wait for a worker's batch; 0 waits without end.
        worker_init_fn: Called in each worker with its number.
        generator: A NumPy generator, a `pf.Generator` or a seed for the order and the workers' seeds.
        prefetch_factor: Batches each worker holds ready.
        persistent_workers: Keep the workers between passes.

    Example:
        >>> import numpy as np
        >>> from pyflame.data import DataLoader, TensorDataset
        >>> data = TensorDataset(np.arange(5.0, dtype=np.float32), np.arange(5))
        >>> for x, y in DataLoader(data, batch_size=2):
        ...     print(x.numpy(), y.numpy())
        [0. 1.] [0 1]
        [2. 3.] [2 3]
        [4.] [4]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        *,
        generator: np.random.Generator | Generator | int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
    ) -> None:
        _check_numbers(num_workers, timeout, prefetch_factor)
        if pin_memory:
            warnings.warn("pin_memory has no effect: tensors live in the host's memory", stacklevel=2)
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.worker_init_fn, self.prefetch_factor = worker_init_fn, prefetch_factor
        self.persistent_workers = persistent_workers and num_workers > 0
        self.generator = generator if generator is None else as_generator(generator)
        self.iterable = isinstance(dataset, IterableDataset)
        if self.iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("An IterableDataset gives its own order: leave out shuffle, sampler and batch_sampler")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if sampler is not None and shuffle:
            raise ValueError("sampler excludes shuffle")
        if batch_size is None and drop_last:
            raise ValueError("drop_last needs a batch_size")
        self.sampler = sampler if sampler is not None or self.iterable else self._own_sampler(shuffle)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None:
            self.batch_sampler = BatchSampler(self.sampler or (), batch_size, drop_last)
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last = drop_last
        self._batched = self.batch_sampler is not None
        self.collate_fn = collate_fn or (collate_arrays if self._batched else _as_it_is)
        self._pool: WorkerPool | None = None

    def __iter__(self) -> Iterator[Any]:
        # Drawn whether or not there are workers, so that the order does not depend on their number.
        seed = int(as_generator(self.generator).integers(2**31))
        batches = self._from_workers(seed) if self.num_workers else self._from_here()
        return map(to_tensors, batches)

    def __len__(self) -> int:
        if self.iterable:
            if not isinstance(self.dataset, Sized):
                raise TypeError(f"{type(self.dataset).__name__} does not say how many samples it has")
            whole, rest = divmod(len(self.dataset), self.batch_size or 1)
            return whole + (1 if rest and not self.drop_last else 0)
        source = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if not isinstance(source, Sized):
            raise TypeError(f"{type(source).__name__} does not say how many batches it gives")
        return len(source)

    def close(self) -> None:
        """End persistent workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            self.close()

    def _own_sampler(self, shuffle: bool | None) -> Iterable[int]:
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    def _from_here(self) -> Iterator[Any]:
        if self.iterable:
            samples = iter(self.dataset)
            size = self.batch_size if self._batched else None
            while (taken := gather(samples, size, self.drop_last)) is not None:
                yield self.collate_fn(taken)
        elif self.batch_sampler is not None:
            for indices in self.batch_sampler:
                yield self.collate_fn([self.dataset[index] for index in indices])
        else:
            for index in self.sampler or ():
                yield self.collate_fn(self.dataset[index])

    def _from_workers(self, seed: int) -> Iterator[Any]:
        pool = self._pool or self._start(seed)
        if self.persistent_workers:
            self._pool = pool
        try:
            yield from self._streams(pool) if self.iterable else self._batches(pool)
        finally:
            if pool is not self._pool:
                pool.close()

    def _start(self, seed: int) -> WorkerPool:
        size = (self.batch_size or 0) if self._batched else None
        job = Job(self.dataset, self.collate_fn, self.worker_init_fn, size, self.drop_last)
        return WorkerPool(job, self.num_workers, seed, self.timeout)

    def _batches(self, pool: WorkerPool) -> Iterator[Any]:
        """Batches in the sampler's order, a window of them under way."""
        source = enumerate(self.batch_sampler if self.batch_sampler is not None else self.sampler or ())
        ahead = self.num_workers * self.prefetch_factor
        window = deque((n, pool.submit(n, load_batch, indices)) for n, indices in itertools.islice(source, ahead))
        while window:
            number, future = window.popleft()
            batch = pool.result(number, future)
            for n, indices in itertools.islice(source, 1):
                window.append((n, pool.submit(n, load_batch, indices)))
            yield batch

    def _streams(self, pool: WorkerPool) -> Iterator[Any]:
        """Batches of each worker's own iterator in turn, until all have ended."""
        for worker in range(self.num_workers):
            pool.result(worker, pool.submit(worker, rewind))
        turns = itertools.chain.from_iterable([range(self.num_workers)] * self.prefetch_factor)
        window = deque((worker, pool.submit(worker, next_batch)) for worker in turns)
        ended: set[int] = set()
        while window:
            worker, future = window.popleft()
            more, batch = pool.result(worker, future)
            if not more:
                ended.add(worker)
            elif worker not in ended:
                window.append((worker, pool.submit(worker, next_batch)))
                yield batch


def _as_it_is(sample: Any) -> Any:
    return sample


def _check_numbers(num_workers: int, timeout: float, prefetch_factor: int) -> None:
    if num_workers < 0:
        raise ValueError(f"num_workers must not be negative. Received: {num_workers}")
    if timeout < 0:
        raise ValueError(f"timeout must not be negative. Received: {timeout}")
    if prefetch_factor < 1:
        raise ValueError(f"prefetch_factor must be at least 1. Received: {prefetch_factor}")
