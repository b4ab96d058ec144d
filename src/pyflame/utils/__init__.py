"""Loaders of data and recomputation, where torch has them."""

from pyflame.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
