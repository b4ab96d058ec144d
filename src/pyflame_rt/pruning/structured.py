"""Structured pruning: which channels and heads go, by the worth of all weights that are coupled in them."""

from __future__ import annotations

import warnings
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.norm import BatchNormalization
from pyflame_rt.pruning.config import PruningConfig, PruningCriterion
from pyflame_rt.pruning.masks import PruningMask
from pyflame_rt.pruning.scores import named, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.pruning.coupling import Coupling, Family, Labels

__all__ = ["Choice", "PruningWarning", "channel_worth", "choose", "masks_of"]

Array = np.ndarray[Any, Any]


class PruningWarning(UserWarning):
    """Something could not be pruned as it was asked."""


@dataclass(slots=True)
class Choice:
    """Channels that go.

    Attributes:
        removed: channels that can be taken out.
        zeroed: channels that can only be set to zero, with their families.
        counts: how many of each family went, and how many it had, by name.
    """

    removed: list[Labels] = field(default_factory=list)
    zeroed: list[tuple[Family, Labels]] = field(default_factory=list)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def channels(self) -> Labels:
        """All channels that are taken out."""
        return np.concatenate([*self.removed, np.zeros(0, np.int64)])


def share_of(family: Family, config: PruningConfig, target: float) -> float:
    """How much of a family goes: nothing where a layer of it is excluded, its own target where it has one."""
    rows = [(weight, list(family.nodes)) for weight in family.owners or [name for name, _ in family.slots]]
    if any(named(name, weight, nodes) for name in config.exclude_layers for weight, nodes in rows):
        return 0.0
    own = {
        name: share
        for name, share in config.per_layer_sparsity.items()
        if any(named(name, weight, nodes) for weight, nodes in rows)
    }
    if len(set(own.values())) > 1:
        raise InputError(
            f"the channels of {family.name} are coupled and cannot have different targets: "
            f"{', '.join(f'{name}: {share}' for name, share in own.items())}. Give them one"
        )
    return next(iter(own.values()), target)


def choose(
    coupling: Coupling,
    families: list[Family],
    config: PruningConfig,
    target: float,
    gradients: Mapping[str, Any] | None = None,
    *,
    share: Callable[[Family], float] | None = None,
) -> Choice:
    """Which channels go.

    Args:
        coupling: the labels of the graph.
        families: what ratios apply to.
        config: criterion, scope, exclusions, targets of layers.
        target: the share that goes.
        gradients: of the weights, for criteria that need them.
        share: in place of the target: how much of each family goes.
    """
    choice = Choice()
    shares = {id(f): (share_of(f, config, target) if share is None else share(f)) for f in families}
    open_ = [f for f in families if not f.pinned and shares[id(f)] and _has_weights(coupling, f)]
    shut = [f for f in families if f.pinned and f.zeroable and f.owners and shares[id(f)]]
    worth = {id(f): channel_worth(coupling, f, config, gradients) for f in (*open_, *shut)}
    together = config.scope == "global" or config.criterion is PruningCriterion.LAMP
    going = _globally(open_, worth, shares, config) if together else [_count(f, shares[id(f)], config) for f in open_]
    for family, count in zip(open_, going, strict=True):
        order = np.argsort(worth[id(family)], kind="stable")[:count]
        choice.removed.append(family.channels[order])
        choice.counts[family.name] = (count, len(family.channels))
    for family in shut:
        count = _count(family, shares[id(family)], config)
        if count:
            order = np.argsort(worth[id(family)], kind="stable")[:count]
            choice.zeroed.append((family, family.channels[order]))
            _tell(family, count)
    return choice


def _tell(family: Family, count: int) -> None:
    warnings.warn(
        f"{count} of {len(family.channels)} channels of {family.name} are set to zero, not removed: {family.pinned}",
        PruningWarning,
        stacklevel=5,
    )


def _has_weights(coupling: Coupling, family: Family) -> bool:
    ranks = [coupling.graph.initializers[name].ndim for name, _ in family.slots]
    return bool(family.owners) and len(family.channels) > 1 and max(ranks) >= 2


