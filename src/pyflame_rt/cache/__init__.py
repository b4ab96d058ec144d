"""What was compiled once is kept on disk: machine code, prepared models, packed weights."""

import typing

from pyflame_rt.cache.store import CacheEntry, Store, current_store, default_folder, use_store

if typing.TYPE_CHECKING:
    from pyflame_rt.cache.binary import (
        BinaryCache,
        CacheConfig,
        CacheInfo,
        CacheKey,
        global_cache,
        set_global_cache_config,
    )

__all__ = [
    "BinaryCache",
    "CacheConfig",
    "CacheEntry",
    "CacheInfo",
    "CacheKey",
    "Store",
    "current_store",
    "default_folder",
    "global_cache",
    "set_global_cache_config",
    "use_store",
]


def __getattr__(name: str) -> typing.Any:
    # Sessions do without it.
    if name in __all__:
        import pyflame_rt.cache.binary

        return getattr(pyflame_rt.cache.binary, name)
    raise AttributeError(f"module 'pyflame_rt.cache' has no attribute {name!r}")
