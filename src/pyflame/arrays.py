"""Between NumPy and tensors: arrays taken over as they are, and chance that follows the framework's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import to_dtype
from pyflame.lazy import leaf
from pyflame.ops.core import wrap
from pyflame.random import Generator, default_generator
from pyflame_rt.graph.tensor import whole

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["adopt", "as_generator"]


def adopt(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over an array that nobody will change any more: nothing is copied.

    Example:
        >>> import numpy as np
        >>> adopt(np.ones(2, np.float32)).shape
        [2]
    """
    taken = array if type(array) is np.ndarray else whole(array, "the data of a tensor")
    packed = np.asarray(taken, order="C")
    return wrap(leaf(packed, to_dtype(packed.dtype)))


def as_generator(generator: np.random.Generator | Generator | int | None) -> np.random.Generator:
    """The generator given, one from a seed or from the next key of a `pf.Generator`, or of the framework's own.

    Example:
        >>> as_generator(7).integers(10) == as_generator(7).integers(10)
        np.True_
    """
    if isinstance(generator, np.random.Generator):
        return generator
    if generator is None:
        generator = default_generator
    if isinstance(generator, Generator):
        return np.random.default_rng([int(word) for word in generator.next_key()])
    try:
        return np.random.default_rng(generator)
    except (TypeError, ValueError):
        text = f"a Generator, or a whole number that is not negative. Received: {type(generator).__name__}"
        raise TypeError(f"generator must be {text}") from None
