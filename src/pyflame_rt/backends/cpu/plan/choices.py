"""Which kernel takes which case: a rule of thumb, or what was measured on this machine."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.measured import measured_ways
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Case", "Choices", "choices_key", "choosing", "current_choices"]


@dataclass(slots=True)
class Case:
    """A product or convolution that several kernels can do.

    Attributes:
        ways: their names, the one that is best as a rule first.
        way: the one taken.
        nodes: names of the nodes it was met at.
    """

    ways: tuple[str, ...]
    way: str
    nodes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Choices:
    """Picks kernels while a graph is lowered, and notes what there was to pick from.

    Attributes:
        measured: case -> way, from earlier measurements.
        prefer: the way to take wherever it is possible, for measurements.
        strict: leave out ways that compute something else than the sum as it is written.
        cases: what was met.

    Example:
        >>> choices = Choices({"Conv 3x3": "library"})
        >>> [choices.pick(case, ("winograd4", "library"), "node") for case in ("Conv 3x3", "Conv 5x5")]
        ['library', 'winograd4']
    """

    measured: Mapping[str, str] = field(default_factory=dict)
    prefer: str = ""
    strict: bool = False
    cases: dict[str, Case] = field(default_factory=dict)

    def pick(self, key: str, ways: Sequence[str], node: str) -> str:
        """The way a case is done; ``key`` is equal for cases of equal shapes."""
        usable = tuple(way for way in ways if not (self.strict and way.startswith("winograd")))
        wanted = self.prefer or self.measured.get(key, "")
        case = self.cases.setdefault(key, Case(usable, wanted if wanted in usable else usable[0]))
        case.nodes.append(node)
        return case.way


_settings: ContextVar[tuple[bool, str, bool]] = ContextVar("choices", default=(False, "", True))


@contextmanager
def choosing(*, strict: bool = False, prefer: str = "", use_measured: bool = True) -> Iterator[None]:
    """Graphs lowered inside choose so: see :class:`Choices`."""
    token = _settings.set((strict, prefer, use_measured))
    try:
        yield
    finally:
        _settings.reset(token)


def current_choices(threads: int) -> Choices:
    """The choices for a graph that is lowered now, for so many threads."""
    strict, prefer, use_measured = _settings.get()
    return Choices(measured_ways(threads) if use_measured else {}, prefer, strict)


def choices_key(threads: int) -> str | None:
    """A text equal where graphs are lowered with equal choices; None while ways are measured."""
    strict, prefer, use_measured = _settings.get()
    if prefer or not use_measured:
        return None
    return f"{strict} {sorted(measured_ways(threads).items())}"
