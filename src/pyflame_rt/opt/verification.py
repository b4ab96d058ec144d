"""Verification: a graph is run before and after each pass, and the answers are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.feeds import random_feed
from pyflame_rt.graph.errors import InputError, PyFlameRTError, ValidationError
from pyflame_rt.ops.core.evaluate import Context, Program
from pyflame_rt.opt.rule import all_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import Graph
    from pyflame_rt.opt.base import PassResult

__all__ = ["Verifier", "differences"]


class Verifier:
    """Compares what a graph gives before and after a pass, on random inputs."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def compare(self, name: str, before: Graph, after: Graph, result: PassResult) -> None:
        """Raise ValidationError, naming pass and outputs, unless the answers agree within what the rules allow."""
        try:
            feed = random_feed(before.required_inputs, seed=self.seed)
            old = answers(before, feed)
        except (PyFlameRTError, InputError):
            return  # the model does not run on made-up inputs, so there is nothing to compare
        problems = differences(before, old, answers(after, feed), allowed(result))
        if problems:
            raise ValidationError(f"after pass {name!r}: graph {before.name!r} gives other answers", problems)


def allowed(result: PassResult) -> float:
    """Units in the last place that all rewrites together may change."""
    bounds = {rule.name: rule.bound for rule in all_rules()}
    return sum(bounds.get(rewrite.rule, 0.0) for rewrite in result.rewrites)


def answers(graph: Graph, feed: dict[str, Any]) -> list[Any]:
    """What the reference gives."""
    return Program(graph).run([feed.get(info.name) for info in graph.inputs], Context.of("numpy"))


def differences(graph: Graph, old: Sequence[Any], new: Sequence[Any], units: float) -> list[str]:
    """Messages about outputs that differ by more than ``units`` in the last place of their largest number."""
    found: list[str] = []
    for info, a, b in zip(graph.outputs, old, new, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            if type(a) is not type(b):
                found.append(f"output {info.name!r} is a {type(b).__name__}, was a {type(a).__name__}")
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"output {info.name!r} is {b.dtype}{list(b.shape)}, was {a.dtype}{list(a.shape)}")
        elif not _agree(a, b, units):
            found.append(f"output {info.name!r} differs")
    return found


def _agree(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], units: float) -> bool:
    if a.dtype == object:
        return bool((a == b).all())
    if not units or a.dtype.kind not in "f":
        return same_bits(a, b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide_a)
    if (np.isfinite(wide_b) != finite).any():
        return False
    largest = max(float(np.abs(wide_a[finite]).max(initial=0.0)), 1e-30)
    limit = units * float(np.finfo(a.dtype).eps) * largest
    return bool((np.abs(wide_a[finite] - wide_b[finite]) <= limit).all())


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays agree in every bit, but that any NaN equals any other."""
    if a.dtype.kind in "fc" or a.dtype.name.startswith(("bfloat", "float")):
        both = np.isnan(a) & np.isnan(b)
        a, b = np.where(both, 0, a).astype(a.dtype), np.where(both, 0, b).astype(b.dtype)
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
