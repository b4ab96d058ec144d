"""Transforms of transforms."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from pyflame.arrays import as_generator
from pyflame.data.transforms.base import probability

Transform: TypeAlias = Callable[[Any], Any]


class Compose:
    """Transforms one after the other.

    Example:
        >>> from pyflame.data.transforms import Compose, Lambda
        >>> Compose([Lambda(lambda x: x + 1), Lambda(lambda x: 10 * x)])(1)
        20
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: Any) -> Any:
        """The sample, transformed."""
        for transform in self.transforms:
            sample = transform(sample)
        return sample

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


class Lambda:
    """A function as a transform.

    Example:
        >>> from pyflame.data.transforms import Lambda
        >>> Lambda(abs)(-3)
        3
    """

    def __init__(self, fn: Transform) -> None:
        if not callable(fn):
            raise TypeError(f"Lambda needs a function. Received: {type(fn).__name__}")
        self.fn = fn

    def __call__(self, sample: Any) -> Any:
        """The sample, transformed."""
        return self.fn(sample)


class _Chance:
    """Holds transforms and a source of chance."""

    def __init__(self, transforms: Sequence[Transform], generator: np.random.Generator | int | None) -> None:
        self.transforms = list(transforms)
        self._generator = generator if generator is None else as_generator(generator)

    @property
    def random(self) -> np.random.Generator:
        return as_generator(self._generator)


class RandomApply(_Chance):
    """All the transforms, or none, with chance `p`.

    Example:
        >>> from pyflame.data.transforms import RandomApply
        >>> RandomApply([abs], p=1.0)(-2), RandomApply([abs], p=0.0)(-2)
        (2, -2)
    """

    def __init__(
        self, transforms: Sequence[Transform], p: float = 0.5, *, generator: np.random.Generator | int | None = None
    ) -> None:
        super().__init__(transforms, generator)
        self.p = probability(p)

    def __call__(self, sample: Any) -> Any:
        """The sample, transformed."""
        return Compose(self.transforms)(sample) if self.random.random() < self.p else sample


class RandomChoice(_Chance):
    """One of the transforms, drawn with the weights `p` (or evenly).

    Example:
        >>> from pyflame.data.transforms import RandomChoice
        >>> RandomChoice([abs, lambda x: x], p=[1.0, 0.0])(-2)
        2
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        p: Sequence[float] | None = None,
        *,
        generator: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(transforms, generator)
        if not self.transforms:
            raise ValueError("RandomChoice needs at least one transform")
        if p is not None and (len(p) != len(self.transforms) or min(p) < 0 or sum(p) <= 0):
            raise ValueError(f"p must hold one weight for each of {len(self.transforms)} transforms. Received: {p}")
        self.p = None if p is None else np.asarray(p, np.float64) / sum(p)

    def __call__(self, sample: Any) -> Any:
        """The sample, transformed."""
        return self.transforms[int(self.random.choice(len(self.transforms), p=self.p))](sample)


class RandomOrder(_Chance):
    """All the transforms in an order drawn anew.

    Example:
        >>> from pyflame.data.transforms import RandomOrder
        >>> RandomOrder([abs, abs])(-2)
        2
    """

    def __init__(self, transforms: Sequence[Transform], *, generator: np.random.Generator | int | None = None) -> None:
        super().__init__(transforms, generator)

    def __call__(self, sample: Any) -> Any:
        """The sample, transformed."""
        for which in self.random.permutation(len(self.transforms)):
            sample = self.transforms[which](sample)
        return sample
