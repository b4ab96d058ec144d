"""Signals: windows."""

from pyflame.signal import windows

__all__ = ["windows"]
