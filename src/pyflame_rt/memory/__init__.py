"""Memory: one pool that the engine, its results and programs draw from, and arenas for what is thrown away together."""

from pyflame_rt.memory.arena import Arena, ScopedArena
from pyflame_rt.memory.buffers import BlockPool, BufferCache
from pyflame_rt.memory.config import PoolConfig, PoolStats
from pyflame_rt.memory.pool import Account, Block, MemoryPool, global_pool, set_global_pool_config

__all__ = [
    "Account",
    "Arena",
    "Block",
    "BlockPool",
    "BufferCache",
    "MemoryPool",
    "PoolConfig",
    "PoolStats",
    "ScopedArena",
    "global_pool",
    "set_global_pool_config",
]
