"""Tensors in files by offset and length after a JSON header: what .safetensors and .pf files share."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from pyflame_rt.graph.errors import InvalidModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "Piece",
    "TensorFile",
    "check_total",
    "header_mapping",
    "limited",
    "make_piece",
    "read_safetensors",
]

# A header larger than this is not a header.
MAX_HEADER = 100 << 20
MAX_PARTS = 4_000_000  # lists and mappings in a header
MAX_RANK = 64  # NumPy's
SAFE_DTYPES: dict[str, np.dtype[Any]] = {
    code: np.dtype(kind)
    for code, kind in {
        "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
        "I32": np.int32, "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16,
        "U8": np.uint8, "BOOL": np.bool_, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    }.items()
}  # fmt: skip


class TensorFile:
    """A file that is read piece by piece into memory of our own: it may be cut or replaced meanwhile."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, start: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Some bytes."""
        out = np.empty(count, np.uint8)
        self.file.seek(start)
        at = 0
        while at < count:
            got = self.file.readinto(out[at:].data)
            if not got:
                raise InvalidModelError(f"{self.path}: the file ends early")
            at += got
        return out

    def header(self, start: int) -> tuple[dict[str, Any], int]:
        """The JSON after eight bytes that say how long it is, and where it ends."""
        if start + 8 > self.size:
            raise InvalidModelError(f"{self.path}: the file ends early")
        length = int.from_bytes(self.read(start, 8).tobytes(), "little")
        if length > MAX_HEADER or start + 8 + length > self.size:
            raise InvalidModelError(f"{self.path}: a header of {length} bytes does not fit a file of {self.size}")
        return header_mapping(self.path, self.read(start + 8, length).tobytes()), start + 8 + length

    def tensors(self, start: int, pieces: list[Piece]) -> list[np.ndarray[Any, Any]]:
        """Tensors whose data begin at offsets from ``start``, which may not overlap: so they take no more memory."""
        last, before = 0, ""
        for piece in sorted(pieces, key=lambda p: (p.offset, p.nbytes)):
            if piece.offset < last and piece.nbytes:
                raise InvalidModelError(f"{self.path}: tensors {before} and {piece.name} overlap")
            if start + piece.offset + piece.nbytes > self.size:
                held = max(self.size - start, 0)
                raise InvalidModelError(
                    f"{self.path}: tensor {piece.name} of shape {piece.shape} at {piece.offset} is not within "
                    f"{held} bytes of data"
                )
            last, before = max(last, piece.offset + piece.nbytes), piece.name
        return [
            self.read(start + p.offset, p.nbytes).view(p.dtype).reshape(p.shape)
            if p.nbytes
            else np.empty(p.shape, p.dtype)
            for p in pieces
        ]


class Piece(NamedTuple):
    """A tensor in a file."""

    name: str
    dtype: np.dtype[Any]
    shape: list[int]
    offset: int

    @property
    def nbytes(self) -> int:
        """How many bytes the data take."""
        return math.prod(self.shape) * self.dtype.itemsize


def make_piece(name: str, dtype: np.dtype[Any], shape: Any, offset: Any) -> Piece:
    """A tensor in a file; ValueError for sizes that no tensor has."""
    sizes = [offset, *shape]
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes) or len(shape) > MAX_RANK:
        raise ValueError(f"shape {shape} at {offset} is not a tensor's")
    return Piece(name, dtype, list(shape), offset)


def header_mapping(path: Path, text: bytes) -> dict[str, Any]:
    """A mapping from JSON that is not absurdly large in memory."""
    if text.count(b"[") + text.count(b"{") > MAX_PARTS:
        raise InvalidModelError(f"{path}: the header has more than {MAX_PARTS} parts")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path}: the header is damaged: {error}") from error
    if not isinstance(header, dict):
        raise InvalidModelError(f"{path}: the header is no mapping")
    return header


def limited(path: Path, pieces: list[Piece], max_bytes: int) -> list[Piece]:
    """The same tensors, after :func:`check_total`."""
    check_total(path, sum(piece.nbytes for piece in pieces), max_bytes)
    return pieces


def check_total(path: Path, total: int, max_bytes: int) -> None:
    """Refuse a file that says it holds more than ``max_bytes``."""
    if total > max_bytes:
        raise InvalidModelError(f"{path}: holds {total} bytes of tensors; max_bytes={max_bytes} allows no more")


def read_safetensors(
    path: Path, max_bytes: int, dtypes: Mapping[str, np.dtype[Any]] = SAFE_DTYPES
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .safetensors file; what it says it holds is added up before memory is taken.

    Args:
        path: the file.
        max_bytes: that all arrays together may take.
        dtypes: element types that are read, by the file's names for them.

    Raises:
        InvalidModelError: the file is damaged, holds another element type, or more than ``max_bytes``.
    """
    with path.open("rb", buffering=0) as opened:
        file = TensorFile(path, opened)
        if file.size < 8:
            raise InvalidModelError(f"{path}: not a .safetensors file")
        header, start = file.header(0)
        pieces = [_described(path, name, entry, dtypes) for name, entry in header.items() if name != "__metadata__"]
        arrays = file.tensors(start, limited(path, pieces, max_bytes))
    return {piece.name: array for piece, array in zip(pieces, arrays, strict=True)}


def _described(path: Path, name: str, entry: Any, dtypes: Mapping[str, np.dtype[Any]]) -> Piece:
    try:
        start, end = entry["data_offsets"]
        dtype = dtypes.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"element type {entry['dtype']} is not supported")
        piece = make_piece(name, dtype, entry["shape"], start)
        if end != start + piece.nbytes:
            raise ValueError(f"shape {piece.shape} does not take the bytes from {start} to {end}")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelError(f"{path}: tensor {name!r}: {error}") from error
    return piece
