"""Which kernel takes which case: a rule of thumb, or what was measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Case", "Choices"]


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
