"""Processes that load samples ahead of their use."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as LateError
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from pyflame.data.collate import to_arrays
from pyflame.interrupts import Uninterrupted
from pyflame.random import manual_seed
from pyflame_rt.graph.named_arguments import names_arguments


class DataLoaderWorkerError(RuntimeError):
    """A worker process of a DataLoader died or did not answer in time."""


class WorkerInfo(NamedTuple):
    """Which of the workers this process is."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class Job(NamedTuple):
    """What a worker needs to make batches; sent to it once."""

    dataset: Any
    collate: Callable[[list[Any]], Any]
    worker_init: Callable[[int], None] | None
    batch_size: int | None
    drop_last: bool


class _State:
    """What one worker process keeps between batches."""

    info: WorkerInfo | None = None
    job: Job | None = None
    samples: Iterator[Any] | None = None


_state = _State()


@names_arguments
def get_worker_info() -> WorkerInfo | None:
    """In a worker of a DataLoader: its number, how many there are, its seed, its dataset; elsewhere None.

    Example:
        >>> from pyflame.data import get_worker_info
        >>> get_worker_info() is None
        True
    """
    return _state.info


def start_worker(job: Job, number: int, total: int, seed: int) -> None:
    """Set up a worker process: seeds, then the user's own function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the loader's ends us
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    _state.job, _state.info = job, WorkerInfo(number, total, seed, job.dataset)
    manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - users' transforms may draw from NumPy's global generator
    if job.worker_init is not None:
        job.worker_init(number)


def _end_with(parent: Any) -> None:
    """End when the process that loads ends, however that happens."""
    if parent is not None:
        parent.join()
        os._exit(1)


def _told(task: Callable[..., Any], *args: Any) -> Any:
    """In a worker: do a task; an exception that could not be sent is told of by one that can."""
    try:
        return task(*args)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - whatever its own code raises
            text = "".join(traceback.format_exception(error))
            number = -1 if _state.info is None else _state.info.id
            raise DataLoaderWorkerError(f"DataLoader worker {number} failed:\n{text}") from None
        raise


def load_batch(indices: Any) -> Any:
    """In a worker: the batch of these sample numbers (one number where batching is off)."""
    job = _state.job
    assert job is not None
    if job.batch_size is None:
        return to_arrays(job.collate(job.dataset[indices]))
    return to_arrays(job.collate([job.dataset[index] for index in indices]))


def rewind() -> None:
    """In a worker: begin the iterable dataset anew."""
    assert _state.job is not None
    _state.samples = iter(_state.job.dataset)


def next_batch(_: Any = None) -> tuple[bool, Any]:
    """In a worker: whether there is another batch of the iterable dataset, and that batch."""
    job, samples = _state.job, _state.samples
    assert job is not None
    assert samples is not None
    taken = gather(samples, job.batch_size, job.drop_last)
    return (False, None) if taken is None else (True, to_arrays(job.collate(taken)))


def gather(samples: Iterator[Any], batch_size: int | None, drop_last: bool) -> Any:
    """The next samples of an iterator as a list (one alone where batching is off); None at the end."""
    if batch_size is None:
        return next(samples, None)
    taken: list[Any] = []
    for sample in samples:
        taken.append(sample)
        if len(taken) == batch_size:
            return taken
    return taken if taken and not drop_last else None


def _context() -> Any:
    """How processes begin: as copies of a server that has read this package once, or afresh where there is none."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


_pools: "WeakSet[WorkerPool]" = WeakSet()
# Threads of executors that were told to end, and the processes they wait for.
_ending: "WeakKeyDictionary[threading.Thread, list[Any]]" = WeakKeyDictionary()
_PATIENCE = 5.0  # seconds for a process to end when it is asked to; then it is made to


def _close_all() -> None:
    """At the program's end: executors would wait for samples that nobody wants any more.

    Their threads have ended afterwards: executors write to all that have not, which fails in one that is just ending.
    """
    for pool in list(_pools):
        pool.close()
    for thread, processes in list(_ending.items()):
        thread.join(_PATIENCE)
        for process in processes if thread.is_alive() else ():
            process.kill()
        thread.join()


# Executors have theirs called in the same place, last registered first; functions of `atexit` come after that.
_at_end: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
if _at_end is not None:
    _at_end(_close_all)


class WorkerPool:
    """One single-process executor for each worker, so that batch `i` is always made by worker `i % n`."""

    def __init__(self, job: Job, num_workers: int, seed: int, timeout: float) -> None:
        self.timeout = timeout or None
        self.executors = [
            ProcessPoolExecutor(1, _context(), start_worker, (job, number, num_workers, seed + number))
            for number in range(num_workers)
        ]
        _pools.add(self)

    def submit(self, worker: int, task: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Hand a task to one worker."""
        try:
            with Uninterrupted():  # the first task starts the process, which must be known to be ended
                return self.executors[worker % len(self.executors)].submit(_told, task, *args)
        except BrokenExecutor as error:
            raise self._died(worker) from error

    def result(self, worker: int, future: "Future[Any]") -> Any:
        """Wait for a task; the task's own exceptions pass through."""
        try:
            return future.result(self.timeout)
        except BrokenExecutor as error:
            raise self._died(worker) from error
        except LateError as error:
            if future.done():
                raise
            raise DataLoaderWorkerError(f"DataLoader worker {worker} gave no batch for {self.timeout} s") from error

    def close(self) -> None:
        """End the processes without waiting for work that nobody will use."""
        with Uninterrupted():
            self._close()

    def _close(self) -> None:
        for executor in self.executors:
            # Each has its own pipes, so one that is stuck in a sample can be ended without harm to the others.
            processes = list((getattr(executor, "_processes", None) or {}).values())
            thread = getattr(executor, "_executor_manager_thread", None)
            if thread is not None:
                _ending[thread] = processes
            executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()

    def _died(self, worker: int) -> DataLoaderWorkerError:
        return DataLoaderWorkerError(
            f"DataLoader worker {worker % len(self.executors)} ended unexpectedly. Workers are started afresh: the "
            "dataset, collate_fn and worker_init_fn must be picklable, and a script must guard its own start with `if "
            '__name__ == "__main__":`; num_workers=0 loads in this process'
        )
