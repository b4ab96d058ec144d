"""Devices: where graphs are evaluated."""

from __future__ import annotations

import os
import platform
from enum import Enum
from typing import Any

from pyflame.lazy import mode_changes

__all__ = [
    "Backend",
    "Device",
    "current_device",
    "device_info",
    "get_device",
    "rocm_device_count",
    "rocm_get_device",
    "rocm_get_device_info",
    "rocm_is_available",
    "rocm_set_device",
    "rocm_synchronize",
    "set_device",
    "synchronize",
]


class Backend(Enum):
    """Kinds of devices.

    Example:
        >>> Backend("cpu")
        <Backend.CPU: 'cpu'>
    """

    CPU = "cpu"
    SIMULATOR = "cerebras:simulator"
    HARDWARE = "cerebras"
    ROCM = "rocm"


# The provider of the runtime that evaluates for each; hardware has none here.
_PROVIDERS = {
    Backend.CPU: "CPUExecutionProvider",
    Backend.SIMULATOR: "WSEExecutionProvider",
    Backend.HARDWARE: "CerebrasExecutionProvider",
    Backend.ROCM: "ROCMExecutionProvider",
}


# Names for the simulator that say which machine it plays.
_TARGETS = ("wse2", "wse3")


class Device:
    """A place where tensors are: the memory of this process, whatever evaluates them; `pf.device`, as in torch.

    Example:
        >>> import pyflame as pf
        >>> pf.device("cpu"), pf.zeros(2, device="cpu").device.type
        (device('cpu'), 'cpu')
    """

    __slots__ = ("index", "type")

    def __init__(self, type: Any, index: int | None = None) -> None:
        kind, _, number = str(type).partition(":")
        if kind != "cpu" or number not in ("", "0") or index not in (None, 0):
            name = str(type) if index is None else f"{type}:{index}"
            raise RuntimeError(
                f"there is no device {name!r} here. Tensors are on 'cpu'; pf.set_device chooses what computes them"
            )
        self.type = kind
        self.index = index if not number else int(number)

    @staticmethod
    def of(name: Any) -> Device:
        """The device of a name; an unknown one is an error that lists what there is."""
        return name if isinstance(name, Device) else Device(name)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to undo: all tensors are made on this device anyway."""

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return self.type

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


_cpu = Device("cpu")


def current_device() -> Device:
    """Where tensors are."""
    return _cpu


class _Chosen:
    """What evaluates graphs now; `provider` is None for the CPU, whose engine is chosen by the size of the work."""

    backend = Backend.CPU
    index = 0
    provider: str | None = None
    target: str | None = None  # the machine that the simulator plays, where it was named


chosen = _Chosen()


def _parse(device: Any) -> tuple[Backend, int]:
    """Kind and number of a device by name."""
    text = str(device.value if isinstance(device, Backend) else device)
    if text in ("cpu", "cpu:0", "cerebras", "cerebras:simulator"):
        return Backend(text.removesuffix(":0")), 0
    if text in _TARGETS:
        return Backend.SIMULATOR, 0
    kind, _, number = text.partition(":")
    if kind == "rocm" and (number.isdigit() or not number):
        return Backend.ROCM, int(number or 0)
    raise ValueError(
        f"there is no device {text!r}. Devices are written 'cpu', 'wse2', 'wse3', 'cerebras', "
        "'cerebras:simulator', 'rocm' or 'rocm:N'"
    )


def _available() -> list[str]:
    from pyflame_rt.providers import get_available_providers

    here = set(get_available_providers())
    return [backend.value for backend, provider in _PROVIDERS.items() if provider in here]


def set_device(device: str | Backend | Device) -> None:
    """Evaluate graphs on this device from now on, in all threads.

    Args:
        device: "cpu", or "cerebras:simulator", which compiles each graph to CSL and runs that in the wafer simulator
            (small graphs, and operators that the wafer compiler has); "wse2" and "wse3" are the same for that machine
            ("cerebras:simulator" plays the newer one). "cerebras" and "rocm" are there when a backend
            was registered for them with ``pyflame_rt.register_backend`` ("CerebrasExecutionProvider",
            "ROCMExecutionProvider").

    Raises:
        ValueError: the name is not one of a device.
        RuntimeError: nothing here runs on that device; the message says what there is.

    Example:
        >>> import pyflame as pf
        >>> pf.set_device("cpu")
        >>> pf.get_device()
        'cpu'
    """
    backend, index = _parse(device)
    here = _available()
    count = _count(backend)
    if backend.value not in here or index >= count:
        missing = f"it needs a backend registered as {_PROVIDERS[backend]!r}" if not count else f"there are {count}"
        raise RuntimeError(f"device {str(device)!r} is not available here: {missing}. Devices: {', '.join(here)}")
    chosen.backend, chosen.index = backend, index
    chosen.target = str(device) if str(device) in _TARGETS else None
    chosen.provider = None if backend is Backend.CPU else _PROVIDERS[backend]
    mode_changes[0] += 1


def get_device() -> str:
    """The device that graphs are evaluated on, as :func:`set_device` takes it."""
    if chosen.target is not None:
        return chosen.target
    return f"rocm:{chosen.index}" if chosen.backend is Backend.ROCM else chosen.backend.value


def _count(backend: Backend) -> int:
    return int(backend.value in _available())


def device_info() -> dict[str, Any]:
    """What is known of the device that graphs are evaluated on.

    Example:
        >>> import pyflame as pf
        >>> info = pf.device_info()
        >>> info["type"], info["cores"] >= 1
        ('cpu', True)
    """
    from pyflame_rt.providers import find_provider

    provider = find_provider(_PROVIDERS[chosen.backend])
    info: dict[str, Any] = {"type": chosen.backend.value, "name": provider.about, "provider": provider.name}
    if chosen.backend is Backend.CPU:
        info["name"] = platform.processor() or platform.machine()
        info["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return info


def synchronize() -> None:
    """Wait until the device has done all it was given.

    Every evaluation returns when it is done, on every device there is, so nothing is ever left to wait for.
    """


def rocm_is_available() -> bool:
    """Whether a backend for AMD's GPUs is registered.

    Example:
        >>> import pyflame as pf
        >>> pf.rocm_is_available() == (pf.rocm_device_count() > 0)
        True
    """
    return _count(Backend.ROCM) > 0


def rocm_device_count() -> int:
    """How many GPUs of AMD's graphs can be evaluated on."""
    return _count(Backend.ROCM)


def _require_rocm(device_id: int) -> None:
    count = _count(Backend.ROCM)
    if not 0 <= device_id < count:
        raise RuntimeError(f"there is no ROCm device {device_id}: {count} are here. Devices: {', '.join(_available())}")


def rocm_get_device_info(device_id: int = 0) -> dict[str, Any]:
    """What is known of a GPU; RuntimeError when it is not there."""
    from pyflame_rt.providers import find_provider

    _require_rocm(device_id)
    provider = find_provider(_PROVIDERS[Backend.ROCM])
    return {"device_id": device_id, "type": "rocm", "name": provider.about, "provider": provider.name}


def rocm_set_device(device_id: int) -> None:
    """Evaluate on this GPU; RuntimeError when it is not there."""
    _require_rocm(device_id)
    set_device(f"rocm:{device_id}")


def rocm_get_device() -> int:
    """The number of the GPU that graphs are evaluated on; -1 when they are not."""
    return chosen.index if chosen.backend is Backend.ROCM else -1


def rocm_synchronize() -> None:
    """Wait for the GPU; RuntimeError when there is none."""
    _require_rocm(max(rocm_get_device(), 0))
    synchronize()
