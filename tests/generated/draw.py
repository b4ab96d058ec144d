"""Draws of sizes, numbers and choices from two streams: what a model fixes, and what each run may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.ops.core.registry import Op, all_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SAMPLES", "Draw", "S", "Sample", "draw_sample", "operators", "sample"]

Array = np.ndarray[Any, Any]
F32, F64, I32, I64, U8, I8 = np.float32, np.float64, np.int32, np.int64, np.uint8, np.int8


@dataclass
class Sample:
    """Inputs that suit an operator, with attributes and the number of outputs to ask for."""

    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    name: str = ""
    domain: str = ""


def operators() -> list[Op]:
    """Those of the library, whatever importers and other tests have added."""
    return [op for op in all_ops() if op.body.__module__.startswith("pyflame_rt.ops.")]


def S(*inputs: Any, outs: int = 1, **attributes: Any) -> Sample:
    """A sample, shortly."""
    return Sample(list(inputs), {k: v for k, v in attributes.items() if v is not None}, outs)


class Draw:
    """Random choices: ``model`` fixes attributes and ranks, ``run`` the sizes and numbers of one run."""

    def __init__(self, model: int, run: int = 0) -> None:
        self.model = np.random.default_rng([model, 1])
        self.run = np.random.default_rng([model, 2, run])

    def pick(self, options: Sequence[Any]) -> Any:
        """One of several, the same in every run of a model."""
        return options[int(self.model.integers(len(options)))]

    def chance(self, share: float = 0.5) -> bool:
        """True in this share of models."""
        return bool(self.model.random() < share)

    def k(self, low: int = 1, high: int = 4) -> int:
        """A size that the model fixes."""
        return int(self.model.integers(low, high + 1))

    def n(self, low: int = 1, high: int = 4) -> int:
        """A size that each run may change."""
        return int(self.run.integers(low, high + 1))

    def dims(self, low: int = 1, high: int = 4, most: int = 5) -> tuple[int, ...]:
        """A shape: its rank is the model's, its sizes are the run's."""
        return tuple(self.n(1, most) for _ in range(self.k(low, high)))

    def f(self, *shape: int, dtype: Any = F32) -> Array:
        """Floats of ordinary size."""
        return np.asarray(self.run.standard_normal(shape), dtype)

    def pos(self, *shape: int, dtype: Any = F32) -> Array:
        """Floats between 0.2 and 2."""
        return np.asarray(self.run.uniform(0.2, 2.0, shape), dtype)

    def unit(self, *shape: int) -> Array:
        """Floats between -0.9 and 0.9."""
        return np.asarray(self.run.uniform(-0.9, 0.9, shape), F32)

    def i(self, low: int, high: int, *shape: int, dtype: Any = I64) -> Array:
        """Integers from ``low`` to ``high - 1``."""
        return np.asarray(self.run.integers(low, max(high, low + 1), shape), dtype)

    def b(self, *shape: int) -> Array:
        """Truth values."""
        return np.asarray(self.run.integers(0, 2, shape), bool)

    def u8(self, *shape: int) -> Array:
        """Unsigned bytes."""
        return self.i(0, 256, *shape, dtype=U8)

    def i8(self, *shape: int) -> Array:
        """Signed bytes."""
        return self.i(-128, 128, *shape, dtype=I8)

    def words(self, *shape: int) -> Array:
        """Strings."""
        words = np.array(["a", "Bc", "", "the cat", "x1", "é"], object)
        return np.asarray(words[self.run.integers(0, len(words), shape)], object)

    def axis(self, rank: int) -> int:
        """An axis, sometimes counted from the end."""
        return int(self.model.integers(-rank, rank))

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Some different axes."""
        count = self.k(least, rank)
        return sorted(int(a) for a in self.model.permutation(rank)[:count])

    def numbers(self, *shape: int) -> Array:
        """Of a type that arithmetic takes."""
        kind = self.pick([F32, F32, F32, F64, I32, I64])
        return self.f(*shape, dtype=kind) if kind in (F32, F64) else self.i(-9, 10, *shape, dtype=kind)

    def like(self, x: Array, *shape: int) -> Array:
        """Numbers of the type of another array."""
        return self.f(*shape, dtype=x.dtype) if x.dtype.kind == "f" else self.i(-9, 10, *shape, dtype=x.dtype)

    def spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        drop = self.k(0, len(shape))
        return tuple(1 if self.chance(0.3) else n for n in shape[drop:])


SAMPLES: dict[str, Callable[[Draw], Sample]] = {}


def sample(*names: str, domain: str = "") -> Callable[[Callable[..., Sample]], Callable[..., Sample]]:
    """Declare how inputs of operators are drawn."""

    def declare(fn: Callable[..., Sample]) -> Callable[..., Sample]:
        for name in names:
            SAMPLES[f"{domain}::{name}" if domain else name] = fn
        return fn

    return declare


def draw_sample(full_name: str, seed: int, run: int = 0) -> Sample:
    """Inputs of an operator; ``run`` changes what differs between runs of one model."""
    made = SAMPLES[full_name](Draw(seed, run))
    domain, _, name = full_name.rpartition("::")
    made.name, made.domain = name, domain
    return made
