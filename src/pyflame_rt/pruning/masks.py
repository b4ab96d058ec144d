"""PruningMask: which elements of a weight stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments

__all__ = ["PruningMask", "apply_masks"]

Array = np.ndarray[Any, Any]


class PruningMask:
    """True where an element of a weight stays.

    Example:
        >>> mask = PruningMask.from_tensor(np.array([[0.0, 2.0], [3.0, 0.0]]))
        >>> mask.sparsity(), mask.num_zeros(), mask.apply(np.ones((2, 2))).tolist()
        (0.5, 2, [[0.0, 1.0], [1.0, 0.0]])
    """

    __slots__ = ("_keep",)

    @names_arguments
    def __init__(self, keep: Any) -> None:
        self._keep = np.asarray(keep, dtype=bool)

    @classmethod
    def from_tensor(cls, tensor: Any) -> PruningMask:
        """The mask that keeps what is not zero."""
        return cls(np.asarray(tensor) != 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self._keep.shape

    def numpy(self) -> Array:
        """The mask as an array of bool."""
        return self._keep

    def num_zeros(self) -> int:
        """How many elements are taken away."""
        return int(self._keep.size - np.count_nonzero(self._keep))

    def sparsity(self) -> float:
        """The share of elements that are taken away."""
        return self.num_zeros() / self._keep.size if self._keep.size else 0.0

    def apply(self, tensor: Any) -> Any:
        """The tensor with zeros where nothing stays; a Tensor gives a Tensor, an array an array."""
        array = tensor.raw() if isinstance(tensor, Tensor) else np.asarray(tensor)
        if array.shape != self._keep.shape:
            raise ShapeMismatchError(f"a mask of shape {list(self.shape)} does not fit a weight of {list(array.shape)}")
        masked = np.where(self._keep, array, array.dtype.type(0))
        return Tensor(masked) if isinstance(tensor, Tensor) else masked

    def __and__(self, other: PruningMask) -> PruningMask:
        return PruningMask(self._keep & other._keep)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PruningMask) and np.array_equal(self._keep, other._keep)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PruningMask({list(self.shape)}, sparsity {self.sparsity():.3f})"


@names_arguments
def apply_masks(graph: Graph, masks: Mapping[str, PruningMask]) -> Graph:
    """A copy of a graph with its weights masked.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_initializer("w", np.ones((2, 2), np.float32))
        >>> apply_masks(g, {"w": PruningMask([[1, 0], [0, 1]])}).get_initializer("w").numpy().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    expect(graph, Graph, "what is masked")
    expect(masks, Mapping, "masks")
    twin = graph.copy()
    twin.origin = None
    for name, mask in masks.items():
        twin.initializers[name] = mask.apply(graph.get_initializer(name))
    return twin
