# ruff: noqa: ARG001 - every body takes the library, and parameters some backend needs
"""Where arrays live."""

import os

from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import Array, ArrayLike


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

    One that the library does not have leaves the array where it is, with one warning; `strict=True` raises instead.

    Raises:
        ValueError: There is no such device, and `strict` is set.

    >>> ops.to_device(np.ones(1), "cpu")
    array([1.])
    """
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
