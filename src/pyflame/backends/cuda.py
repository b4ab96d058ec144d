"""Settings of CUDA's libraries, which are not here."""

from __future__ import annotations

__all__ = ["is_built", "matmul"]


class _Products:
    """How products of matrices are computed on a GPU."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True


matmul = _Products()


def is_built() -> bool:
    """False.

    Example:
        >>> import pyflame as pf
        >>> pf.backends.cuda.matmul.allow_tf32 = True
        >>> pf.backends.cuda.is_built()
        False
    """
    return False
