"""What a check can say: findings in a file, and files that could not be checked."""

import enum
from dataclasses import dataclass
from typing import Any

__all__ = ["Edit", "FileProblem", "Finding", "Severity"]


class Severity(enum.Enum):
    """How much a finding weighs: errors set the exit status, notes never do.

    Example:
        >>> Severity("note").fails
        False
    """

    ERROR = "error"
    NOTE = "note"

    @property
    def fails(self) -> bool:
        """Whether one finding of this severity makes the run fail."""
        return self is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters `start:end` of a source text by `text`.

    Example:
        >>> edit = Edit(0, 2, "ops")
        >>> source = "np.mean(x)"
        >>> source[: edit.start] + edit.text + source[edit.end :]
        'ops.mean(x)'
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in one file that breaks one rule; lines and columns count from 1.

    Example:
        >>> found = Finding("a.py", "EH001", "imports numpy", Severity.ERROR, 1, 1, 1, 13)
        >>> found.location, found.fixable
        ('a.py:1:1', False)
    """

    path: str
    code: str
    message: str
    severity: Severity
    line: int
    column: int
    end_line: int
    end_column: int
    edits: tuple[Edit, ...] = ()

    @property
    def location(self) -> str:
        """The place in the form editors understand: `path:line:column`."""
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def fixable(self) -> bool:
        """Whether `--fix` has a rewrite for this place."""
        return bool(self.edits)

    @property
    def order(self) -> tuple[str, int, int, str]:
        """Sort key: by file, then by place, then by code."""
        return (self.path, self.line, self.column, self.code)

    def covers(self, other: "Finding") -> bool:
        """Whether the span of `other` lies inside this one's."""
        return (self.line, self.column) <= (other.line, other.column) and (
            other.end_line,
            other.end_column,
        ) <= (self.end_line, self.end_column)

    def to_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {
            "path": self.path,
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "fixable": self.fixable,
        }


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file or directory that could not be checked, and why.

    `kind` is one of `missing`, `unreadable`, `too-large`, `binary`, `not-text`, `too-deep`.

    Example:
        >>> str(FileProblem("a.py", "too-large", "9 bytes, the limit is 5"))
        'a.py: too-large: 9 bytes, the limit is 5'
    """

    path: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: {self.message}"

    def to_json(self) -> dict[str, str]:
        """The problem as plain data."""
        return {"path": self.path, "kind": self.kind, "message": self.message}
