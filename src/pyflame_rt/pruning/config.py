"""What to prune, how much, and when: the settings of a pruner."""

from __future__ import annotations

import enum
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PruningConfig", "PruningCriterion", "PruningGranularity", "PruningSchedule"]


class PruningGranularity(enum.Enum):
    """What is taken away in one piece: a weight, a channel or head, a block, or m - n of every m weights."""

    UNSTRUCTURED = "unstructured"
    STRUCTURED = "structured"
    BLOCK = "block"
    NM = "nm"


class PruningCriterion(enum.Enum):
    """How the worth of a weight is measured.

    MAGNITUDE is its absolute value, LAMP that value squared over the sum of all larger ones of its layer (compared
    across layers), TAYLOR the square of weight times gradient, MOVEMENT minus weight times gradient (what training
    moves away from zero stays), RANDOM a number drawn with the seed.
    """

    MAGNITUDE = "magnitude"
    MOVEMENT = "movement"
    TAYLOR = "taylor"
    LAMP = "lamp"
    RANDOM = "random"

    @property
    def needs_gradients(self) -> bool:
        """Whether weights alone do not tell it."""
        return self in (PruningCriterion.MOVEMENT, PruningCriterion.TAYLOR)


class PruningSchedule(enum.Enum):
    """How the share of pruned weights grows over the steps of a training."""

    ONE_SHOT = "one_shot"
    ITERATIVE = "iterative"
    CUBIC = "cubic"
    POLYNOMIAL = "polynomial"


