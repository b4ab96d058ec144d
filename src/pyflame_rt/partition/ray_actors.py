"""Devices as Ray actors, on any machine of a cluster: values are objects of Ray's store."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.custom import CustomOpRegistry
from pyflame_rt.graph.errors import BackendError, DeviceLostError, MissingExtra, PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.custom.operator import OpSchema
    from pyflame_rt.graph import Graph
    from pyflame_rt.partition.config import DeviceSpec
    from pyflame_rt.partition.workers import PartSetup
    from pyflame_rt.session import InferenceSession

__all__ = ["RayTransport"]


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtra("devices as Ray actors need ray: pip install 'pyflame[ray]'") from error


class RayValue:
    """A value in Ray's store, with its size for whoever counts."""

    __slots__ = ("dtype", "ref", "shape")

    def __init__(self, ref: Any, shape: tuple[int, ...] | None = None, dtype: Any = None) -> None:
        self.ref, self.shape, self.dtype = ref, shape, dtype


class RayTransport:
    """Actors of the cluster that ``ray.init()`` connected; a local one is started where none was."""

    def __init__(self) -> None:
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._ray.init(include_dashboard=False, log_to_driver=False)

    def start(self, device: DeviceSpec, setup: PartSetup) -> RayWorker:
        """An actor for a device; ``device.name`` may be ``node:ADDRESS`` to say on which machine."""
        return RayWorker(self._ray, device, setup)

    def put(self, value: Any) -> RayValue:
        """A value into the store."""
        return RayValue(self._ray.put(value), np.shape(value) if isinstance(value, np.ndarray) else None, _kind(value))

    def get(self, handle: RayValue) -> Any:
        """A copy of a value of the store."""
        value = self._ray.get(handle.ref)
        return value.copy() if isinstance(value, np.ndarray) else value

    def release(self, handle: RayValue) -> None:
        """Ray counts references."""
        handle.ref = None

    def close(self) -> None:
        """The cluster is the caller's."""


def _kind(value: Any) -> Any:
    return value.dtype if isinstance(value, np.ndarray) else None


class PartHost:
    """What an actor is: the sessions of its parts."""

    def __init__(self, setup: PartSetup) -> None:
        self._setup = setup
        self._sessions: dict[int, InferenceSession] = {}

    def load(self, part: int, graph: Graph, schemas: Sequence[OpSchema]) -> None:
        """Make the session of a part."""
        CustomOpRegistry.instance().adopt(schemas)
        self._sessions[part] = self._setup.session(graph)

    def run(self, part: int, names: list[str], outputs: list[str], *values: Any) -> Any:
        """Outputs of a part, one object each, and first their shapes and types."""
        results = self._sessions[part].run(outputs, dict(zip(names, values, strict=True)))
        sizes = [(np.shape(r), _kind(r)) if isinstance(r, np.ndarray) else (None, None) for r in results]
        return (sizes, *results)


class RayWorker:
    """An actor."""

    def __init__(self, ray: Any, device: DeviceSpec, setup: PartSetup) -> None:
        self.device, self._ray = device, ray
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0}
        if device.name.startswith("node:"):
            options["resources"] = {device.name: 0.001}
        self.actor = ray.remote(PartHost).options(**options).remote(setup)

    def load(self, part: int, graph: Graph) -> Future[None]:
        """Send a part."""
        schemas = CustomOpRegistry.instance().used_by(graph)
        return self._later(self.actor.load.remote(part, graph, schemas), lambda _: None)

    def submit(self, part: int, feeds: Mapping[str, RayValue], outputs: Sequence[str]) -> Future[dict[str, Any]]:
        """Have a part run; Ray brings the values to it."""
        method = self.actor.run.options(num_returns=1 + len(outputs))
        sizes, *refs = method.remote(part, list(feeds), list(outputs), *(v.ref for v in feeds.values()))

        def made(found: list[tuple[Any, Any]]) -> dict[str, Any]:
            return {n: RayValue(r, *size) for n, r, size in zip(outputs, refs, found, strict=True)}

        return self._later(sizes, made)

    def _later(self, ref: Any, make: Callable[[Any], Any]) -> Future[Any]:
        """What comes of an object, with Ray's errors as ours."""
        future: Future[Any] = Future()

        def told(done: Any) -> None:
            error = done.exception()
            if error is None:
                future.set_result(make(done.result()))
            else:
                future.set_exception(self._translated(error))

        ref.future().add_done_callback(told)
        return future

    def _translated(self, error: BaseException) -> BaseException:
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.RayActorError):
            return DeviceLostError(f"device {self.device.label!r} was lost: its actor died", self.device.label)
        cause = getattr(error, "cause", None)
        if isinstance(cause, PyFlameRTError):
            return cause
        return BackendError(f"device {self.device.label!r}: {error}")

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self.actor)
