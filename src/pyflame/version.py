"""The version, where torch has it."""

from pyflame_rt._version import __version__

__all__ = ["__version__", "cuda"]

cuda: str | None = None
