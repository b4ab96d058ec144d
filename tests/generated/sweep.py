"""Every operator on wrong inputs: each one too short, too long, of less rank, empty; wrong counts, indices, lengths.

Case number i depends on nothing but i. The interpreter and native code must refuse alike or give the same answer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.generated.build import Answer, agree, answer, names_the_node, one_node, session
from tests.generated.draw import Sample, draw_sample, operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Case", "cases", "check_case"]

SEEDS = 2
# Operators whose numbers are drawn anew by each run, or where rounding may fall to either side of a step.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
STEPPED = ("Quantize", "QLinear", "QGemm", "Rounded", "QEmbed", "QAttention")


class Case(NamedTuple):
    """One wrong use of an operator."""

    op: str
    seed: int
    change: str
    constant: bool

    def __str__(self) -> str:
        return f"{self.op}/{self.seed}/{self.change}/{'constant' if self.constant else 'fed'}"


def _shorter(a: np.ndarray, axis: int) -> np.ndarray:
    return np.ascontiguousarray(np.delete(a, -1, axis))


def _longer(a: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate([a, np.take(a, [0], axis)], axis) if a.shape[axis] else a


def _fill(value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(a: np.ndarray) -> np.ndarray:
        out = a.copy()
        limits = np.iinfo(a.dtype)
        out.reshape(-1)[-1:] = min(max(value, limits.min), limits.max)
        return out

    return change


def _changes(a: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What may be wrong with one input."""
    if isinstance(a, list):
        yield "none of it", lambda v: v[:0]
        return
    if not isinstance(a, np.ndarray):
        return
    for axis in range(a.ndim):
        if a.shape[axis]:
            yield f"shorter {axis}", lambda v, k=axis: _shorter(v, k)
            yield f"longer {axis}", lambda v, k=axis: _longer(v, k)
    if a.ndim:
        yield "empty", lambda v: v[:0].copy()
        if a.shape[-1]:
            yield "less rank", lambda v: np.ascontiguousarray(v[..., 0])
    yield "more rank", lambda v: v[None].copy()
    if a.dtype.kind in "iu" and a.size and a.dtype.itemsize > 1:
        for value in (-1, 7, -9, 99):
            yield f"last is {value}", _fill(value)


def _changed(sample: Sample, change: str) -> Sample:
    """The sample with one thing wrong; "" leaves it right."""
    if not change:
        return sample
    place, _, kind = change.partition(" ")
    inputs = list(sample.inputs)
    if place == "count":
        inputs = inputs[:-1] if kind == "less" else [*inputs, *inputs[-1:]]
    elif kind == "missing":
        inputs[int(place)] = None
    else:
        inputs[int(place)] = dict(_changes(inputs[int(place)]))[kind](inputs[int(place)])
    return Sample(inputs, sample.attributes, sample.outputs, sample.name, sample.domain)


def _of(op: str, seed: int) -> Iterator[Case]:
    sample = draw_sample(op, seed)
    changes = [""]
    changes += [f"{i} {name}" for i, a in enumerate(sample.inputs) for name, _ in _changes(a)]
    changes += [f"{i} missing" for i, a in enumerate(sample.inputs) if a is not None]
    changes += ["count less", "count more"] if sample.inputs else []
    for change in changes:
        yield Case(op, seed, change, False)
        place, _, kind = change.partition(" ")
        given = sample.inputs[int(place)] if place.isdigit() else None
        if kind != "missing" and isinstance(given, np.ndarray) and given.dtype.kind in "iu" and place != "0":
            yield Case(op, seed, change, True)


@cache
def cases(seeds: int = SEEDS) -> tuple[Case, ...]:
    """All of them, in an order that mixes operators."""
    found = [case for op in operators() for seed in range(seeds) for case in _of(op.full_name, seed)]
    order = np.random.default_rng(0).permutation(len(found))
    return tuple(found[i] for i in order)


def check_case(case: Case, **options: Any) -> str:
    """ "" when the backends agree, else what they did."""
    sample = _changed(draw_sample(case.op, case.seed), case.change)
    place = case.change.partition(" ")[0]
    constant = {int(place)} if case.constant and place.isdigit() else set()
    graph, feeds = one_node(sample, constant)
    expected = answer(lambda: session(graph, "Reference"), feeds)
    found = answer(lambda: session(graph, "CPU", **options), feeds)
    stepped = any(mark in case.op for mark in STEPPED)
    return verdict(expected, found, random=sample.name in RANDOM, loose=2.0 if stepped else 1.0)


def verdict(expected: Answer, found: Answer, *, random: bool = False, loose: float = 1.0) -> str:
    """What to say of two answers; "" for nothing."""
    differs = agree(expected, found, loose)
    if differs == "outputs differ" and random:
        differs = ""
    if not differs and not names_the_node(found):
        differs = "the node is not named"
    if not differs and found.refusal == "BackendError":
        differs = "no guard"  # something in the kernel failed: nobody looked at what it was given
    return f"{differs}: reference {expected.said} | native {found.said}" if differs else ""
