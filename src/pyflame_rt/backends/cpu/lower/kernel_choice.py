"""Which kernel takes which case: a rule of thumb, or what was measured on this machine."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.backends.cpu.onednn.library import available
from pyflame_rt.backends.cpu.run.tuned_choices import measured_ways
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

__all__ = ["Case", "Choices", "choices_key", "choosing", "current_choices", "measuring"]


@dataclass(slots=True)
class Case:
    """A product or convolution that several kernels can do.

    Attributes:
        ways: their names, the one that is best as a rule first.
        way: the one taken.
        places: where it was met, each as the names of the nodes it does there: the product's, then those after it.
    """

    ways: tuple[str, ...]
    way: str
    places: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Choices:
    """Picks kernels while a graph is lowered, and notes what there was to pick from.

    Attributes:
        measured: case -> way, from earlier measurements.
        prefer: the way to take wherever it is possible, for measurements.
        strict: leave out ways that compute something else than the sum as it is written.
        fast: ways whose outputs depend on more than they read may be taken, unless ``strict``.
        checked: faults of the engine are raised (:mod:`pyflame_rt.backends.cpu.faults`).
        cases: what was met.

    Example:
        >>> choices = Choices({"Conv 5x5": "library"}, fast=True)
        >>> [choices.pick(case, ("winograd4", "library"), "node") for case in ("Conv 3x3", "Conv 5x5")]
        ['winograd4', 'winograd4']
        >>> Choices().pick("Conv 3x3", ("winograd4", "library"), "node")
        'library'
    """

    measured: Mapping[str, str] = field(default_factory=dict)
    prefer: str = ""
    strict: bool = False
    fast: bool = False
    checked: bool = False
    cases: dict[str, Case] = field(default_factory=dict)

    def pick(self, key: str, ways: Sequence[str], *nodes: str) -> str:
        """The way a case is done; ``key`` is equal for cases of equal shapes, ``nodes`` are what is done here."""
        usable = self.usable(ways)
        if len(usable) == len(ways) and any(map(_mixes, ways)):
            key = f"{key} fast"  # measured among other ways
        wanted = self.prefer or self.measured.get(key, "")
        case = self.cases.setdefault(key, Case(usable, wanted if wanted in usable else usable[0]))
        case.places.append(nodes)
        return case.way

    def usable(self, ways: Sequence[str]) -> tuple[str, ...]:
        """Those of some ways that may be taken; the library's only where it is there, or nothing else is."""
        mixed = self.fast and not self.strict
        ways = [way for way in ways if mixed or not _mixes(way)]
        kept = tuple(way for way in ways if way != "library" or available())
        return kept or tuple(ways)


def _mixes(way: str) -> bool:
    """Whether an output of a way depends on more than the pixels its window covers."""
    return way.startswith("winograd")


class _Settings(NamedTuple):
    strict: bool = False
    fast: bool = False
    prefer: str = ""
    use_measured: bool = True
    checked: bool = False


_USUAL = _Settings()
_settings: ContextVar[_Settings] = ContextVar("choices", default=_USUAL)


@contextmanager
def choosing(*, strict: bool = False, fast: bool = False, prefer: str = "", checked: bool = False) -> Generator[None]:
    """Graphs lowered inside choose so: see :class:`Choices`."""
    token = _settings.set(_Settings(strict, fast, prefer, checked=checked))
    try:
        yield
    finally:
        _settings.reset(token)


@contextmanager
def measuring(prefer: str) -> Generator[None]:
    """Graphs lowered inside take one way wherever they can, and by the rule elsewhere, whatever was measured."""
    token = _settings.set(_settings.get()._replace(prefer=prefer, use_measured=False))
    try:
        yield
    finally:
        _settings.reset(token)


def current_choices(threads: int) -> Choices:
    """The choices for a graph that is lowered now, for so many threads."""
    now = _settings.get()
    return Choices(measured_ways(threads) if now.use_measured else {}, now.prefer, now.strict, now.fast, now.checked)


def choices_key(threads: int) -> str | None:
    """A text equal where graphs are lowered with equal choices; None while ways are measured."""
    now = _settings.get()
    if now.prefer or not now.use_measured:
        return None
    return f"{now.strict} {now.fast} {sorted(measured_ways(threads).items())}"
