"""One array API over NumPy, PyTorch and MLX.

>>> import numpy as np
>>> from emberharmony import ops
>>> ops.mean(np.array([1.0, 2.0]))
array(1.5)
"""

from emberharmony import backend, ops
from emberharmony.backend import get_backend, set_backend, use_backend
from emberharmony.errors import (
    EmberHarmonyError,
    MissingExtra,
    MixedArraysError,
    UnknownBackendError,
    UnsupportedOpError,
)
from emberharmony.library import Library, library
from emberharmony.tensor import EmberTensor

__all__ = [
    "EmberHarmonyError",
    "EmberTensor",
    "Library",
    "MissingExtra",
    "MixedArraysError",
    "UnknownBackendError",
    "UnsupportedOpError",
    "backend",
    "get_backend",
    "library",
    "ops",
    "set_backend",
    "use_backend",
]
