"""Arguments and results as flat lists: tensors apart from everything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame.ops.core import Handle

__all__ = ["flat_positions", "flatten", "unflatten"]


def flatten(tree: Any, tensors: list[Any]) -> Any:
    """The structure of nested lists, tuples and dicts; tensors and arrays go to the list.

    What is neither stands for itself in the structure, so that structures are equal when calls are alike.
    """
    if isinstance(tree, (Handle, np.ndarray)):
        tensors.append(tree)
        return _TENSOR
    kind = type(tree)
    if kind is tuple or kind is list:
        return (kind, *[flatten(item, tensors) for item in tree])
    if kind is dict:
        return (dict, *[(key, flatten(value, tensors)) for key, value in tree.items()])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return (kind, *[flatten(item, tensors) for item in tree])
    return _Plain(tree)


class _Tensor:
    """Stands for a tensor in a structure."""

    def __repr__(self) -> str:
        return "<tensor>"


_TENSOR = _Tensor()


class _Plain:
    """Anything else: compared by value where it can be, by identity where not."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash((type(value), value))
        except TypeError:
            self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Plain):
            return False
        mine, yours = self.value, other.value
        if mine is yours:
            return True
        # 1, 1.0 and True are equal to Python, not to a graph.
        return type(mine) is type(yours) and self._hash == other._hash and bool(mine == yours)


def unflatten(structure: Any, tensors: Any) -> Any:
    """The tree again; ``tensors`` is an iterator."""
    if structure is _TENSOR:
        return next(tensors)
    if isinstance(structure, _Plain):
        return structure.value
    kind, *items = structure
    if kind is dict:
        return {key: unflatten(value, tensors) for key, value in items}
    parts = [unflatten(item, tensors) for item in items]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def flat_positions(structure: Any) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Of a tuple of tensors and plain things: positions of the former, positions and ids of the latter.

    None for tensors within lists, tuples and dicts.
    """
    kind, *items = structure
    if kind is not tuple or any(item is not _TENSOR and not isinstance(item, _Plain) for item in items):
        return None
    tensors = [i for i, item in enumerate(items) if item is _TENSOR]
    return tensors, [(i, id(item.value)) for i, item in enumerate(items) if item is not _TENSOR]
