"""Starting values of weights, as torch has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from pyflame.arrays import adopt, as_generator
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def _fill(tensor: Tensor, values: np.ndarray) -> Tensor:
    tensor._renew(adopt(np.ascontiguousarray(values, dtype=tensor.dtype.numpy)))
    return tensor


def _fans(tensor: Tensor) -> tuple[int, int]:
    if len(tensor.shape) < 2:
        raise ValueError(f"Fan in and fan out need at least two dimensions. Received: {list(tensor.shape)}")
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be fan_in or fan_out. Received: {mode!r}")
    # A tensor without elements has nothing to fill, and its spread does not matter.
    return max(1, _fans(tensor)[mode == "fan_out"])


@names_arguments
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much an activation shrinks its input's spread, so that weights can make up for it.

    Example:
        >>> from pyflame.nn.init import calculate_gain
        >>> round(calculate_gain("relu"), 4), calculate_gain("linear")
        (1.4142, 1.0)
    """
    gains = {"sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
    linear = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    if nonlinearity in linear:
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in gains:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity!r}")
    return gains[nonlinearity]


@names_arguments
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: np.random.Generator | None = None) -> Tensor:
    """Values evenly between `a` and `b`.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.init.uniform_(pf.zeros([100]), 2.0, 3.0).numpy()
        >>> bool(((w >= 2) & (w <= 3)).all())
        True
    """
    return _fill(tensor, as_generator(generator).uniform(a, b, tuple(tensor.shape)))


@names_arguments
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: np.random.Generator | None = None
) -> Tensor:
    """Values of a normal distribution.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.normal_(pf.zeros([2, 3]), std=0.02).shape
        [2, 3]
    """
    return _fill(tensor, as_generator(generator).normal(mean, std, tuple(tensor.shape)))


@names_arguments
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: np.random.Generator | None = None,
) -> Tensor:
    """Values of a normal distribution, drawn again while outside of `a` and `b`.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.init.trunc_normal_(pf.zeros([500])).numpy()
        >>> bool((abs(w) <= 2).all())
        True
    """
    if not a < b or b < mean - 8 * std or a > mean + 8 * std:
        raise ValueError(f"[a, b] must hold part of the distribution. Received: a={a}, b={b}, mean={mean}, std={std}")
    random = as_generator(generator)
    values = random.normal(mean, std, tuple(tensor.shape))
    while (outside := (values < a) | (values > b)).any():
        values[outside] = random.normal(mean, std, int(outside.sum()))
    return _fill(tensor, values)


@names_arguments
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.constant_(pf.zeros([2]), 3.0).numpy().tolist()
        [3.0, 3.0]
    """
    return _fill(tensor, np.full(tuple(tensor.shape), val))


@names_arguments
def ones_(tensor: Tensor) -> Tensor:
    """Ones.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.ones_(pf.zeros([2])).numpy().tolist()
        [1.0, 1.0]
    """
    return constant_(tensor, 1.0)


@names_arguments
def zeros_(tensor: Tensor) -> Tensor:
    """Zeros.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.zeros_(pf.ones([2])).numpy().tolist()
        [0.0, 0.0]
    """
    return constant_(tensor, 0.0)


@names_arguments
def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.eye_(pf.zeros([2, 2])).numpy().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if len(tensor.shape) != 2:
        raise ValueError(f"eye_ needs a matrix. Received: {list(tensor.shape)}")
    return _fill(tensor, np.eye(*tensor.shape))


@names_arguments
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Convolution weights that pass channels through unchanged.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.dirac_(pf.zeros([1, 1, 3])).numpy().tolist()
        [[[0.0, 1.0, 0.0]]]
    """
    shape = tuple(tensor.shape)
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        raise ValueError(f"dirac_ needs 3 to 5 dimensions and whole groups. Received: {list(shape)}, groups={groups}")
    values = np.zeros(shape)
    centre = tuple(size // 2 for size in shape[2:])
    out = shape[0] // groups
    for group in range(groups):
        for channel in range(min(out, shape[1])):
            values[(group * out + channel, channel, *centre)] = 1
    return _fill(tensor, values)


@names_arguments
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: np.random.Generator | None = None) -> Tensor:
    """Uniform values that keep the spread of signals both ways.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.init.xavier_uniform_(pf.zeros([3, 3])).numpy()
        >>> bool((abs(w) <= 1).all())
        True
    """
    bound = gain * math.sqrt(6 / max(1, sum(_fans(tensor))))
    return uniform_(tensor, -bound, bound, generator)


@names_arguments
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: np.random.Generator | None = None) -> Tensor:
    """Normal values that keep the spread of signals both ways.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.xavier_normal_(pf.zeros([3, 3])).shape
        [3, 3]
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(1, sum(_fans(tensor)))), generator)


@names_arguments
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: np.random.Generator | None = None,
) -> Tensor:
    """Uniform values that keep the spread of signals through a rectifier.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.init.kaiming_uniform_(pf.zeros([3, 6])).numpy()
        >>> bool((abs(w) <= 1).all())
        True
    """
    bound = math.sqrt(3) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


@names_arguments
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: np.random.Generator | None = None,
) -> Tensor:
    """Normal values that keep the spread of signals through a rectifier.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.init.kaiming_normal_(pf.zeros([3, 6]), mode="fan_out", nonlinearity="relu").shape
        [3, 6]
    """
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


@names_arguments
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: np.random.Generator | None = None) -> Tensor:
    """A (semi-)orthogonal matrix of the first dimension by the others.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> w = pf.nn.init.orthogonal_(pf.zeros([3, 5])).numpy()
        >>> bool(np.allclose(w @ w.T, np.eye(3), atol=1e-5))
        True
    """
    if len(tensor.shape) < 2:
        raise ValueError(f"orthogonal_ needs at least two dimensions. Received: {list(tensor.shape)}")
    rows = tensor.shape[0]
    columns = math.prod(tensor.shape[1:])
    flat = as_generator(generator).normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diag(r))
    return _fill(tensor, gain * (q if rows >= columns else q.T).reshape(tuple(tensor.shape)))


@names_arguments
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: np.random.Generator | None = None) -> Tensor:
    """Normal values with a share of zeros in each column.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.init.sparse_(pf.zeros([10, 4]), sparsity=0.3).numpy()
        >>> (w == 0).sum(axis=0).tolist()
        [3, 3, 3, 3]
    """
    if len(tensor.shape) != 2:
        raise ValueError(f"sparse_ needs a matrix. Received: {list(tensor.shape)}")
    rows, columns = tensor.shape
    random = as_generator(generator)
    values = random.normal(0, std, (rows, columns))
    for column in range(columns):
        values[random.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0
    return _fill(tensor, values)
