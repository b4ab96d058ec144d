"""Activation functions. Integers give float32; half precision is computed in float32."""

import math
from collections.abc import Callable

from emberharmony.declared import DECLARED
from emberharmony.dtypes import compute_dtype, float_for
from emberharmony.guards.axes import reduced_axes
from emberharmony.library import Library
from emberharmony.registry import alias, op
from emberharmony.typing import Array, ArrayLike, Axis


def _wide(lib: Library, x: ArrayLike, body: Callable[[Array], Array]) -> Array:
    """Apply a body in float32 or wider, and give back the float dtype of `x`."""
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x))
    inner = compute_dtype(answer)
    if lib.dtype(x) == inner == answer:
        return body(x)
    return lib.cast(body(lib.cast(x, inner)), answer)


@op
def relu(lib: Library, x: ArrayLike) -> Array:
    """The positive part.

    >>> ops.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    return lib.maximum(x, 0)


@op
def relu6(lib: Library, x: ArrayLike) -> Array:
    """Limited to 0 and 6.

    >>> ops.relu6(np.array([-1.0, 9.0]))
    array([0., 6.])
    """
    return lib.clip(x, 0, 6)


@op
def sigmoid(lib: Library, x: ArrayLike) -> Array:
    """`1 / (1 + exp(-x))`.

    >>> ops.sigmoid(np.array([0.0]))
    array([0.5])
    """

    def body(v: Array) -> Array:
        # exp of a negative number only, so that nothing overflows on either side.
        small = lib.exp(lib.negative(lib.abs(v)))
        share = lib.divide(1, lib.add(1, small))
        return lib.where(lib.greater_equal(v, 0), share, lib.multiply(small, share))

    return _wide(lib, x, body)


@op
def log_sigmoid(lib: Library, x: ArrayLike) -> Array:
    """`log(sigmoid(x))` without overflow.

    >>> ops.log_sigmoid(np.array([0.0]))
    array([-0.69314718])
    """
    return lib.negative(lib.softplus(lib.negative(x)))


@op
def softplus(lib: Library, x: ArrayLike) -> Array:
    """`log(1 + exp(x))` without overflow.

    >>> ops.softplus(np.array([0.0]))
    array([0.69314718])
    """

    def body(v: Array) -> Array:
        # By choice, not by maximum and abs: those have corners at 0, where this has a slope.
        above = lib.greater(v, 0)
        small = lib.exp(lib.where(above, lib.negative(v), v))
        return lib.add(lib.where(above, v, 0), lib.log1p(small))

    return _wide(lib, x, body)


@op
def softsign(lib: Library, x: ArrayLike) -> Array:
    """`x / (1 + |x|)`.

    >>> ops.softsign(np.array([1.0]))
    array([0.5])
    """
    return lib.divide(x, lib.add(1, lib.abs(x)))


@op
def silu(lib: Library, x: ArrayLike) -> Array:
    """`x * sigmoid(x)`, also called swish.

    >>> ops.silu(np.array([0.0]))
    array([0.])
    """
    return _wide(lib, x, lambda v: lib.multiply(v, lib.sigmoid(v)))


swish = alias("swish", silu)


@op
def mish(lib: Library, x: ArrayLike) -> Array:
    """`x * tanh(softplus(x))`.

    >>> ops.mish(np.array([0.0]))
    array([0.])
    """
    return _wide(lib, x, lambda v: lib.multiply(v, lib.tanh(lib.softplus(v))))


@op
def gelu(lib: Library, x: ArrayLike, approximate: bool = False) -> Array:
    """`x` times the normal distribution function, or its tanh approximation.

    >>> ops.gelu(np.array([0.0]))
    array([0.])
    """

    def exact(v: Array) -> Array:
        return lib.multiply(lib.multiply(v, 0.5), lib.add(1, lib.erf(lib.multiply(v, 0.5**0.5))))

    def by_tanh(v: Array) -> Array:
        inner = lib.multiply(lib.add(1, lib.multiply(0.044715, lib.square(v))), v)
        curve = lib.tanh(lib.multiply(math.sqrt(2 / math.pi), inner))
        return lib.multiply(lib.multiply(v, 0.5), lib.add(1, curve))

    return _wide(lib, x, by_tanh if approximate else exact)


@op
def elu(lib: Library, x: ArrayLike, alpha: float = 1.0) -> Array:
    """`x` above 0, else `alpha * (exp(x) - 1)`.

    >>> ops.elu(np.array([2.0, 0.0]))
    array([2., 0.])
    """

    def body(v: Array) -> Array:
        above = lib.greater(v, 0)
        below = lib.multiply(alpha, lib.expm1(lib.where(above, 0, v)))
        return lib.where(above, v, below)

    return _wide(lib, x, body)


@op
def celu(lib: Library, x: ArrayLike, alpha: float = 1.0) -> Array:
    """`x` above 0, else `alpha * (exp(x / alpha) - 1)`.

    >>> ops.celu(np.array([2.0, 0.0]))
    array([2., 0.])
    """

    def body(v: Array) -> Array:
        above = lib.greater(v, 0)
        below = lib.multiply(alpha, lib.expm1(lib.divide(lib.where(above, 0, v), alpha)))
        return lib.where(above, v, below)

    return _wide(lib, x, body)


@op
def selu(lib: Library, x: ArrayLike) -> Array:
    """The self-normalising form of `elu`.

    >>> ops.selu(np.array([0.0]))
    array([0.])
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return _wide(lib, x, lambda v: lib.multiply(scale, lib.elu(v, alpha)))


