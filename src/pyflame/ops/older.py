"""Names that torch keeps beside newer ones: decompositions in their older form, products of chains, fills and puts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame.lazy import const
from pyflame.ops import arithmetic as ar
from pyflame.ops import decompositions as de
from pyflame.ops import gathering as ga
from pyflame.ops import shaping as sh
from pyflame.ops.core import as_tensor, convert, same_type, wrap

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["chain_matmul", "cholesky", "fill", "pinverse", "put", "qr", "svd"]


class OldSingular(NamedTuple):
    """Left singular vectors, singular values, right singular vectors, both as columns."""

    U: Tensor
    S: Tensor
    V: Tensor


def cholesky(input: Any, upper: bool = False) -> Tensor:
    """`linalg.cholesky`."""
    return de.cholesky(input, upper=upper)


def qr(input: Any, some: bool = True) -> de.Factors:
    """`linalg.qr`, reduced or complete."""
    return de.qr(input, "reduced" if some else "complete")


def svd(input: Any, some: bool = True, compute_uv: bool = True) -> OldSingular:
    """`linalg.svd` with right singular vectors as columns; zeros for both without ``compute_uv``, as in torch."""
    U, S, Vh = de.svd(input, full_matrices=not some)
    if not compute_uv:
        return OldSingular(U.detach() * 0, S, Vh.detach().transpose(-2, -1) * 0)
    return OldSingular(U, S, Vh.transpose(-2, -1))


def pinverse(input: Any, rcond: float = 1e-15) -> Tensor:
    """`linalg.pinv`."""
    return de.pinv(input, rcond)


def chain_matmul(*matrices: Any) -> Tensor:
    """`linalg.multi_dot`."""
    from pyflame.linalg import multi_dot

    listed = matrices[0] if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)) else matrices
    return as_tensor(listed[0]) if len(listed) == 1 else multi_dot(listed)


def fill(input: Any, value: Any) -> Tensor:
    """A tensor of one value, in the shape and type of another; the gradient goes to the value."""
    x = as_tensor(input)
    given = convert(value, x.dtype)
    if given.ndim:
        raise ValueError(f"fill takes one value, got {given.shape}")
    return ar.where(wrap(const(np.array(False))), x, given)


def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """The tensor with elements of ``source`` at places of the flattened tensor: instead of what is there, or added."""
    x, given = as_tensor(input), as_tensor(source)
    same_type("put", x, given)
    places = sh.reshape(as_tensor(index), (-1,))
    if places.numel == 0:
        return x.clone()
    size = x.numel
    places = ar.where(ar.lt(places, 0), ar.add(places, size), places)
    flat, values = sh.reshape(x, (-1,)), sh.reshape(given, (-1,))
    put_in = ga.scatter_add if accumulate else ga.scatter
    return sh.reshape(put_in(flat, 0, places, values), x.shape)
