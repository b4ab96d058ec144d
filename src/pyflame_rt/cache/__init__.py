"""What was compiled once is kept on disk: machine code, prepared models, packed weights."""

import importlib
import typing

from pyflame_rt.cache.store import CacheEntry, Store, current_store, default_folder, use_store

if typing.TYPE_CHECKING:
    from pyflame_rt.cache.binary import (
        BinaryCache,
        CacheConfig,
        CacheInfo,
        CacheKey,
        CacheStats,
        global_cache,
        set_global_cache_config,
    )
    from pyflame_rt.cache.mapped import LazyTensor, MappedFile, MMapAdvice, MMapLoader

__all__ = [
    "BinaryCache",
    "CacheConfig",
    "CacheEntry",
    "CacheInfo",
    "CacheKey",
    "CacheStats",
    "LazyTensor",
    "MMapAdvice",
    "MMapLoader",
    "MappedFile",
    "Store",
    "current_store",
    "default_folder",
    "global_cache",
    "set_global_cache_config",
    "use_store",
]

_MAPPED = ("LazyTensor", "MMapAdvice", "MMapLoader", "MappedFile")


def __getattr__(name: str) -> typing.Any:
    # Sessions do without these.
    if name in __all__:
        home = "mapped" if name in _MAPPED else "binary"
        return getattr(importlib.import_module(f"pyflame_rt.cache.{home}"), name)
    raise AttributeError(f"module 'pyflame_rt.cache' has no attribute {name!r}")
