"""Devices that run parts: what the executor asks of them, and threads of this process."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.graph.errors import SessionClosedError
from pyflame_rt.options import SessionOptions
from pyflame_rt.partition.config import DeviceType
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph
    from pyflame_rt.partition.config import DeviceSpec, WSEChipConfig

__all__ = ["PartSetup", "ThreadTransport", "Transport", "Worker", "setup_of"]

Handle = Any


class PartSetup:
    """How the session of a part is made; sent to the device that runs it.

    Args:
        options: of its session.
        provider: who runs it.
        settings: the provider's options.
    """

    def __init__(self, options: SessionOptions, provider: str, settings: dict[str, Any]) -> None:
        self.options, self.provider, self.settings = options, provider, settings

    def session(self, graph: Graph) -> InferenceSession:
        """The session of a part."""
        return InferenceSession(graph, self.options, providers=[(self.provider, self.settings)])


def setup_of(
    device: DeviceSpec, devices: int, options: SessionOptions | None, chips: WSEChipConfig | None
) -> PartSetup:
    """The session of a part on a device; of several CPU devices each takes its share of the threads."""
    if device.type is DeviceType.WSE:
        settings: dict[str, Any] = {} if chips is None else {"target": chips.target}
        if chips is not None and chips.grid is not None:
            settings |= {"rows": chips.grid[0], "cols": chips.grid[1]}
        return PartSetup(SessionOptions() if options is None else options, "WSEExecutionProvider", settings)
    if options is None:
        options = SessionOptions(num_threads=max(1, (os.cpu_count() or 1) // devices) if devices > 1 else 0)
    return PartSetup(options, "CPUExecutionProvider", {})


class Worker(Protocol):
    """A device that is running."""

    device: DeviceSpec

    def load(self, part: int, graph: Graph) -> Future[None]:
        """Get a part ready."""
        ...

    def submit(self, part: int, feeds: Mapping[str, Handle], outputs: Sequence[str]) -> Future[dict[str, Handle]]:
        """Run a part when what was asked before is done."""
        ...

    def close(self) -> None:
        """End; what is under way is not waited for."""
        ...


class Transport(Protocol):
    """How values get to devices, from device to device, and back."""

    def start(self, device: DeviceSpec, setup: PartSetup) -> Worker:
        """A worker for a device."""
        ...

    def put(self, value: Any) -> Handle:
        """A value for workers."""
        ...

    def get(self, handle: Handle) -> Any:
        """The value behind a handle, the caller's own."""
        ...

    def release(self, handle: Handle) -> None:
        """Nobody will read it any more."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class ThreadWorker:
    """A thread with the sessions of its parts."""

    def __init__(self, device: DeviceSpec, setup: PartSetup) -> None:
        self.device = device
        self._setup = setup
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"pyflame-part-{device.label}")
        self._sessions: dict[int, InferenceSession] = {}

    def load(self, part: int, graph: Graph) -> Future[None]:
        """Make the session of a part, in the thread."""
        return self._order(self._load, part, graph)

    def _load(self, part: int, graph: Graph) -> None:
        self._sessions[part] = self._setup.session(graph)

    def submit(self, part: int, feeds: Mapping[str, Handle], outputs: Sequence[str]) -> Future[dict[str, Handle]]:
        """Run a part; values are arrays as they are."""
        return self._order(self._run, part, dict(feeds), list(outputs))

    def _order(self, work: Any, *args: Any) -> Future[Any]:
        try:
            return self._thread.submit(work, *args)
        except RuntimeError as error:
            raise SessionClosedError(f"device {self.device.label!r} was closed") from error

    def _run(self, part: int, feeds: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
        return dict(zip(outputs, self._sessions[part].run(outputs, feeds), strict=True))

    def sessions(self) -> dict[int, InferenceSession]:
        """The sessions by part."""
        return dict(self._sessions)

    def close(self) -> None:
        """End the thread and its sessions."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


class ThreadTransport:
    """Threads share memory: a handle is the value."""

    def start(self, device: DeviceSpec, setup: PartSetup) -> ThreadWorker:
        """A thread for a device."""
        return ThreadWorker(device, setup)

    def put(self, value: Any) -> Handle:
        """The value itself."""
        return value

    def get(self, handle: Handle) -> Any:
        """The value itself."""
        return handle

    def release(self, handle: Handle) -> None:
        """Python counts references."""

    def close(self) -> None:
        """Nothing to give back."""
