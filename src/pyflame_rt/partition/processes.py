"""Devices as processes of this machine: commands over a pipe, arrays in shared memory."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyflame_rt.custom import CustomOpRegistry
from pyflame_rt.graph.errors import BackendError, DeviceLostError
from pyflame_rt.partition.shared import Attached, SharedArray, SharedPool, unlink_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

    from pyflame_rt.graph import Graph
    from pyflame_rt.partition.config import DeviceSpec
    from pyflame_rt.partition.workers import PartSetup
    from pyflame_rt.session import InferenceSession

__all__ = ["ProcessTransport"]

_PATIENCE = 5.0  # seconds for a process to end when it is asked to; then it is made to


class ProcessTransport:
    """Processes; scripts that use them need ``if __name__ == "__main__":``, as Python's own pools do."""

    def __init__(self) -> None:
        self._token = f"pf{os.getpid():x}{secrets.token_hex(3)}"
        self._numbers = itertools.count()
        self._pool = SharedPool(f"{self._token}h")
        self._reader = Attached()
        self._lock = threading.Lock()
        self._owners: dict[str, ProcessWorker] = {}
        self._prefixes = [f"{self._token}h"]

    def start(self, device: DeviceSpec, setup: PartSetup) -> ProcessWorker:
        """A process for a device."""
        prefix = f"{self._token}w{next(self._numbers)}_"
        self._prefixes.append(prefix)
        worker = ProcessWorker(device, setup, prefix)
        self._owners[prefix] = worker
        return worker

    def put(self, value: Any) -> Any:
        """An array goes to shared memory."""
        with self._lock:
            return self._pool.put(value)

    def get(self, handle: Any) -> Any:
        """A copy of an array in shared memory."""
        if not isinstance(handle, SharedArray):
            return handle
        with self._lock:
            return self._reader.view(handle).copy()

    def release(self, handle: Any) -> None:
        """Whoever made the block may use it again."""
        if not isinstance(handle, SharedArray):
            return
        owner = next((w for prefix, w in self._owners.items() if handle.block.startswith(prefix)), None)
        if owner is not None:
            owner.give_back(handle.block)
            return
        with self._lock:
            self._pool.give_back([handle.block])

    def close(self) -> None:
        """Remove all shared memory; workers have ended."""
        with self._lock:
            self._reader.close()
            self._pool.close()
        for prefix in self._prefixes:
            unlink_all(prefix)


class ProcessWorker:
    """One process and the pipe to it."""

    def __init__(self, device: DeviceSpec, setup: PartSetup, prefix: str) -> None:
        self.device = device
        context = _context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, setup, prefix), daemon=True)
        self._process.start()
        theirs.close()
        self._tickets = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._freed: list[str] = []
        self._lock = threading.Lock()
        self._lost = False
        self._thread = threading.Thread(target=self._listen, name=f"pyflame-part-{device.label}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self._process.pid

    def load(self, part: int, graph: Graph) -> Future[None]:
        """Send a part."""
        return self._ask("load", part, graph, CustomOpRegistry.instance().packed_for(graph))

    def submit(self, part: int, feeds: Mapping[str, Any], outputs: Sequence[str]) -> Future[dict[str, Any]]:
        """Have a part run on values in shared memory."""
        return self._ask("run", part, dict(feeds), list(outputs))

    def give_back(self, block: str) -> None:
        """A block of its memory may be used again; it is told with the next command."""
        with self._lock:
            self._freed.append(block)

    def _ask(self, word: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._lost:
                future.set_exception(self._loss())
                return future
            ticket = next(self._tickets)
            self._pending[ticket] = future
            freed, self._freed = self._freed, []
            try:
                self._pipe.send((word, ticket, freed, arguments))
            except OSError:
                self._pending.pop(ticket)
                future.set_exception(self._loss())
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self._pending.pop(ticket)
                self._freed = freed
                future.set_exception(BackendError(f"device {self.device.label!r}: this cannot be sent: {error}"))
        return future

    def _loss(self) -> DeviceLostError:
        code = self._process.exitcode
        how = "" if code is None else f" (exit code {code})"
        return DeviceLostError(f"device {self.device.label!r} was lost: its process ended{how}", self.device.label)

    def _listen(self) -> None:
        """Answers come back until the process is gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                ticket, result, error = self._pipe.recv()
                with self._lock:
                    future = self._pending.pop(ticket)
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
        self._process.join(_PATIENCE)
        with self._lock:
            self._lost = True
            pending, self._pending = list(self._pending.values()), {}
        for future in pending:
            future.set_exception(self._loss())

    def close(self) -> None:
        """Ask the process to end, and make it."""
        with contextlib.suppress(OSError), self._lock:
            self._pipe.send(None)
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._thread.join(_PATIENCE)
        self._pipe.close()


def _context() -> Any:
    """How processes begin: as copies of a server that has read this package once, or afresh where there is none."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


def serve(pipe: Connection, setup: PartSetup, prefix: str) -> None:
    """In the process: do what comes, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent's ends us
    pool, attached = SharedPool(prefix), Attached()
    sessions: dict[int, InferenceSession] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = pipe.recv()
            if order is None:
                break
            word, ticket, freed, arguments = order
            pool.give_back(freed)
            try:
                if word == "load":
                    part, graph, operators = arguments
                    CustomOpRegistry.instance().unpack(operators)
                    sessions[part] = setup.session(graph)
                    result: Any = None
                else:
                    result = _run(sessions, pool, attached, *arguments)
                answer = (ticket, result, None)
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                answer = (ticket, None, _sendable(error))
            pipe.send(answer)
    os._exit(0)  # views of shared memory may be alive: they end with the process


def _run(
    sessions: dict[int, InferenceSession],
    pool: SharedPool,
    attached: Attached,
    part: int,
    feeds: dict[str, Any],
    outputs: list[str],
) -> dict[str, Any]:
    arrays = {n: attached.view(v) if isinstance(v, SharedArray) else v for n, v in feeds.items()}
    results = sessions[part].run(outputs, arrays)
    return {name: pool.put(value) for name, value in zip(outputs, results, strict=True)}


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return BackendError(f"{type(error).__name__}: {error}")
    return error
