"""Models as they were imported, kept for the next time the same file is loaded."""

from __future__ import annotations

import os
import pickle
import time
from typing import TYPE_CHECKING

from pyflame_rt.cache.pickles import StaleError, freeze, thaw
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph import Graph
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.pages import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyflame_rt.graph.pages import FileIdentity

__all__ = ["is_settled", "keep_model", "load_model_with"]

# A file written to as lately as this may be written to again without its time changing.
SETTLED_NS = 2_000_000_000
# What is not in the mapped file is in the entry: no more of it than this.
MAX_BYTES = 64 << 20


def is_settled(identity: FileIdentity) -> bool:
    """Whether a file was left alone for long enough that its time of writing tells its contents."""
    return time.time_ns() - identity.modified_ns > SETTLED_NS


def load_model_with(path: Path, load: Callable[[Path], Graph]) -> Graph:
    """The graph of a model file: as kept from another time, else as ``load`` reads it."""
    store = current_store()
    identity = identity_of(path)
    if not store.usable or not is_settled(identity):
        return load(path)
    key = f"{os.path.abspath(path)} {tuple(identity)} {code_signature('importers', 'format', 'graph', 'ops')}"
    data = store.get("model", key)
    if data is not None:
        try:
            graph = thaw(data)
        except (StaleError, pickle.UnpicklingError, AttributeError, ImportError, LookupError, TypeError, ValueError):
            graph = None
        if isinstance(graph, Graph):
            graph.origin = Origin(key, checked=True)
            return graph
    graph = load(path)
    graph.origin = Origin(key, checked=False)
    return graph


def keep_model(graph: Graph) -> None:
    """Keep a graph that came from a file unchanged and was found to be valid."""
    origin = graph.origin
    if origin is None or origin.checked:
        return
    graph.origin = Origin(origin.key, checked=True)
    if any(tensor.dtype.bits < 8 for tensor in graph.initializers.values()):
        return  # unpacked from files that nothing here names
    store, kept = current_store(), graph.copy()
    if not store.writable:
        return

    def write() -> None:
        data = freeze(kept)
        if len(data) <= MAX_BYTES:
            store.put("model", origin.key, data)

    store.writer.submit(write)
