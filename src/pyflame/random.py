"""Random tensors: each is a fixed pattern from the moment it is made, its values are drawn when it is evaluated."""

from __future__ import annotations

import math
import secrets
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.devices import Device
from pyflame.dtypes import DType, get_default_dtype, to_dtype
from pyflame.lazy import Val, leaf, modes
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops.core import Handle, as_tensor, call, cast, convert, is_scalar, real_only, scalar, wrap
from pyflame.ops.creation import _finish, _size_and_dtype
from pyflame.ops.ranges import probabilities, some_chance
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex
from pyflame_rt.ops.pyflame.seeded_random import KeyedNormal, KeyedUniform

if TYPE_CHECKING:
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor
    from pyflame_rt.ops.core.registry import Op

__all__ = [
    "Generator",
    "bernoulli",
    "default_generator",
    "dropout",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_rng_state",
    "uniform",
]

_MASK = (1 << 64) - 1


class Generator:
    """A source of seeds: the n-th random tensor made with it depends on its seed and on n alone.

    Example:
        >>> import pyflame as pf
        >>> g = pf.Generator().manual_seed(1)
        >>> a, b = pf.rand(2, generator=g), pf.rand(2, generator=g.manual_seed(1))
        >>> bool((a == b).all())
        True
    """

    def __init__(self, seed: int | str | Device | None = None, *, device: Any = None) -> None:
        if isinstance(seed, str | Device):  # torch's first argument
            seed, device = None, seed
        self.device = Device.of("cpu" if device is None else device)
        self._lock = threading.Lock()
        self._start(secrets.randbits(63), 0)
        if seed is not None:
            self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from a seed."""
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            raise TypeError(f"a seed is an int, got {type(seed).__name__}")
        _refuse_in_trace()
        self._start(int(seed), 0)
        return self

    def seed(self) -> int:
        """Start again from a seed that nobody knows, and return it."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """The seed it started from."""
        return self._seed

    def get_state(self) -> tuple[int, int]:
        """What to give to :meth:`set_state` to go on from here."""
        with self._lock:
            return self._seed, self._count

    def set_state(self, state: tuple[int, int]) -> Generator:
        """Go on from a state."""
        seed, count = (int(v) for v in state)
        _refuse_in_trace()
        self._start(seed, count)
        return self

    def next_key(self) -> np.ndarray[Any, Any]:
        """The key of the next random tensor."""
        with self._lock:
            seed, count = self._seed, self._count
            self._count = (count + 1) & _MASK
        return _key(seed, count)

    def _start(self, seed: int, count: int) -> None:
        with self._lock:
            self._seed, self._count = seed, count & _MASK


def _refuse_in_trace() -> None:
    """A seed set while a function is compiled would be set once, not at each of its calls."""
    if modes.tracer is not None:
        from pyflame.compiling.tracer import TraceError

        raise TraceError(
            "a compiled function sets the state of a random generator, which its later calls would not do; "
            "set it before the call"
        )


def _key(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Two words that differ in every bit for neighbouring seeds and counts."""
    z = _mix((_mix(seed & _MASK) + (count + 1) * 0x9E3779B97F4A7C15) & _MASK)
    return np.array([z >> 32, z & 0xFFFFFFFF], np.int64)


