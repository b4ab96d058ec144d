"""Samples put together into batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.tensors import Tensor
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.tensor import whole


@names_arguments
def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples: numbers and arrays become tensors, tuples, lists and dicts are collated part by part.

    Python floats become float32 and ints int64; arrays keep their dtype; strings stay a list.

    Example:
        >>> from pyflame.data import default_collate
        >>> images, labels = default_collate([([0.5, 1.0], 3), ([2.0, 2.5], 4)])
        >>> [part.numpy().tolist() for part in images], labels.numpy().tolist()
        ([[0.5, 2.0], [1.0, 2.5]], [3, 4])
    """
    return to_tensors(collate_arrays(batch))


def collate_arrays(batch: Sequence[Any]) -> Any:
    """As `default_collate`, but giving NumPy arrays, which travel between processes."""
    if not batch:
        raise ValueError("An empty batch cannot be collated")
    first = batch[0]
    if isinstance(first, bool | np.bool_):
        return np.asarray(batch, np.bool_)
    if isinstance(first, int):
        return np.asarray(batch, np.int64)
    if isinstance(first, float) and not isinstance(first, np.floating):
        return np.asarray(batch, np.float32)
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: collate_arrays([sample[key] for sample in batch]) for key in first}
    if isinstance(first, tuple | list):
        return _collate_sequence(batch, first)
    return _stack([whole(sample, "a sample") for sample in batch])


def _collate_sequence(batch: Sequence[Any], first: tuple[Any, ...] | list[Any]) -> Any:
    if any(len(sample) != len(first) for sample in batch):
        raise ValueError(f"Samples differ in length: {sorted({len(sample) for sample in batch})}")
    parts = [collate_arrays(part) for part in zip(*batch, strict=True)]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*parts)
    return type(first)(parts)


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"Samples of one batch must have the same shape; pass collate_fn to pad. Received: {shapes}")
    if arrays[0].dtype.kind in "OUS":
        raise TypeError(f"Samples must be numbers, arrays, tensors or collections of them. Received: {arrays[0].dtype}")
    return np.stack(arrays)


def to_tensors(batch: Any) -> Any:
    """The same nest with tensors in place of arrays."""
    if isinstance(batch, np.ndarray):
        return adopt(batch)
    if isinstance(batch, Mapping):
        return {key: to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_tensors(part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_tensors(part) for part in batch)
    return batch


def to_arrays(batch: Any) -> Any:
    """The same nest with arrays in place of tensors."""
    if isinstance(batch, Tensor):
        return batch.numpy()
    if isinstance(batch, Mapping):
        return {key: to_arrays(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_arrays(part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_arrays(part) for part in batch)
    return batch
