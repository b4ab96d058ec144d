"""Gradients kept in bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.ops.arithmetic import clamp
from pyflame.ops.core import as_tensor
from pyflame.ops.reduction import amax, norm
from pyflame.ops.shaping import stack
from pyflame.tensors import Tensor
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _with_gradients(parameters: Any) -> list[Any]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in listed if p.grad is not None]


@names_arguments
def get_total_norm(tensors: Iterable[Any], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """The norm of all tensors as if they were one vector.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.get_total_norm([pf.tensor([3.0]), pf.tensor([4.0])]).numpy().item()
        5.0
    """
    listed = list(tensors)
    if not listed:
        return adopt(np.array(0.0, np.float32))
    norm_type = float(norm_type)  # torch takes "inf", too
    each = stack([norm(t.detach().flatten(), norm_type) for t in listed])
    total = amax(each, dim=0) if math.isinf(norm_type) else norm(each, norm_type)
    if error_if_nonfinite and not np.isfinite(total.numpy()):
        raise RuntimeError(f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped")
    return total


@names_arguments
def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; the norm before is returned.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.tensor([3.0, 4.0]))
        >>> (w * w).sum().backward()
        >>> round(pf.nn.utils.clip_grad_norm_([w], 1.0).numpy().item(), 4)
        10.0
        >>> [round(g, 3) for g in w.grad.numpy().tolist()]
        [0.6, 0.8]
    """
    owners = _with_gradients(parameters)
    with no_grad():
        total = get_total_norm([p.grad for p in owners], norm_type, error_if_nonfinite)
        _scale(owners, max_norm, total)
    return total


@names_arguments
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any) -> None:
    """Scale all gradients in place as if their norm were `total_norm`, so that it is at most `max_norm`.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.tensor([3.0, 4.0]))
        >>> (w * w).sum().backward()
        >>> pf.nn.utils.clip_grads_with_norm_([w], 1.0, pf.nn.utils.get_total_norm([w.grad]))
        >>> [round(g, 3) for g in w.grad.tolist()]
        [0.6, 0.8]
    """
    with no_grad():
        _scale(_with_gradients(parameters), max_norm, as_tensor(total_norm))


def _scale(owners: list[Any], max_norm: float, total: Tensor) -> None:
    factor = clamp(float(max_norm) / (total + 1e-6), max=1.0)
    for p in owners:
        p.grad.mul_(factor.to(p.grad.dtype))


@names_arguments
def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Cut every gradient to -clip_value to clip_value.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.tensor([3.0]))
        >>> (w * w).sum().backward()
        >>> pf.nn.utils.clip_grad_value_([w], 0.5)
        >>> w.grad.numpy().tolist()
        [0.5]
    """
    with no_grad():
        for p in _with_gradients(parameters):
            p.grad.clamp_(-float(clip_value), float(clip_value))
