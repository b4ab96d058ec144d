"""Automatic mixed precision under torch's names."""

from pyflame.amp import cuda
from pyflame.amp.context import autocast, is_autocast_available
from pyflame.amp.scaling import GradScaler

__all__ = ["GradScaler", "autocast", "cuda", "is_autocast_available"]
