"""Shared memory of clients on the same machine, by the names they register (POSIX shared memory)."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.tensors import refuse, shown

__all__ = ["SharedMemory"]

FOLDER = Path("/dev/shm")
MAX_REGIONS = 1024
PIECE = 1 << 24  # bytes that are read at once
PENDING = 4  # of the largest requests may be under way
RETRY = {"retry-after": "1"}


@dataclass(frozen=True)
class _Region:
    """A part of a file that a client may write to and cut at any time: read and written, never mapped.

    To touch a mapped page behind the end of its file ends the process.
    """

    key: str
    offset: int
    size: int
    handle: int  # closed with the region

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.handle)

    def there(self) -> int:
        return os.fstat(self.handle).st_size


def _opened(key: str) -> int:
    """The file of a name: a plain one, of the folder itself."""
    try:
        handle = os.open(FOLDER / key.lstrip("/"), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise refuse(f"shared memory {shown(key)} cannot be used: {why}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refuse(f"{shown(key)} is no name of shared memory")
    return handle


class SharedMemory:
    """Regions that clients registered.

    Args:
        enabled: whether clients may; what they name is read and written with the server's rights.
        limit: bytes of all tensors of one request: a region may be larger than memory, for it need not be filled.

    Example:
        >>> SharedMemory(enabled=False).status()
        []
    """

    def __init__(self, *, enabled: bool, limit: int = 100 << 20) -> None:
        self._enabled, self._limit = enabled, limit
        self._lock = threading.Lock()
        self._regions: dict[str, _Region] = {}
        self._held = 0  # bytes that requests under way have read

    def register(self, name: str, key: Any, offset: Any, size: Any) -> None:
        """Map a region under a name."""
        if not self._enabled:
            raise RequestError(403, "Forbidden", "this server takes no shared memory (set shared_memory)")
        whole = type(offset) is int and type(size) is int and offset >= 0 and size > 0
        if not isinstance(key, str) or not whole:
            raise refuse("shared memory needs a key, an offset from 0 on and a positive byte_size")
        if "/" in key.lstrip("/") or not key.strip("/.") or "\0" in key:
            raise refuse(f"{shown(key)} is no name of shared memory")
        region = _Region(key, offset, size, _opened(key))
        if offset + size > region.there():
            raise refuse(f"shared memory {shown(key)} has {region.there()} bytes, {offset} + {size} are asked for")
        with self._lock:
            if name in self._regions or len(self._regions) >= MAX_REGIONS:
                raise refuse(f"shared memory region {name!r} is registered already, or there are too many")
            self._regions[name] = region

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all of them."""
        with self._lock:
            for found in [name] if name is not None else list(self._regions):
                self._regions.pop(found, None)  # closed when nobody reads it any more

    def status(self, name: str | None = None) -> list[dict[str, Any]]:
        """What is registered."""
        with self._lock:
            regions = dict(self._regions)
        if name is not None and name not in regions:
            raise RequestError(404, "RegionNotFound", f"there is no shared memory region {name!r}")
        return [
            {"name": n, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for n, region in regions.items()
            if name in (None, n)
        ]

    def _region(self, name: str, offset: int, size: int) -> _Region:
        with self._lock:
            found = self._regions.get(name)
        if found is None:
            raise refuse(f"there is no shared memory region {name!r}")
        if offset + size > found.size:
            raise refuse(f"shared memory region {name!r} has {found.size} bytes, {offset} + {size} are asked for")
        return found

    @property
    def in_use(self) -> bool:
        """Whether there are regions: then a short request may have long tensors."""
        return bool(self._regions)

    def read(self, name: str, offset: int, size: int, before: int = 0) -> bytes:
        """Bytes of a region, as they are now: the client may change them while a model runs.

        Args:
            name: of the region.
            offset: from its beginning.
            size: how many bytes.
            before: bytes that the same request had from shared memory before.

        What was read is to be released when the request is answered.
        """
        region = self._region(name, offset, size)
        if before + size > self._limit:
            raise RequestError(
                413,
                "RequestTooLarge",
                f"a request has {before + size} bytes in shared memory, max_request_size allows {self._limit}",
            )
        with self._lock:
            if self._held and self._held + size > PENDING * self._limit:
                raise RequestError(503, "QueueFull", "too many tensors are being read; try again later", RETRY)
            self._held += size
        try:
            return self._bytes(region, name, offset, size)
        except BaseException:
            self.release(size)
            raise

    def release(self, size: int) -> None:
        """Forget bytes that were read."""
        with self._lock:
            self._held -= size

    def _bytes(self, region: _Region, name: str, offset: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.pread(region.handle, min(size - len(data), PIECE), region.offset + offset + len(data))
            if not part:
                raise refuse(f"shared memory region {name!r} was cut: {size} bytes at {offset} are not there any more")
            data += part
        return bytes(data)

    def write(self, name: str, offset: int, size: int, data: bytes | memoryview) -> int:
        """Write an output; how many bytes it has."""
        if len(data) > size:
            raise refuse(f"an output has {len(data)} bytes, shared memory region {name!r} was given {size} for it")
        region, left = self._region(name, offset, len(data)), memoryview(data)
        if region.offset + offset + len(data) > region.there():
            raise refuse(f"shared memory region {name!r} was cut: there is no room for {len(data)} bytes at {offset}")
        place = region.offset + offset
        while left:
            done = os.pwrite(region.handle, left, place)
            left, place = left[done:], place + done
        return len(data)