@dataclass
class PruningConfig:
    """Settings of a :class:`WeightPruner`.

    Attributes:
        target_sparsity: share of the weights, channels, heads or blocks to take away, at least 0 and below 1.
        granularity: what is taken away in one piece.
        criterion: how worth is measured.
        schedule: how sparsity grows from ``start_step`` to ``end_step``.
        block_size: rows and columns of a block, for BLOCK.
        n_value: how many stay of every ``m_value`` weights, for NM.
        m_value: how many consecutive weights of a row make a group, for NM.
        initial_sparsity: what the schedule begins with.
        start_step: the step at which it begins.
        end_step: the step at which ``target_sparsity`` is reached.
        pruning_frequency: steps between two changes of the masks.
        power: exponent of POLYNOMIAL.
        scope: ``"layer"`` gives every layer the same share, ``"global"`` compares weights of all layers.
        per_layer_sparsity: targets of single layers, by name of the weight, of the node, or a dotted prefix of either.
        exclude_layers: layers that are left as they are, named the same way.
        round_to: keep a multiple of so many channels, for STRUCTURED (vectors of 8 or 16 run best on most machines).
        seed: for RANDOM.

    Example:
        >>> PruningConfig.nm_sparsity(n=1, m=4).target_sparsity
        0.75
    """

    target_sparsity: float = 0.5
    granularity: PruningGranularity = PruningGranularity.UNSTRUCTURED
    criterion: PruningCriterion = PruningCriterion.MAGNITUDE
    schedule: PruningSchedule = PruningSchedule.ONE_SHOT
    block_size: list[int] = field(default_factory=lambda: [4, 4])
    n_value: int = 2
    m_value: int = 4
    initial_sparsity: float = 0.0
    start_step: int = 0
    end_step: int = 1000
    pruning_frequency: int = 100
    power: float = 2.0
    scope: str = "layer"
    per_layer_sparsity: dict[str, float] = field(default_factory=dict)
    exclude_layers: list[str] = field(default_factory=list)
    round_to: int = 1
    seed: int = 0

    @classmethod
    def magnitude_pruning(cls, sparsity: float = 0.5) -> PruningConfig:
        """The smallest weights become zero."""
        return cls(target_sparsity=sparsity)

    @classmethod
    def structured_pruning(cls, sparsity: float = 0.5) -> PruningConfig:
        """Whole channels and heads are removed."""
        return cls(target_sparsity=sparsity, granularity=PruningGranularity.STRUCTURED)

    @classmethod
    def block_pruning(cls, sparsity: float = 0.5, block_size: tuple[int, int] = (4, 4)) -> PruningConfig:
        """Whole blocks become zero."""
        return cls(target_sparsity=sparsity, granularity=PruningGranularity.BLOCK, block_size=list(block_size))

    @classmethod
    def nm_sparsity(cls, n: int = 2, m: int = 4) -> PruningConfig:
        """Of every ``m`` consecutive weights of a row ``n`` stay."""
        share = 1 - n / m if isinstance(m, int) and m > 0 else 0.5
        made = cls(target_sparsity=share, granularity=PruningGranularity.NM, n_value=n, m_value=m)
        made.check()
        return made

    def add_exclude_layer(self, name: str) -> None:
        """Leave a layer as it is: a weight, a node, or a dotted prefix of their names."""
        if name not in self.exclude_layers:
            self.exclude_layers.append(name)

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        _kinds(self)
        for name, share in self._shares().items():
            if not isinstance(share, (int, float, np.floating)) or not 0 <= share < 1:
                raise InputError(f"{name} must be at least 0 and below 1, got {share!r}")
        if self.end_step < self.start_step:
            raise InputError(f"end_step {self.end_step} is before start_step {self.start_step}")
        for name in ("pruning_frequency", "round_to"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        if not 1 <= self.n_value <= self.m_value:
            raise InputError(f"n:m sparsity keeps 1 to m of m weights, got n={self.n_value}, m={self.m_value}")
        if len(self.block_size) != 2 or any(not isinstance(n, int) or n < 1 for n in self.block_size):
            raise InputError(f"block_size is two positive sizes, rows and columns; got {self.block_size}")
        if self.scope not in ("layer", "global"):
            raise InputError(f"scope is 'layer' or 'global', got {self.scope!r}")
        self._check_pattern()
        if not math.isfinite(self.power) or self.power <= 0:
            raise InputError(f"power must be positive, got {self.power}")

    def _check_pattern(self) -> None:
        """Settings that a pattern has no use for are no settings of it."""
        if self.granularity is PruningGranularity.NM:
            if self.per_layer_sparsity:
                raise InputError("n:m sparsity keeps n of m everywhere: per_layer_sparsity means nothing to it")
            if self.schedule is not PruningSchedule.ONE_SHOT:
                raise InputError(f"n:m sparsity has no steps between: schedule {self.schedule} means nothing to it")
        if self.granularity in (PruningGranularity.NM, PruningGranularity.BLOCK) and self.scope == "global":
            raise InputError(f"{self.granularity} masks each layer by itself: scope 'global' means nothing to it")

    def _shares(self) -> Mapping[str, Any]:
        own = {"target_sparsity": self.target_sparsity, "initial_sparsity": self.initial_sparsity}
        return {**own, **{f"per_layer_sparsity[{name!r}]": share for name, share in self.per_layer_sparsity.items()}}

    def sparsity_at(self, step: int) -> float:
        """The share to have taken away at a step of training.

        Example:
            >>> config = PruningConfig(target_sparsity=0.8, schedule=PruningSchedule.ITERATIVE, end_step=10)
            >>> [config.sparsity_at(step) for step in (0, 5, 20)]
            [0.0, 0.4, 0.8]
        """
        self.check()
        first, last = self.initial_sparsity, self.target_sparsity
        span = self.end_step - self.start_step
        t = min(max((step - self.start_step) / span, 0.0), 1.0) if span else float(step >= self.start_step)
        match self.schedule:
            case PruningSchedule.ONE_SHOT:
                return last if step >= self.start_step else first
            case PruningSchedule.ITERATIVE:
                left = 1 - t
            case PruningSchedule.CUBIC:
                left = (1 - t) ** 3
            case PruningSchedule.POLYNOMIAL:
                left = (1 - t) ** self.power
        return first * left + last * (1 - left)  # exact at both ends


def _kinds(config: PruningConfig) -> None:
    wanted = {"granularity": PruningGranularity, "criterion": PruningCriterion, "schedule": PruningSchedule}
    for name, kind in wanted.items():
        given = getattr(config, name)
        if not isinstance(given, kind):
            raise InputError(f"{name} must be one of {', '.join(str(member) for member in kind)}; got {given!r}")
