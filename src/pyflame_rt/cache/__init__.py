"""What was compiled once is kept on disk: machine code, prepared models, packed weights."""

from pyflame_rt.cache.store import CacheEntry, Store, current_store, default_folder, use_store

__all__ = ["CacheEntry", "Store", "current_store", "default_folder", "use_store"]