def _mix(z: int) -> int:
    """The finalizer of SplitMix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


default_generator = Generator(0)
default_generator.seed()


def manual_seed(seed: int) -> Generator:
    """Make what follows repeatable.

    Example:
        >>> import pyflame as pf
        >>> _ = pf.manual_seed(0); a = pf.randn([3])
        >>> _ = pf.manual_seed(0); b = pf.randn([3])
        >>> bool((a == b).all())
        True
    """
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start the default generator from a seed that nobody knows, and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> tuple[int, int]:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: tuple[int, int]) -> None:
    """Let the default generator go on from a state."""
    default_generator.set_state(state)


def key_value(generator: Generator | None = None, seed: int | None = None) -> Val:
    """The key of one random tensor, as a runtime input of the graph; a compiled function draws it anew each time."""
    if seed is not None:
        return leaf(_key(int(seed), -1 & 0xFFFF), DType.int64)
    source = default_generator if generator is None else generator
    if modes.tracer is None:
        return leaf(source.next_key(), DType.int64)
    made = leaf(np.zeros(2, np.int64), DType.int64)  # stands for the key that each call draws: a trace draws none
    modes.tracer.note_key(made, source)
    return made


def _draw(op: Op, sizes: tuple[int, ...], dtype: Any, generator: Generator | None, seed: int | None = None) -> Tensor:
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    if kind.is_complex:
        parts = _draw(op, (*sizes, 2), kind.to_real(), generator, seed)
        return call(ViewAsComplex, ar.mul(parts, math.sqrt(0.5)) if op is KeyedNormal else parts)
    if not kind.is_floating_point:
        raise TypeError(f"random numbers of this kind are floating point, got {kind}; use randint for integers")
    return call(op, wrap(_sizes_value(sizes)), wrap(key_value(generator, seed)), dtype=kind.rt.onnx)


def _sizes_value(sizes: tuple[int, ...]) -> Val:
    from pyflame.lazy import const

    return const(sizes)


def randn(
    *size: Any,
    dtype: Any = None,
    layout: MeshLayout | None = None,
    device: Any = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers.

    Example:
        >>> import pyflame as pf
        >>> pf.randn([2, 3]).shape
        [2, 3]
    """
    sizes, dtype = _size_and_dtype(size, dtype)
    return _finish(_draw(KeyedNormal, sizes, dtype, generator), layout, requires_grad, device)


