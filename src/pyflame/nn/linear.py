"""Layers that multiply by a matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.nn import functional as F
from pyflame.nn import init
from pyflame.nn.making import empty_parameter
from pyflame.nn.module import Module
from pyflame.nn.placing import placed

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor

__all__ = ["Bilinear", "CosineSimilarity", "Flatten", "Linear", "PairwiseDistance", "Unflatten"]


@placed
class Linear(Module):
    """`x @ weight.T + bias`, with weight [out_features, in_features].

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Linear(3, 2)(pf.ones([5, 3])).shape
        [5, 2]
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        layout: MeshLayout | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter([out_features, in_features], dtype, layout)
        self.register_parameter("bias", empty_parameter([out_features], dtype, None) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Any) -> Tensor:
        """The product."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


@placed
class Bilinear(Module):
    """For each output `k`: `x1 @ weight[k] @ x2 + bias[k]`.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Bilinear(2, 3, 4)(pf.ones([5, 2]), pf.ones([5, 3])).shape
        [5, 4]
    """

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = empty_parameter([out_features, in1_features, in2_features])
        self.register_parameter("bias", empty_parameter([out_features]) if bias else None)
        bound = 1 / math.sqrt(in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Any, input2: Any) -> Tensor:
        """The products."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}"


class Flatten(Module):
    """Dimensions from `start_dim` to `end_dim` as one.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Flatten()(pf.ones([2, 3, 4])).shape
        [2, 12]
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Any) -> Tensor:
        """The flattened input."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The dimensions."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension as several.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Unflatten(1, [3, 4])(pf.ones([2, 12])).shape
        [2, 3, 4]
    """

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Any) -> Tensor:
        """The input with more dimensions."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The dimension and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along a dimension.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.CosineSimilarity(dim=0)(pf.tensor([1.0, 0.0]), pf.tensor([0.0, 2.0])).item()
        0.0
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Any, x2: Any) -> Tensor:
        """From -1 to 1."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The distance between vectors along the last dimension.

    Example:
        >>> import pyflame as pf
        >>> round(pf.nn.PairwiseDistance()(pf.tensor([[3.0, 0.0]]), pf.tensor([[0.0, 4.0]])).item(), 4)
        5.0
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Any, x2: Any) -> Tensor:
        """One number for each pair."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
