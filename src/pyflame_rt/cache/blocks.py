"""Digests of blocks, for entries too large for a cryptographic digest at every start.

A block is looked at as a matrix of 64-bit words. Its digest is that of the sums of its rows and of its columns: a byte
that changed changes both, words that changed places change one of them. The sums are added up at several times the
speed of SHA-256. This guards against damage; against others who write there, the folder is the user's own.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

__all__ = ["BLOCK", "DIGEST", "block_digests", "blocks_match", "table_size"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
BLOCK = 1 << 18  # in smaller ones there are more sums to digest, which then takes as long as summing
DIGEST = 16  # bytes for each block
_ROWS, _WORDS = 64, BLOCK // 8 // 64
_AT_ONCE = 4  # blocks that are summed together: they stay in the processor's cache


def table_size(size: int) -> int:
    """Bytes of the digests of so many bytes."""
    return -(-size // BLOCK) * DIGEST


def block_digests(data: Bytes) -> bytes:
    """The digests of all blocks, one after the other.

    Example:
        >>> data = np.zeros(400_000, np.uint8)
        >>> before = block_digests(data)
        >>> data[300_000] = 1
        >>> [block_digests(data)[i : i + DIGEST] == before[i : i + DIGEST] for i in (0, DIGEST)]
        [True, False]
    """
    whole = len(data) // BLOCK
    parts = [_group(data[i * BLOCK : min(i + _AT_ONCE, whole) * BLOCK]) for i in range(0, whole, _AT_ONCE)]
    if len(data) % BLOCK:
        parts.append(_last(data[whole * BLOCK :]))
    return b"".join(parts)


def _group(data: Bytes) -> bytes:
    words = data.view(np.uint64).reshape(-1, _ROWS, _WORDS)
    sums = np.concatenate([np.add.reduce(words, axis=2), np.add.reduce(words, axis=1)], axis=1)
    return b"".join([hashlib.sha256(row.data).digest()[:DIGEST] for row in sums])


def _last(data: Bytes) -> bytes:
    """The digest of less than a block, which ends in zeros; rows of zeros need not be made to be added up."""
    rows = -(-len(data) // (8 * _WORDS))
    padded = np.zeros(rows * 8 * _WORDS, np.uint8)
    padded[: len(data)] = data
    words, sums = padded.view(np.uint64).reshape(rows, _WORDS), np.zeros(_ROWS + _WORDS, np.uint64)
    np.add.reduce(words, axis=1, out=sums[:rows])
    np.add.reduce(words, axis=0, out=sums[_ROWS:])
    return hashlib.sha256(sums.data).digest()[:DIGEST]


def blocks_match(data: Bytes, table: bytes, begin: int = 0, end: int | None = None) -> bool:
    """Whether the blocks that hold bytes ``begin`` to ``end`` have the digests of a table.

    Example:
        >>> data = np.arange(100_000).view(np.uint8)  # four blocks
        >>> table = block_digests(data)
        >>> data[-1] = 1
        >>> blocks_match(data, table, 0, 5000), blocks_match(data, table)
        (True, False)
    """
    stop = len(data) if end is None else min(end, len(data))
    first, last = begin // BLOCK, -(-stop // BLOCK)
    return block_digests(data[first * BLOCK : last * BLOCK]) == table[first * DIGEST : last * DIGEST]
