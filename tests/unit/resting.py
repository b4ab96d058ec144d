"""For tests that count objects or measure memory: nothing others left may come or go meanwhile."""

import gc

from pyflame_rt.backends.cpu.jit import compiler as jit
from pyflame_rt.backends.cpu.jit.thread_pool import HELPERS
from pyflame_rt.cache import store


def at_rest():
    """Wait until nothing is compiled, packed or written in the background, and free what nobody refers to."""
    jit.settle()
    HELPERS.wait()
    for one in list(store._stores.values()):
        one.flush()
    gc.collect()
    gc.collect()
