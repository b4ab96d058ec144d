"""Distances between vectors: all pairs of two sets, pairs of one, and of two tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.lazy import const
from pyflame.ops import arithmetic as ar
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import call, operands, real_only, rounded_once, wrap
from pyflame.ops.linalg import same_dtype
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["cdist", "dist", "pdist"]


@rounded_once
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The distance of every row of one matrix from every row of another, in each entry of a batch.

    Args:
        x1: [..., P, M].
        x2: [..., R, M].
        p: of the norm.
        compute_mode: torch's ways to the Euclidean one; differences are squared and added in any case, the exact way.

    Example:
        >>> import pyflame as pf
        >>> pf.cdist(pf.tensor([[0.0, 0.0]]), pf.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
    """
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    if compute_mode not in modes:
        raise ValueError(f"cdist: compute_mode is one of {', '.join(modes)}, got {compute_mode!r}")
    same_dtype("cdist", x1, x2)
    a, b = (real_only("cdist", v) for v in operands(x1, x2))
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeMismatchError(f"cdist takes [..., P, M] and [..., R, M], got {a.shape} and {b.shape}")
    if p < 0:
        raise ValueError(f"cdist: p must not be negative, got {p}")
    return red.norm(ar.sub(sh.unsqueeze(a, -2), sh.unsqueeze(b, -3)), p, -1)


@rounded_once
def pdist(input: Any, p: float = 2.0) -> Tensor:
    """The distances of all pairs of rows of a matrix, those of the first row first."""
    (x,) = operands(real_only("pdist", input), floating=True)
    if x.ndim != 2:
        raise ShapeMismatchError(f"pdist takes a matrix, got {x.shape}")
    first, second = np.triu_indices(x.shape[0], 1)
    rows = [call(Gather, x, wrap(const(i.astype(np.int64))), axis=0) for i in (first, second)]
    return red.norm(ar.sub(rows[0], rows[1]), p, -1)


@rounded_once
def dist(input: Any, other: Any, p: float = 2.0) -> Tensor:
    """The p-norm of a difference."""
    a, b = operands(input, other, floating=True)
    difference = ar.sub(a, b)
    if p == math.inf and difference.numel == 0:
        raise ValueError("dist: there is no largest of no elements")
    return red.norm(difference, p)
