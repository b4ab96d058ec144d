# ruff: noqa: ARG001 - every body takes the library, and parameters some backend needs
"""Where arrays live."""

import os
import warnings

from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import Array, ArrayLike

_warned: set[tuple[str, str]] = set()


@op
def get_available_devices(lib: Library) -> list[str]:
    """Names of the devices the library can use, the default last.

    >>> "cpu" in ops.get_available_devices()
    True
    """
    return ["cpu"]


@op
def get_device(lib: Library, x: ArrayLike | None = None) -> str:
    """Name of the device an array lives on, or new arrays are made on.

    >>> ops.get_device(np.ones(1))
    'cpu'
    """
    return "cpu"


@op
def to_device(lib: Library, x: ArrayLike, device: str, strict: bool = False) -> Array:
    """The array on another device.

    A library without devices gives the array back, with one warning for a device it does not
    know; `strict=True` raises instead.

    Raises:
        ValueError: The device does not exist, and the library has devices or `strict` is set.

    >>> ops.to_device(np.ones(1), "cpu")
    array([1.])
    """
    known = lib.get_available_devices()
    if device.partition(":")[0] in known:
        return lib.as_array(x)
    message = f"{lib.name} has no device {device!r}; available: {', '.join(known)}"
    if strict:
        raise ValueError(message)
    if (lib.name, device) not in _warned:
        _warned.add((lib.name, device))
        warnings.warn(f"{message}. The array stays where it is.", stacklevel=2)
    return lib.as_array(x)


@op
def memory_usage(lib: Library, device: str | None = None) -> dict[str, int]:
    """Bytes in use: of the device where the library counts them, else of the process.

    >>> ops.memory_usage()["allocated"] > 0
    True
    """
    return {"allocated": process_memory()}


def process_memory() -> int:
    """Resident bytes of this process, 0 where the system does not say.

    >>> process_memory() >= 0
    True
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _peak_memory()


def _peak_memory() -> int:
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