def rand(
    *size: Any,
    dtype: Any = None,
    layout: MeshLayout | None = None,
    device: Any = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from 0 up to but without 1."""
    sizes, dtype = _size_and_dtype(size, dtype)
    return _finish(_draw(KeyedUniform, sizes, dtype, generator), layout, requires_grad, device)


def uniform(size: Any, low: float = 0.0, high: float = 1.0, *, dtype: Any = None, generator: Any = None) -> Tensor:
    """Numbers between two bounds."""
    if low > high:
        raise ValueError(f"uniform: the upper bound {high} is below the lower one {low}")
    return ar.add(ar.mul(rand(size, dtype=dtype, generator=generator), high - low), low)


def randn_like(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal numbers in the shape and type of a tensor."""
    x = as_tensor(input)
    kind = x.dtype if dtype is None else dtype
    return randn(x.shape, dtype=kind, device=device, requires_grad=requires_grad)


def rand_like(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Numbers from 0 up to but without 1 in the shape and type of a tensor."""
    x = as_tensor(input)
    kind = x.dtype if dtype is None else dtype
    return rand(x.shape, dtype=kind, device=device, requires_grad=requires_grad)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    generator: Any = None,
) -> Tensor:
    """Normal numbers with a mean and a standard deviation, which may be tensors."""
    real_only("normal", mean)
    shape = size
    if is_scalar(std) and not std >= 0:
        raise ValueError(f"normal: std must not be negative, got {std}")
    if isinstance(std, Handle):
        std = probabilities(std, "normal: std", math.inf)  # type: ignore[arg-type]
    if shape is None:
        shape = np.broadcast_shapes(*[tuple(v.shape) if isinstance(v, Handle) else () for v in (mean, std)])  # type: ignore[attr-defined]
    return ar.add(ar.mul(randn(shape, dtype=dtype, device=device, generator=generator), std), mean)


@names_arguments
def randint(
    *args: Any,
    low: int = 0,
    high: int | None = None,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Integers from ``low`` up to but without ``high``: ``randint(high, size)`` or ``randint(low, high, size)``."""
    given = list(args)
    if size is None:
        size = given.pop() if given else None
    if high is None:
        high = given.pop() if given else None
    low = given.pop() if given else low
    if given or size is None or high is None:
        raise TypeError("randint takes (high, size) or (low, high, size)")
    if high <= low:
        raise ValueError(f"randint: high must be above low, got {low} and {high}")
    if high - low > 1 << 53:
        raise ValueError(f"randint: more than 2**53 different values, {low} to {high}")
    drawn = rand(size, dtype=DType.float64, device=device, generator=generator)
    numbers = cast(pw.floor(ar.mul(drawn, float(high - low))), DType.int64)
    return cast(ar.add(numbers, int(low)), DType.int64 if dtype is None else to_dtype(dtype))


def randint_like(input: Any, low: int, high: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Integers in the shape and type of a tensor."""
    x = as_tensor(input)
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def randperm(n: int, *, dtype: Any = None, device: Any = None, generator: Generator | None = None) -> Tensor:
    """The numbers from 0 to ``n - 1`` in random order."""
    order = red.argsort(rand(n, dtype=DType.float64, device=device, generator=generator))
    return cast(order, DType.int64 if dtype is None else to_dtype(dtype))


def bernoulli(input: Any, p: float | None = None, *, seed: int | None = None, generator: Any = None) -> Tensor:
    """1 with a probability, else 0.

    Args:
        input: holds the probabilities; with ``p`` only its shape and type count.
        p: one probability for all.
        seed: makes the draw a function of this number alone.
        generator: where the seed comes from otherwise.
    """
    x = as_tensor(input)
    kind = x.dtype if x.dtype.is_floating_point else get_default_dtype()
    if p is not None and not 0 <= p <= 1:
        raise ValueError(f"bernoulli: p is a probability, got {p}")
    chance: Any = probabilities(x, "bernoulli: a probability") if p is None else p
    drawn = _draw(KeyedUniform, tuple(x.shape), _drawn_in(kind), generator, seed)
    return cast(ar.lt(drawn, convert(chance, drawn.dtype) if not is_scalar(chance) else chance), x.dtype)


def _drawn_in(kind: DType) -> DType:
    """Probabilities are compared with numbers of enough bits."""
    return DType.float64 if kind is DType.float64 else DType.float32


def dropout(input: Any, p: float = 0.5, training: bool = True, *, seed: int | None = None) -> Tensor:
    """Elements set to zero with probability ``p``, the others scaled by ``1 / (1 - p)``.

    The pattern is fixed when the node is made; each call draws a new one unless ``seed`` is given.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is a probability, got {p}")
    x = real_only("dropout", input)
    if not training or p == 0:
        return x
    if p == 1:
        return ar.mul(x, 0.0)
    drawn = _draw(KeyedUniform, tuple(x.shape), _drawn_in(x.dtype), None, seed)
    keep = ar.ge(drawn, p)
    return ar.where(keep, ar.mul(x, 1.0 / (1.0 - p)), scalar(0, x.dtype))


@names_arguments
def multinomial(input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Numbers of entries of the last dimension, drawn by weight."""
    x = as_tensor(input)
    if x.ndim not in (1, 2) or not x.dtype.is_floating_point:
        raise ShapeMismatchError(f"multinomial takes weights [C] or [N, C] of a floating type, got {x.dtype}{x.shape}")
    if num_samples <= 0:
        raise ValueError(f"multinomial: at least one sample is drawn, got num_samples={num_samples}")
    x = some_chance(probabilities(x, "multinomial: a weight", math.inf))
    weights = x.unsqueeze(0) if x.ndim == 1 else x
    if not replacement and num_samples > weights.shape[-1]:
        raise ValueError(f"{num_samples} samples without replacement from {weights.shape[-1]} entries")
    if replacement:
        total = red.cumsum(weights, 1)
        bounds = ar.div(total, total[:, -1:])
        drawn = rand((weights.shape[0], num_samples), dtype=bounds.dtype, generator=generator)
        picked = ar.ge(drawn.unsqueeze(2), bounds.unsqueeze(1)).sum(2).clamp(max=weights.shape[-1] - 1)
    else:
        # The exponential race: the smallest waiting times belong to the drawn entries.
        waits = ar.div(
            ar.neg(pw.log(ar.sub(1.0, rand(weights.shape, dtype=weights.dtype, generator=generator)))), weights
        )
        picked = red.topk(waits, num_samples, 1, largest=False)[1]
    return picked[0] if x.ndim == 1 else picked
