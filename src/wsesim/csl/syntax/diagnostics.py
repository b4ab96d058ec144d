"""Compiler messages: where, what was expected, what came, what to do.

The tree of exceptions::

    CslError
    ├── CompileError        one or more diagnostics of severity "error"
    └── CslInputError       a file or flag that cannot be used (missing file, malformed parameter)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wsesim.csl.syntax.source import NOWHERE, Position, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CompileError", "CslError", "CslInputError", "Diagnostic", "Diagnostics"]

Severity = Literal["error", "warning", "note"]


class CslError(Exception):
    """Base of every error of the front end."""


class CslInputError(CslError):
    """A file, flag or parameter that cannot be used."""


@dataclass(frozen=True)
class Diagnostic:
    """One message.

    Attributes:
        code: its name, stable across versions, for example ``undefined-name``.
        message: what is wrong, naming what was expected and what came.
        pos: where.
        length: characters to underline.
        hint: what to do instead.
        severity: ``error``, ``warning`` or ``note``.
        notes: further places, each with a sentence.
    """

    code: str
    message: str
    pos: Position = NOWHERE
    length: int = 1
    hint: str = ""
    severity: Severity = "error"
    notes: tuple[tuple[str, Position], ...] = ()

    def render(self, sources: Mapping[str, Source]) -> str:
        """Text with the source line and a caret.

        >>> d = Diagnostic("undefined-name", "'y' is not defined", Position("a.csl", 1, 9), 1, hint="declare it")
        >>> print(d.render({"a.csl": Source("a.csl", "var x = y;")}))
        a.csl:1:9: error: 'y' is not defined [undefined-name]
            1 | var x = y;
              |         ^
          hint: declare it
        """
        parts = [f"{self.pos}: {self.severity}: {self.message} [{self.code}]"]
        parts += _excerpt(self.pos, self.length, sources)
        for text, where in self.notes:
            parts.append(f"{where}: note: {text}")
            parts += _excerpt(where, 1, sources)
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)


def _excerpt(pos: Position, length: int, sources: Mapping[str, Source]) -> list[str]:
    source = sources.get(pos.file)
    if source is None or pos.line < 1:
        return []
    line = source.line(pos.line)
    if len(line) > 400:  # a generated one-line file should not flood the screen
        return []
    pad = "".join("\t" if ch == "\t" else " " for ch in line[: pos.column - 1])
    width = max(1, min(length, len(line) - pos.column + 1))
    return [f"{pos.line:5d} | {line}", f"      | {pad}{'^' + '~' * (width - 1)}"]


@dataclass
class Diagnostics:
    """Collects messages of one compilation; at most ``limit`` errors are kept."""

    sources: dict[str, Source] = field(default_factory=dict)
    items: list[Diagnostic] = field(default_factory=list)
    limit: int = 50

    def add(self, item: Diagnostic) -> None:
        """Keeps a message unless the same one is already there."""
        if item not in self.items and len(self.items) < self.limit:
            self.items.append(item)

    def error(self, code: str, message: str, pos: Position = NOWHERE, length: int = 1, hint: str = "") -> None:
        """Keeps an error."""
        self.add(Diagnostic(code, message, pos, length, hint))

    def warn(self, code: str, message: str, pos: Position = NOWHERE, length: int = 1, hint: str = "") -> None:
        """Keeps a warning."""
        self.add(Diagnostic(code, message, pos, length, hint, severity="warning"))

    @property
    def errors(self) -> list[Diagnostic]:
        """The errors among the messages."""
        return [d for d in self.items if d.severity == "error"]

    def check(self) -> None:
        """Raises when there is an error."""
        if self.errors:
            raise CompileError(self.items, self.sources)


class CompileError(CslError):
    """The program is not valid; ``diagnostics`` says why, ``str()`` shows all of them."""

    def __init__(self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, Source]) -> None:
        self.diagnostics = tuple(diagnostics)
        self.sources = dict(sources)
        super().__init__(self.render())

    def render(self) -> str:
        """Every message with its source line, then the count."""
        errors = sum(d.severity == "error" for d in self.diagnostics)
        parts = [d.render(self.sources) for d in self.diagnostics]
        return "\n".join([*parts, f"{errors} error{'s' if errors != 1 else ''}"])
