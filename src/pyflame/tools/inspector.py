"""What a tensor holds, in numbers, and how two differ."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["TensorInspector"]


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)


class TensorInspector:
    """Statistics of tensors; NaN and infinities are counted and left out of the rest.

    Example:
        >>> import pyflame as pf
        >>> facts = TensorInspector.inspect(pf.tensor([1.0, float("nan"), 3.0]))
        >>> facts["mean"], facts["nan_count"]
        (2.0, 1)
    """

    @staticmethod
    def inspect(tensor: Any) -> dict[str, Any]:
        """Shape, element type and statistics of a tensor or array."""
        array = _array(tensor)
        facts: dict[str, Any] = {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "size": int(array.size),
            "nan_count": 0,
            "inf_count": 0,
            "zero_count": int(array.size - np.count_nonzero(array)),
        }
        values = array.astype(np.float64).reshape(-1)
        facts["nan_count"] = int(np.isnan(values).sum())
        facts["inf_count"] = int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        for name in ("min", "max", "mean", "std"):
            facts[name] = float(getattr(np, name)(finite)) if finite.size else float("nan")
        return facts

    @staticmethod
    def compare(first: Any, second: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> dict[str, Any]:
        """How two tensors differ.

        Args:
            first: what is looked at.
            second: what it is measured by.
            rtol: part of the second's size that a difference may be.
            atol: a difference that is always allowed.
        """
        a, b = _array(first), _array(second)
        if a.shape != b.shape:
            return {"equal": False, "close": False, "reason": f"shapes {list(a.shape)} and {list(b.shape)} differ"}
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            close = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)
            gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
        worst = int(np.nanargmax(np.where(np.isnan(gap), np.inf, gap))) if gap.size else 0
        return {
            "equal": bool((gap == 0).all()),
            "close": bool(close.all()),
            "different": int((~close).sum()),
            "max_abs_diff": float(gap.reshape(-1)[worst]) if gap.size else 0.0,
            "worst_index": [int(i) for i in np.unravel_index(worst, a.shape)] if gap.size else [],
        }
