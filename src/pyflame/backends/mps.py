"""Answers about Apple's GPUs: tensors cannot be there."""

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """False: `emberharmony` with MLX computes there, tensors of this package do not.

    Example:
        >>> import pyflame as pf
        >>> pf.backends.mps.is_available()
        False
    """
    return False


def is_built() -> bool:
    """False."""
    return False
