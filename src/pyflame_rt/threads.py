"""How many threads this process may use, and running with so many."""

from pyflame_rt.backends.cpu.run.threads import available_threads, use_threads

__all__ = ["available_threads", "use_threads"]