def _count(family: Family, share: float, config: PruningConfig) -> int:
    """How many channels go: at least one stays, and a multiple of ``round_to`` where that is asked for."""
    have = len(family.channels)
    stay = have - min(round(share * have), have - 1)
    return have - min(-(-stay // config.round_to) * config.round_to, have)


def _globally(
    families: list[Family], worth: Mapping[int, Array], shares: Mapping[int, float], config: PruningConfig
) -> list[int]:
    """How many channels go of each family, when all are compared; one of each stays."""
    rows = [(value, i) for i, f in enumerate(families) for value in np.sort(worth[id(f)])[:-1]]
    total = round(sum(shares[id(f)] * len(f.channels) for f in families))
    counts = [0] * len(families)
    for _, i in sorted(rows)[:total]:
        counts[i] += 1
    return [_count(f, n / len(f.channels), config) for f, n in zip(families, counts, strict=True)]


def channel_worth(
    coupling: Coupling, family: Family, config: PruningConfig, gradients: Mapping[str, Any] | None
) -> Array:
    """What each channel of a family is worth: the sum over its weights, each scaled to a mean of one."""
    if config.criterion is PruningCriterion.RANDOM:
        key = [config.seed, *family.name.encode()]
        return np.random.default_rng(key).random(len(family.channels))
    place = np.full(coupling.count, -1, np.int64)
    place[family.channels] = np.arange(len(family.channels))
    total = np.zeros(len(family.channels))
    for slot in coupling.slots:
        tensor = coupling.graph.initializers[slot.name]
        where = place[slot.labels]
        if tensor.ndim < 2 or not tensor.dtype.is_float or not (where >= 0).any():
            continue
        found = _along(slot.name, tensor.raw(), slot.axis, config, gradients)
        sums = np.bincount(where[where >= 0], found[where >= 0], len(total))
        total += sums / max(float(np.abs(sums).mean()), 1e-30)
    if config.criterion is PruningCriterion.LAMP:
        order = np.argsort(total, kind="stable")
        above = np.cumsum(total[order][::-1])[::-1]
        total[order] = total[order] / np.maximum(above, 1e-30)
    return total


def _along(name: str, weight: Array, axis: int, config: PruningConfig, gradients: Mapping[str, Any] | None) -> Array:
    """The worth of a weight summed over all axes but one."""
    rest = tuple(i for i in range(weight.ndim) if i != axis)
    if config.criterion in (PruningCriterion.MAGNITUDE, PruningCriterion.LAMP):
        return np.square(weight.astype(np.float64)).sum(axis=rest)
    if gradients is not None and name not in gradients:
        return np.zeros(weight.shape[axis])  # a table that no gradient was taken for
    return score(name, weight, config, gradients).sum(axis=rest)


def masks_of(coupling: Coupling, choice: Choice) -> dict[str, PruningMask]:
    """Masks that set channels to zero in everything that makes or reads them, but for running statistics."""
    gone = np.zeros(coupling.count, bool)
    gone[choice.channels()] = True
    statistics = {name for node in coupling.editor.nodes() for name in _statistics(node)}
    kept: dict[str, Array] = {}
    for slot in coupling.slots:
        keep = ~gone[slot.labels]
        if not keep.all() and slot.name not in statistics:
            _narrow_mask(kept, coupling, slot.name, slot.axis, keep)
    for family, channels in choice.zeroed:
        gone[:] = False
        gone[channels] = True
        owned = {(name, axis) for name, axis in family.slots if name in family.owners or _is_vector(coupling, name)}
        for slot in coupling.slots:
            if (slot.name, slot.axis) in owned and slot.name not in statistics:
                _narrow_mask(kept, coupling, slot.name, slot.axis, ~gone[slot.labels])
    return {name: PruningMask(keep) for name, keep in kept.items()}


def _statistics(node: Any) -> tuple[str, ...]:
    return node.inputs[3:5] if node.full_name == BatchNormalization.name else ()


def _is_vector(coupling: Coupling, name: str) -> bool:
    return coupling.graph.initializers[name].ndim == 1


def _narrow_mask(kept: dict[str, Array], coupling: Coupling, name: str, axis: int, keep: Array) -> None:
    shape = coupling.graph.initializers[name].unread().shape
    whole = kept.setdefault(name, np.ones(shape, bool))
    whole &= keep.reshape([-1 if i == axis else 1 for i in range(len(shape))])
