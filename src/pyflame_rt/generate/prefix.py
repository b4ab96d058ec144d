"""Prefix reuse: keys and values of beginnings that were read before, kept by whole pages under a chained digest."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.generate.cache import KVCache

__all__ = ["PrefixCache"]

Page = dict[str, np.ndarray[Any, Any]]


class PrefixCache:
    """Pages of keys and values that later prompts may begin with, the least used dropped first.

    A page is known by its tokens and all those before it, so that a page of another beginning is never taken.

    Args:
        page: tokens of a page.
        max_bytes: that all pages may take together; 0 keeps none.

    Attributes:
        hits: tokens of prompts that did not have to be read.
        misses: tokens that had to be.

    Example:
        >>> from pyflame_rt.generate import KVCache
        >>> cache = KVCache({"k": (2, 1)}, {"k": 2}, {"k": np.dtype(np.float32)}, page=4)
        >>> row = cache.add()
        >>> cache.write([row], {"k": np.arange(16, dtype=np.float32).reshape(1, 2, 8)}, [8])
        >>> prefixes = PrefixCache(page=4, max_bytes=1 << 20)
        >>> prefixes.keep([1, 2, 3, 4, 5, 6, 7, 8], cache, row)
        >>> prefixes.restore([1, 2, 3, 4, 9, 9], cache, cache.add())
        4
    """

    def __init__(self, page: int, max_bytes: int) -> None:
        self.page, self.max_bytes = page, max_bytes
        self.bytes = self.hits = self.misses = 0
        self._pages: OrderedDict[bytes, Page] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def restore(self, tokens: Sequence[int], cache: KVCache, row: int) -> int:
        """Write what is known of a beginning to an empty row; how many tokens, always fewer than there are."""
        found: list[bytes] = []
        for key in self._keys(tokens[: len(tokens) - 1]):
            if key not in self._pages:
                break
            found.append(key)
        if found:
            cache.reserve(len(tokens))  # at once: growing by pages would copy what is there each time
        for key in found:
            cache.write([row], self._pages[key], [self.page])
        for key in reversed(found):  # a page is of no use without those before it: they go last
            self._pages.move_to_end(key)
        known = len(found) * self.page
        self.hits += known
        self.misses += len(tokens) - known
        return known

    def keep(self, tokens: Sequence[int], cache: KVCache, row: int) -> None:
        """Keep the whole pages of a row that holds these tokens."""
        keys = list(self._keys(tokens)) if self.max_bytes else []
        for i, key in enumerate(keys):
            if key not in self._pages:
                page = cache.read(row, i * self.page, (i + 1) * self.page)
                self._pages[key] = page
                self.bytes += _size(page)
        for key in reversed(keys):
            self._pages.move_to_end(key)
        while self.bytes > self.max_bytes:
            _, dropped = self._pages.popitem(last=False)
            self.bytes -= _size(dropped)

    def clear(self) -> None:
        """Drop all pages."""
        self._pages.clear()
        self.bytes = 0

    def _keys(self, tokens: Sequence[int]) -> Iterator[bytes]:
        digest = b""
        for end in range(self.page, len(tokens) + 1, self.page):
            part = np.asarray(tokens[end - self.page : end], np.int64).tobytes()
            digest = hashlib.sha256(digest + part).digest()
            yield digest


def _size(page: Page) -> int:
    return sum(array.nbytes for array in page.values())
