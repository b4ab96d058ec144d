"""Random numbers.

`seed=` makes one call repeatable; `set_random_seed` all that follow. Uniform and normal numbers
come from the library's own generator, the other kinds from NumPy's on the host, which gives
the same values on every library for a given seed.
"""

from typing import Any

import numpy as np

from emberharmony.dtypes import as_dtype, float32, int64
from emberharmony.library import Library
from emberharmony.registry import op, primitive
from emberharmony.seeding import SEED
from emberharmony.typing import Array, ArrayLike, DTypeLike, Shape


def set_random_seed(seed: int) -> None:
    """Make the random numbers of every library repeatable from here on.

    >>> set_random_seed(7); first = ops.to_numpy(ops.random_uniform((2,)))
    >>> set_random_seed(7); (first == ops.to_numpy(ops.random_uniform((2,)))).all().item()
    True
    """
    SEED.set(seed)


def _host(lib: Library, seed: int | None) -> "np.random.Generator":  # NumPy loads this part when it is used
    if seed is None:
        # Drawn from the library's generator, so that its seed decides here too.
        drawn = lib.to_numpy(lib.random_uniform((2,)))
        seed = int(drawn.astype(np.float32).view(np.uint64)[0])
    return np.random.default_rng(seed)


def _made(lib: Library, values: Any, dtype: DTypeLike) -> Array:
    return lib.from_numpy(np.asarray(values).astype(as_dtype(dtype), copy=False))


@primitive
def random_uniform(
    lib: Library,
    shape: Shape,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """Uniformly distributed, from `minval` to below `maxval`.

    >>> ops.shape(ops.random_uniform((2, 3)))
    (2, 3)
    """


@primitive
def random_normal(
    lib: Library,
    shape: Shape,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """Normally distributed.

    >>> ops.shape(ops.random_normal((2, 3), mean=5.0))
    (2, 3)
    """


@op
def random_truncated_normal(
    lib: Library,
    shape: Shape,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """Normally distributed within two standard deviations of the mean.

    >>> ops.shape(ops.random_truncated_normal((2,)))
    (2,)
    """
    generator = _host(lib, seed)
    values = generator.standard_normal(tuple(shape))
    while (outside := np.abs(values) > 2).any():
        values = np.where(outside, generator.standard_normal(tuple(shape)), values)
    return _made(lib, values * stddev + mean, dtype)


@op
def random_bernoulli(
    lib: Library,
    shape: Shape,
    p: float = 0.5,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """1 with probability `p`, else 0.

    >>> ops.shape(ops.random_bernoulli((2,)))
    (2,)
    """
    return lib.random_binomial(shape, p, 1, dtype, seed)


@op
def random_binomial(
    lib: Library,
    shape: Shape,
    p: float = 0.5,
    counts: int = 1,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """How many of `counts` trials succeed, each with probability `p`.

    >>> ops.shape(ops.random_binomial((2,), p=0.3))
    (2,)
    """
    return _made(lib, _host(lib, seed).binomial(counts, p, tuple(shape)), dtype)


@op
def random_gamma(
    lib: Library,
    shape: Shape,
    alpha: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Array:
    """Gamma distributed with shape parameter `alpha` and scale 1.

    >>> ops.shape(ops.random_gamma((2,), 3.0))
    (2,)
    """
    return _made(lib, _host(lib, seed).gamma(alpha, size=tuple(shape)), dtype)


@op
def random_randint(
    lib: Library,
    shape: Shape,
    minval: int,
    maxval: int,
    dtype: DTypeLike = int64,
    seed: int | None = None,
) -> Array:
    """Integers from `minval` to below `maxval`.

    >>> ops.to_numpy(ops.random_randint((2,), 3, 4))
    array([3, 3])
    """
    return _made(lib, _host(lib, seed).integers(minval, maxval, tuple(shape)), dtype)


@op
def random_categorical(
    lib: Library,
    logits: ArrayLike,
    num_samples: int,
    dtype: DTypeLike = int64,
    seed: int | None = None,
) -> Array:
    """Classes drawn for each row of `logits`, unnormalised log probabilities.

    >>> ops.random_categorical(np.array([[0.0, -np.inf]]), 3)
    array([[0, 0, 0]])
    """
    known = lib.to_numpy(logits).astype(np.float64)
    shape = (*known.shape[:-1], num_samples, known.shape[-1])
    # The largest of logits with Gumbel noise is distributed as their softmax.
    noisy = known[..., None, :] + _host(lib, seed).gumbel(size=shape)
    return _made(lib, noisy.argmax(-1), dtype)


@op
def random_permutation(lib: Library, x: int | ArrayLike, axis: int = 0, seed: int | None = None) -> Array:
    """The numbers below `x`, or the rows of an array, in random order.

    >>> sorted(ops.to_numpy(ops.random_permutation(3)).tolist())
    [0, 1, 2]
    """
    if isinstance(x, int | np.integer):
        return lib.from_numpy(_host(lib, seed).permutation(int(x)).astype(np.int64))
    rows: Array = lib.as_array(x)
    order = _host(lib, seed).permutation(rows.shape[axis]).astype(np.int64)
    return lib.take(rows, lib.from_numpy(order), axis=axis)


@op
def random_shuffle(lib: Library, x: ArrayLike, axis: int = 0, seed: int | None = None) -> Array:
    """The elements along an axis in random order.

    >>> ops.random_shuffle(np.ones(2))
    array([1., 1.])
    """
    return lib.random_permutation(lib.as_array(x), axis, seed)
