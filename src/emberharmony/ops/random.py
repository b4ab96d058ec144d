"""Random numbers.

`seed=` makes one call repeatable; `set_random_seed` all that follow. One counter-based generator serves every library:
the same seed gives the same numbers on all of them.
"""

import math
from typing import Any

import numpy as np

from emberharmony.dtypes import INTEGER, as_dtype, float32, highest, int64, kind, lowest
from emberharmony.guards.axes import plain_axis
from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.seeding import SEED
from emberharmony.special import erfinv, lgamma
from emberharmony.threefry import Key, normals, uniforms, words64
from emberharmony.typing import Array, ArrayLike, DTypeLike, Shape


def set_random_seed(seed: int) -> None:
    """Make the random numbers of every library repeatable from here on.

    >>> set_random_seed(7); first = ops.to_numpy(ops.random_uniform((2,)))
    >>> set_random_seed(7); (first == ops.to_numpy(ops.random_uniform((2,)))).all().item()
    True
    """
    SEED.set(seed)


def _sizes(shape: Shape) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"a shape has no negative sizes, received {sizes}")
    return sizes


def _made(lib: Library, values: Any, shape: Shape, dtype: DTypeLike) -> Array:
    return lib.from_numpy(np.asarray(values).reshape(_sizes(shape)).astype(as_dtype(dtype), copy=False))


def _chance(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"a probability is from 0 to 1, received {p}")
    return float(p)


@op
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
    drawn = uniforms(SEED.key(seed), math.prod(_sizes(shape)))
    made = (drawn * (maxval - minval) + minval).reshape(_sizes(shape)).astype(as_dtype(dtype))
    # Rounding to a narrow dtype may reach the upper end, which is not included.
    return lib.from_numpy(
        np.where(made >= maxval, np.asarray(minval).astype(made.dtype), made) if maxval > minval else made
    )


@op
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
    return _made(lib, normals(SEED.key(seed), math.prod(_sizes(shape))) * stddev + mean, shape, dtype)


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
    # By the inverse of the distribution function between -2 and 2, whose share is erf(sqrt(2)).
    share = (2.0 * uniforms(SEED.key(seed), math.prod(_sizes(shape))) - 1.0) * math.erf(math.sqrt(2.0))
    return _made(lib, math.sqrt(2.0) * erfinv(share) * stddev + mean, shape, dtype)


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
    return _made(lib, uniforms(SEED.key(seed), math.prod(_sizes(shape))) < _chance(p), shape, dtype)


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
    if counts < 0:
        raise ValueError(f"there are no {counts} trials")
    # A number below the sum of the first k chances means at most k successes.
    sums = np.cumsum(_chances(int(counts), _chance(p)))
    drawn = np.searchsorted(sums, uniforms(SEED.key(seed), math.prod(_sizes(shape))), "right")
    return _made(lib, np.minimum(drawn, counts), shape, dtype)


def _chances(counts: int, p: float) -> np.ndarray:
    """The chances of 0 to `counts` successes."""
    k = np.arange(counts + 1.0)
    if p in (0.0, 1.0):
        return (k == counts * p).astype(np.float64)
    ways = math.lgamma(counts + 1) - lgamma(k + 1) - lgamma(counts - k + 1)
    return np.exp(ways + k * math.log(p) + (counts - k) * math.log1p(-p))


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
    if not alpha > 0:
        raise ValueError(f"the shape parameter is above 0, received {alpha}")
    return _made(lib, _gammas(SEED.key(seed), math.prod(_sizes(shape)), float(alpha)), shape, dtype)


def _gammas(key: Key, count: int, alpha: float) -> np.ndarray:
    """By the method of Marsaglia and Tsang; numbers it rejects are drawn again from the next streams."""
    # Below 1 the method does not hold: one step up, and down again by a power of a uniform number.
    down = 1.0 if alpha >= 1 else (1.0 - uniforms(key, count, 0)) ** (1.0 / alpha)
    d = (alpha if alpha >= 1 else alpha + 1.0) - 1.0 / 3.0
    made, left, stream = np.empty(count), np.arange(count), 1
    while left.size:
        x = normals(key, count, stream)[left]
        u = 1.0 - uniforms(key, count, stream + 2)[left]
        v = (1.0 + x / math.sqrt(9.0 * d)) ** 3
        with np.errstate(invalid="ignore", divide="ignore"):
            taken = (v > 0) & (np.log(u) < 0.5 * x * x + d - d * v + d * np.log(v))
        made[left[taken]] = d * v[taken]
        left, stream = left[~taken], stream + 3
    return made * down


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
    low, high = int(minval), int(maxval)
    wanted = as_dtype(dtype)
    if high <= low or high - low > 2**64:
        raise ValueError(f"there is no integer from {low} to below {high}")
    if kind(wanted) == INTEGER and not lowest(wanted) <= low <= high - 1 <= highest(wanted):
        raise ValueError(f"integers from {low} to below {high} are out of range for {wanted}")
    drawn = words64(SEED.key(seed), math.prod(_sizes(shape)))
    drawn = drawn if high - low == 2**64 else drawn % np.uint64(high - low)
    # Added modulo 2**64, where negative numbers are what they are in two's complement.
    return _made(
        lib, (drawn + np.uint64(low % 2**64)).view(np.int64 if low < 0 or high <= 2**63 else np.uint64), shape, dtype
    )


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
    drawn = uniforms(SEED.key(seed), math.prod(shape)).reshape(shape)
    noisy = known[..., None, :] - np.log(-np.log(drawn + 2.0**-54))
    return _made(lib, noisy.argmax(-1), shape[:-1], dtype)


@op
def random_permutation(lib: Library, x: int | ArrayLike, axis: int = 0, seed: int | None = None) -> Array:
    """The numbers below `x`, or the rows of an array, in random order.

    >>> sorted(ops.to_numpy(ops.random_permutation(3)).tolist())
    [0, 1, 2]
    """
    if isinstance(x, int | np.integer):
        return lib.from_numpy(_order(int(x), seed))
    rows: Array = lib.as_array(x)
    along = plain_axis(axis, len(rows.shape))
    return lib.take(rows, _order(rows.shape[along], seed), axis=along)


def _order(count: int, seed: int | None) -> np.ndarray:
    if count < 0:
        raise ValueError(f"there are no {count} numbers to put in order")
    return np.argsort(words64(SEED.key(seed), count), kind="stable").astype(np.int64)


@op
def random_shuffle(lib: Library, x: ArrayLike, axis: int = 0, seed: int | None = None) -> Array:
    """The elements along an axis in random order.

    >>> ops.random_shuffle(np.ones(2))
    array([1., 1.])
    """
    return lib.random_permutation(lib.as_array(x), axis, seed)
