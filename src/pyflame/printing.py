"""How tensors look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["set_printoptions", "tensor_repr", "tensor_text"]

_options: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80}


@names_arguments
def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
) -> None:
    """Choose how many digits and elements are shown.

    Example:
        >>> set_printoptions(precision=4)
    """
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _options.update({name: value for name, value in given.items() if value is not None})


def _suffix(t: Tensor) -> str:
    parts = []
    if t.dtype not in (DType.float32, DType.bool):
        parts.append(f"dtype={t.dtype.name}")
    if t.requires_grad:
        parts.append("requires_grad=True" if t.is_leaf else f"grad_fn={t.grad_fn}")
    return "".join(f", {part}" for part in parts)


def tensor_text(t: Tensor) -> str:
    """The contents, evaluated if need be."""
    array = t.numpy(copy=False)
    body = np.array2string(array, separator=", ", prefix="tensor(", **_text_options(array))
    if array.size == 0:
        body = "[]" if array.shape == (0,) else f"[], shape={t.shape}"
    return f"tensor({body}{_suffix(t)})"


def _text_options(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    options = {
        "threshold": _options["threshold"],
        "edgeitems": _options["edgeitems"],
        "max_line_width": _options["linewidth"],
    }
    if array.dtype.kind in "fc":
        options |= {"precision": _options["precision"], "floatmode": "maxprec_equal"}
    return options


def tensor_repr(t: Tensor) -> str:
    """The contents if they are known; a debugger must not start a computation."""
    if t._value.array is not None:
        return tensor_text(t)
    return f"tensor(shape={t.shape}, dtype={t.dtype.name}, lazy{_suffix(t).replace(f', dtype={t.dtype.name}', '')})"
