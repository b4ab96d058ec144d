"""What goes over the wire: JSON to arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame.data.collate import to_arrays
from pyflame.dtypes import to_dtype

__all__ = ["BadRequest", "answer_of", "inputs_of"]


class BadRequest(Exception):
    """A request that is answered with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def inputs_of(body: Any, dtype: str, max_batch: int) -> tuple[Any, int | None]:
    """The arrays of a request, and the size of the parts it asks for.

    Example:
        >>> inputs_of({"inputs": [[1, 2]]}, "float32", 8)
        (array([[1., 2.]], dtype=float32), None)
    """
    if not isinstance(body, dict) or "inputs" not in body:
        raise BadRequest(400, 'the body must be an object with "inputs"')
    given, kind = body["inputs"], body.get("dtype", dtype)
    if isinstance(given, dict):
        kinds = kind if isinstance(kind, dict) else dict.fromkeys(given, kind)
        arrays: Any = {name: _array(value, kinds.get(name, dtype), name) for name, value in given.items()}
        if not arrays:
            raise BadRequest(400, '"inputs" is empty')
        sizes = {a.shape[0] if a.ndim else 1 for a in arrays.values()}
    else:
        arrays = _array(given, kind, "inputs")
        sizes = {arrays.shape[0] if arrays.ndim else 1}
    if max(sizes) > max_batch:
        raise BadRequest(413, f"the batch has {max(sizes)} samples, max_batch_size allows {max_batch}")
    part = body.get("batch_size")
    if part is not None and (not isinstance(part, int) or isinstance(part, bool) or part < 1):
        raise BadRequest(400, f'"batch_size" must be a positive integer. Received: {part!r}')
    return arrays, part


def _array(value: Any, dtype: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        kind = to_dtype(dtype).numpy
    except (TypeError, ValueError, KeyError) as error:
        raise BadRequest(400, f"{name}: there is no element type {dtype!r}: {error}") from None
    if not isinstance(value, list):
        raise BadRequest(400, f"{name}: a list of numbers is needed. Received: {type(value).__name__}")
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"not numbers: {array.dtype}")
        return array.astype(kind)
    except (ValueError, OverflowError) as error:
        raise BadRequest(400, f"{name}: not an array of numbers: {error}") from None


def answer_of(outputs: Any, milliseconds: float) -> dict[str, Any]:
    """The answer to a prediction; what JSON cannot say (NaN, infinities) is null and counted."""
    lost = [0]

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return [plain(v) for v in value]
        array = np.asarray(value)
        if array.dtype.kind not in "fV":
            return array.tolist()
        wide = array.astype(np.float64)
        finite = np.isfinite(wide)
        if finite.all():
            return wide.tolist()
        lost[0] += int(wide.size - finite.sum())
        known = wide.astype(object)
        known[~finite] = None
        return known.tolist()

    answer: dict[str, Any] = {"outputs": plain(to_arrays(outputs)), "latency_ms": milliseconds}
    if lost[0]:
        answer["non_finite"] = lost[0]
    return answer
