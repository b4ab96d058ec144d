"""oneDNN through its C API: :mod:`.api` declares it, the rest gives it shapes, owners and names."""

from pyflame_rt.backends.cpu.onednn.api import OneDnnError
from pyflame_rt.backends.cpu.onednn.attr import Attr
from pyflame_rt.backends.cpu.onednn.library import OneDnnUnavailable, available
from pyflame_rt.backends.cpu.onednn.memory import MemDesc, Memory
from pyflame_rt.backends.cpu.onednn.packing import pack, unpack
from pyflame_rt.backends.cpu.onednn.primitive import Primitive, aligned_empty, execute
from pyflame_rt.backends.cpu.onednn.runtime import Stream, engine, generation, live_handles, on_fork

__all__ = [
    "Attr",
    "MemDesc",
    "Memory",
    "OneDnnError",
    "OneDnnUnavailable",
    "Primitive",
    "Stream",
    "aligned_empty",
    "available",
    "engine",
    "execute",
    "generation",
    "live_handles",
    "on_fork",
    "pack",
    "unpack",
]
