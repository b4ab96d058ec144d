"""One array API over NumPy, PyTorch and MLX.

>>> import numpy as np
>>> from emberharmony import ops
>>> ops.mean(np.array([1.0, 2.0]))
array(1.5)
"""

import typing as _typing

from emberharmony import backend
from emberharmony.backend import get_backend, set_backend, use_backend
from emberharmony.errors import (
    EmberHarmonyError,
    MaskedArrayError,
    MissingExtra,
    MixedArraysError,
    UnknownBackendError,
    UnsupportedOpError,
)
from emberharmony.library import Library, library

__version__ = "1.0.0-alpha"

if _typing.TYPE_CHECKING:
    from emberharmony import ops
    from emberharmony.tensor import EmberTensor

__all__ = [
    "EmberHarmonyError",
    "EmberTensor",
    "Library",
    "MaskedArrayError",
    "MissingExtra",
    "MixedArraysError",
    "UnknownBackendError",
    "UnsupportedOpError",
    "__version__",
    "backend",
    "get_backend",
    "library",
    "ops",
    "set_backend",
    "use_backend",
]


def __getattr__(name: str) -> _typing.Any:
    # Declaring all operations takes a while: programs that do without them do not wait for it.
    if name == "ops":
        import emberharmony.ops

        return emberharmony.ops
    if name == "EmberTensor":
        from emberharmony.tensor import EmberTensor

        return EmberTensor
    raise AttributeError(f"module 'emberharmony' has no attribute {name!r}")
