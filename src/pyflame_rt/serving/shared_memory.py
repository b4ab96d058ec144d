"""Shared memory of clients on the same machine, by the names they register (POSIX shared memory)."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Any

from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.tensors import refuse, shown

__all__ = ["SharedMemory"]

FOLDER = Path("/dev/shm")
MAX_REGIONS = 1024


class SharedMemory:
    """Regions that clients registered.

    Args:
        enabled: whether clients may; what they name is read and written with the server's rights.

    Example:
        >>> SharedMemory(enabled=False).status()
        []
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._lock = threading.Lock()
        self._regions: dict[str, tuple[str, int, int, mmap.mmap]] = {}

    def register(self, name: str, key: Any, offset: Any, size: Any) -> None:
        """Map a region under a name."""
        if not self._enabled:
            raise RequestError(403, "Forbidden", "this server takes no shared memory (set shared_memory)")
        whole = isinstance(offset, int) and isinstance(size, int) and offset >= 0 and size > 0
        if not isinstance(key, str) or not whole:
            raise refuse("shared memory needs a key, an offset from 0 on and a positive byte_size")
        path = FOLDER / key.lstrip("/")
        if "/" in key.lstrip("/") or not key.strip("/.") or path.is_symlink():
            raise refuse(f"{shown(key)} is no name of shared memory")
        try:
            with open(path, "r+b") as file:
                there = os.fstat(file.fileno()).st_size
                if offset + size > there:
                    raise refuse(f"shared memory {shown(key)} has {there} bytes, {offset} + {size} are asked for")
                mapped = mmap.mmap(file.fileno(), offset + size)
        except OSError as error:
            raise refuse(f"shared memory {shown(key)} cannot be used: {error.strerror}") from None
        with self._lock:
            if name in self._regions or len(self._regions) >= MAX_REGIONS:
                mapped.close()
                raise refuse(f"shared memory region {name!r} is registered already, or there are too many")
            self._regions[name] = (key, offset, size, mapped)

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all of them."""
        with self._lock:
            for found in [name] if name is not None else list(self._regions):
                self._regions.pop(found, None)  # unmapped when nobody reads it any more

    def status(self, name: str | None = None) -> list[dict[str, Any]]:
        """What is registered."""
        with self._lock:
            regions = dict(self._regions)
        if name is not None and name not in regions:
            raise RequestError(404, "RegionNotFound", f"there is no shared memory region {name!r}")
        return [
            {"name": n, "key": key, "offset": offset, "byte_size": size}
            for n, (key, offset, size, _) in regions.items()
            if name in (None, n)
        ]

    def _view(self, name: str, offset: int, size: int) -> memoryview:
        with self._lock:
            found = self._regions.get(name)
        if found is None:
            raise refuse(f"there is no shared memory region {name!r}")
        _, start, room, mapped = found
        if offset + size > room:
            raise refuse(f"shared memory region {name!r} has {room} bytes, {offset} + {size} are asked for")
        return memoryview(mapped)[start + offset : start + offset + size]

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a region, as they are now: the client may change them while a model runs."""
        return bytes(self._view(name, offset, size))

    def write(self, name: str, offset: int, size: int, data: bytes | memoryview) -> int:
        """Write an output; how many bytes it has."""
        if len(data) > size:
            raise refuse(f"an output has {len(data)} bytes, shared memory region {name!r} was given {size} for it")
        self._view(name, offset, len(data))[:] = data
        return len(data)
