"""Source files and places in them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

__all__ = ["NOWHERE", "Position", "Source"]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a source file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Position("<none>", 0, 0)


@dataclass(frozen=True)
class Source:
    r"""The text of one file.

    >>> str(Source("a.csl", "var x;\nvar y;").position(11))
    'a.csl:2:5'
    """

    name: str
    text: str

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the first character of each line."""
        starts, at = [0], self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return starts

    def position(self, offset: int) -> Position:
        """The place of a character offset."""
        line = bisect_right(self.line_starts, offset)
        return Position(self.name, line, offset - self.line_starts[line - 1] + 1)

    def line(self, number: int) -> str:
        """Text of a line, counted from 1, without its end."""
        if not 1 <= number <= len(self.line_starts):
            return ""
        start = self.line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")
