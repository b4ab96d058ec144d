"""Random words from a counter: Threefry-2x32 with 20 rounds (Salmon et al., 2011).

A word is a function of the key, the stream and its place alone, so that every library gets the same numbers.
"""

import numpy as np

__all__ = ["Key", "derived", "key_of", "normals", "uniforms", "words", "words64"]

Key = tuple[int, int]
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF
# Words are made in pieces that stay in the cache.
_PIECE = 1 << 14


def key_of(seed: int) -> Key:
    """The two words of a seed of up to 64 bits.

    Raises:
        ValueError: The seed is negative or too large.

    >>> key_of(2**32 + 7)
    (7, 1)
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is from 0 to 2**64 - 1, received {seed}")
    return seed & _MASK, seed >> 32


def _mixed(key: Key, low: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Two words for each counter."""
    keys = [np.uint32(k) for k in (key[0], key[1], key[0] ^ key[1] ^ PARITY)]
    x0 = low + keys[0]
    x1 = np.full_like(low, (high + key[1]) & _MASK)
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x0 += x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 ^= x0
        x0 += keys[(block + 1) % 3]
        x1 += np.uint32((int(keys[(block + 2) % 3]) + block + 1) & _MASK)
    return x0, x1


def words(key: Key, count: int, stream: int = 0) -> np.ndarray:
    """`count` random words of 32 bits.

    >>> words((0, 0), 2).tolist() == [0x6B200159, 0x99BA4EFE]
    True
    """
    half = (count + 1) // 2
    made = np.empty(2 * half, np.uint32)
    for start in range(0, half, _PIECE):
        stop = min(half, start + _PIECE)
        made[start:stop], made[half + start : half + stop] = _mixed(
            key, np.arange(start, stop, dtype=np.uint32), stream
        )
    return made[:count]


def words64(key: Key, count: int, stream: int = 0) -> np.ndarray:
    """`count` random words of 64 bits.

    >>> words64((0, 0), 3).dtype
    dtype('uint64')
    """
    made = words(key, 2 * count, stream).astype(np.uint64)
    return (made[:count] << np.uint64(32)) | made[count:]


def uniforms(key: Key, count: int, stream: int = 0) -> np.ndarray:
    """Numbers of 53 bits from 0 to below 1.

    >>> bool((uniforms((1, 2), 100) < 1).all())
    True
    """
    return (words64(key, count, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(key: Key, count: int, stream: int = 0) -> np.ndarray:
    """Standard normal numbers, by the transform of Box and Muller; two streams are used.

    >>> normals((1, 2), 3).shape
    (3,)
    """
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(key, count, stream)))
    return radius * np.cos(2.0 * np.pi * uniforms(key, count, stream + 1))


def derived(key: Key, number: int) -> Key:
    """The key of the draw of that number among those that share one seed.

    >>> derived((0, 7), 0) != derived((0, 7), 1)
    True
    """
    low = np.array([number & _MASK], np.uint32)
    first, second = _mixed(key, low, _MASK - (number >> 32))
    return int(first[0]), int(second[0])
