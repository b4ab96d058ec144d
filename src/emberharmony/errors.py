"""The errors of this package.

EmberHarmonyError
├── MaskedArrayError     (TypeError)            a masked array, whose mask would be lost
├── MissingExtra         (ImportError)          a library is not installed
├── MixedArraysError     (TypeError)            arrays of two libraries in one call
├── UnknownBackendError  (ValueError)           no library of that name
└── UnsupportedOpError   (NotImplementedError)  a library cannot do it
"""


class EmberHarmonyError(Exception):
    """Root of all errors raised on purpose by this package."""


class MaskedArrayError(EmberHarmonyError, TypeError):
    """A masked array was given: nothing here computes with masks, and to forget them would be wrong."""


class MissingExtra(EmberHarmonyError, ImportError):
    """An optional library is not installed."""


class MixedArraysError(EmberHarmonyError, TypeError):
    """One call was given arrays of two libraries."""


class UnknownBackendError(EmberHarmonyError, ValueError):
    """The name is none of numpy, torch and mlx."""


class UnsupportedOpError(EmberHarmonyError, NotImplementedError):
    """A library cannot compute an operation.

    Args:
        op: Name of the operation.
        library: Name of the library.
        hint: What the caller can do instead.

    >>> str(UnsupportedOpError("gradients", "numpy", "use torch or mlx"))
    'gradients is not available on numpy: use torch or mlx'
    """

    def __init__(self, op: str, library: str, hint: str) -> None:
        super().__init__(f"{op} is not available on {library}: {hint}")
        self.op = op
        self.library = library
        self.hint = hint


__all__ = [
    "EmberHarmonyError",
    "MaskedArrayError",
    "MissingExtra",
    "MixedArraysError",
    "UnknownBackendError",
    "UnsupportedOpError",
]
