"""Bounded reading and plain writing of little-endian fields."""

from __future__ import annotations

import struct

from pyflame_rt.format.limits import MAX_STRING
from pyflame_rt.graph.errors import InvalidModelError

__all__ = ["Cursor", "Sink"]


class Cursor:
    """Reads fields from a buffer; anything out of bounds is an InvalidModelError."""

    __slots__ = ("at", "data", "end", "where")

    def __init__(self, data: memoryview, start: int = 0, end: int | None = None, where: str = "file") -> None:
        self.data = data
        self.at = start
        self.end = len(data) if end is None else end
        self.where = where

    def fail(self, message: str) -> InvalidModelError:
        """An error that says where in the file it is."""
        return InvalidModelError(f"not a valid .pfm model ({self.where}, byte {self.at}): {message}")

    def take(self, count: int, what: str) -> memoryview:
        """The next ``count`` bytes."""
        if count < 0 or self.at + count > self.end:
            raise self.fail(f"{what} needs {count} bytes, {self.end - self.at} are left")
        view = self.data[self.at : self.at + count]
        self.at += count
        return view

    def _unpack(self, form: str, what: str) -> int | float:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def u8(self, what: str) -> int:
        """One byte."""
        return int(self._unpack("<B", what))

    def u32(self, what: str) -> int:
        """Unsigned, four bytes."""
        return int(self._unpack("<I", what))

    def u64(self, what: str) -> int:
        """Unsigned, eight bytes."""
        return int(self._unpack("<Q", what))

    def i64(self, what: str) -> int:
        """Signed, eight bytes."""
        return int(self._unpack("<q", what))

    def f32(self, what: str) -> float:
        """A float, four bytes."""
        return float(self._unpack("<f", what))

    def f64(self, what: str) -> float:
        """A float, eight bytes."""
        return float(self._unpack("<d", what))

    def count(self, what: str, limit: int, item_bytes: int) -> int:
        """A u64 count that the rest of the section can hold."""
        number = self.u64(f"number of {what}")
        if number > limit:
            raise self.fail(f"{number} {what}, at most {limit} are allowed")
        if number * item_bytes > self.end - self.at:
            raise self.fail(f"{number} {what} cannot fit into the {self.end - self.at} bytes that are left")
        return number

    def string(self, what: str) -> str:
        """A u64 length and that many bytes of UTF-8."""
        length = self.count(f"bytes of {what}", MAX_STRING, 1)
        try:
            return bytes(self.take(length, what)).decode("utf-8", "surrogateescape")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not text: {error}") from error

    def done(self) -> None:
        """Raise unless everything was read."""
        if self.at != self.end:
            raise self.fail(f"{self.end - self.at} bytes too many")


class Sink:
    """Collects fields."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.parts.append(data)

    def pack(self, form: str, *values: float) -> None:
        """Fields in struct notation, little endian."""
        self.parts.append(struct.pack("<" + form, *values))

    def string(self, text: str) -> None:
        """A u64 length and UTF-8."""
        data = text.encode("utf-8", "surrogateescape")
        self.pack("Q", len(data))
        self.parts.append(data)

    def bytes(self) -> bytes:
        """Everything written so far."""
        return b"".join(self.parts)