@op
def leaky_relu(lib: Library, x: ArrayLike, negative_slope: float = 0.2) -> Array:
    """`x` above 0, else `negative_slope * x`.

    >>> ops.leaky_relu(np.array([-1.0, 2.0]))
    array([-0.2,  2. ])
    """
    x = lib.as_array(x)
    return lib.where(lib.greater_equal(x, 0), x, lib.multiply(x, negative_slope))


@op
def hard_sigmoid(lib: Library, x: ArrayLike) -> Array:
    """`x / 6 + 1 / 2`, limited to 0 and 1.

    >>> ops.hard_sigmoid(np.array([0.0, 9.0]))
    array([0.5, 1. ])
    """
    return _wide(lib, x, lambda v: lib.divide(lib.relu6(lib.add(v, 3)), 6))


@op
def hard_swish(lib: Library, x: ArrayLike) -> Array:
    """`x * hard_sigmoid(x)`.

    >>> ops.hard_swish(np.array([0.0, 9.0]))
    array([0., 9.])
    """
    return _wide(lib, x, lambda v: lib.multiply(v, lib.hard_sigmoid(v)))


hard_silu = alias("hard_silu", hard_swish)


@op
def softmax(lib: Library, x: ArrayLike, axis: Axis = -1) -> Array:
    """Exponentials divided by their sum along the axis.

    >>> ops.softmax(np.zeros(2))
    array([0.5, 0.5])
    """

    def body(v: Array) -> Array:
        reduced_axes(axis, len(v.shape))
        if 0 in v.shape:
            return v
        raised = lib.exp(lib.subtract(v, lib.max(v, axis, keepdims=True)))
        return lib.divide(raised, lib.sum(raised, axis, keepdims=True))

    return _wide(lib, x, body)


@op
def log_softmax(lib: Library, x: ArrayLike, axis: Axis = -1) -> Array:
    """Logarithm of `softmax`, without overflow.

    >>> ops.log_softmax(np.zeros(2))
    array([-0.69314718, -0.69314718])
    """

    def body(v: Array) -> Array:
        reduced_axes(axis, len(v.shape))
        if 0 in v.shape:
            return v
        low = lib.subtract(v, lib.max(v, axis, keepdims=True))
        return lib.subtract(low, lib.log(lib.sum(lib.exp(low), axis, keepdims=True)))

    return _wide(lib, x, body)


@op
def linear(lib: Library, x: ArrayLike) -> Array:
    """`x` itself: the activation of a layer without one.

    >>> ops.linear(np.array([1.0]))
    array([1.])
    """
    return lib.as_array(x)


_ACTIVATIONS = frozenset(
    [
        "relu",
        "relu6",
        "sigmoid",
        "log_sigmoid",
        "softplus",
        "softsign",
        "silu",
        "swish",
        "mish",
        "gelu",
        "elu",
        "celu",
        "selu",
        "leaky_relu",
        "hard_sigmoid",
        "hard_swish",
        "hard_silu",
        "softmax",
        "log_softmax",
        "linear",
        "tanh",
        "exp",
    ]
)


def get_activation(name: str | None) -> Callable[..., Array]:
    """The activation function of that name; None means `linear`.

    Raises:
        ValueError: No activation has that name; the message lists all.

    >>> get_activation("relu").__name__
    'relu'
    """
    from emberharmony import ops

    chosen = "linear" if name is None else name.lower()
    if chosen not in _ACTIVATIONS or chosen not in DECLARED:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise ValueError(f"unknown activation {name!r}; known: {known}")
    return getattr(ops, chosen)
