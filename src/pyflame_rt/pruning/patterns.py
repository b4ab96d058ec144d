"""Sparsity patterns: which elements stay when single weights, blocks or n of m are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.pruning.config import PruningConfig, PruningCriterion, PruningGranularity
from pyflame_rt.pruning.masks import PruningMask
from pyflame_rt.pruning.scores import keep_largest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["block_keep", "nm_keep", "pattern_masks"]

Array = np.ndarray[Any, Any]


def pattern_masks(
    scores: Mapping[str, Array], shares: Mapping[str, float], own: Sequence[str], config: PruningConfig
) -> dict[str, PruningMask]:
    """The masks of weights.

    Args:
        scores: what each element is worth, by name of the weight.
        shares: how much of each weight goes.
        own: names whose share is their own; the others are compared with each other where the scope is global.
        config: the granularity and the scope.
    """
    together = config.scope == "global" or config.criterion is PruningCriterion.LAMP
    match config.granularity:
        case PruningGranularity.NM:
            return {name: PruningMask(nm_keep(s, config.n_value, config.m_value)) for name, s in scores.items()}
        case PruningGranularity.BLOCK:
            return {name: PruningMask(block_keep(s, shares[name], config.block_size)) for name, s in scores.items()}
        case _ if together:
            return _across(scores, shares, own)
        case _:
            return {name: PruningMask(keep_largest(s, shares[name])) for name, s in scores.items()}


def _across(scores: Mapping[str, Array], shares: Mapping[str, float], own: Sequence[str]) -> dict[str, PruningMask]:
    masks = {name: PruningMask(keep_largest(scores[name], shares[name])) for name in own}
    rest = [name for name in scores if name not in masks]
    if rest:
        joined = np.concatenate([scores[name].reshape(-1) for name in rest])
        wanted = sum(shares[name] * scores[name].size for name in rest) / joined.size
        pieces = np.split(keep_largest(joined, wanted), np.cumsum([scores[name].size for name in rest])[:-1])
        masks |= {n: PruningMask(p.reshape(scores[n].shape)) for n, p in zip(rest, pieces, strict=True)}
    return {name: masks[name] for name in scores}


def _rows(scores: Array) -> Array:
    """All but the first axis as one."""
    return scores.reshape(scores.shape[0], -1)


def nm_keep(scores: Array, n: int, m: int) -> Array:
    """Of every ``m`` consecutive elements of a row the ``n`` largest; a shorter last group keeps as many.

    Example:
        >>> nm_keep(np.array([[4.0, 3.0, 2.0, 1.0, 9.0]]), 2, 4).tolist()
        [[True, True, False, False, True]]
    """
    rows = _rows(scores)
    groups = -(-rows.shape[1] // m)
    padded = np.full((rows.shape[0], groups * m), -np.inf)
    padded[:, : rows.shape[1]] = rows
    table = padded.reshape(-1, m)
    best = np.argsort(-table, axis=1, kind="stable")[:, :n]
    keep = np.zeros(table.shape, bool)
    np.put_along_axis(keep, best, True, axis=1)
    return keep.reshape(padded.shape)[:, : rows.shape[1]].reshape(scores.shape)


def block_keep(scores: Array, sparsity: float, block: Sequence[int]) -> Array:
    """The blocks with the largest mean; those at the edges may be smaller.

    Example:
        >>> block_keep(np.array([[1.0, 1.0, 5.0, 5.0], [1.0, 1.0, 5.0, 5.0]]), 0.5, [2, 2]).tolist()
        [[False, False, True, True], [False, False, True, True]]
    """
    rows = _rows(scores)
    high, wide = block
    down, across = -(-rows.shape[0] // high), -(-rows.shape[1] // wide)
    padded, counted = (np.zeros((down * high, across * wide)) for _ in range(2))
    padded[: rows.shape[0], : rows.shape[1]] = rows
    counted[: rows.shape[0], : rows.shape[1]] = 1
    sums, sizes = (a.reshape(down, high, across, wide).sum(axis=(1, 3)) for a in (padded, counted))
    keep = keep_largest(sums / sizes, sparsity)
    spread = np.repeat(np.repeat(keep, high, axis=0), wide, axis=1)
    return spread[: rows.shape[0], : rows.shape[1]].reshape(scores.shape)
