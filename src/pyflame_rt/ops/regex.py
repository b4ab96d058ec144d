r"""RE2's pattern syntax for Python's regular expressions.

The two agree on nearly everything that RE2 has. What differs is rewritten here: POSIX classes,
Unicode classes, ``\z``, ``\Q...\E`` and flags in the middle of a pattern. Class escapes such as
``\d`` are ASCII in RE2.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError

__all__ = ["compile_re2"]

_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ", "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
# Inside a class, \d and its like stand for these in RE2 (\s has no vertical tab).
_ESCAPES = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_"}
_UNICODE = re.compile(r"\\([pP])(?:\{(\^?)(\w+)\}|(\w))")
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w+):\]")
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?\)")
_GROUP_NAME = re.compile(r"\(\?<(?=[A-Za-z_])")
_ABSENT = re.compile(r"\(\?(?:=|!|<=|<!|>)")


@lru_cache(maxsize=128)
def compile_re2(pattern: str) -> re.Pattern[str]:
    r"""A pattern in RE2's syntax, compiled.

    Example:
        >>> bool(compile_re2("[[:alpha:]]+").fullmatch("abc")), bool(compile_re2(r"\d").fullmatch("٣"))
        (True, False)
    """
    try:
        return re.compile(_Translator(pattern).translate())
    except (re.error, OverflowError) as error:
        raise InputError(f"pattern {pattern!r} cannot be read: {error}") from error


class _Translator:
    """Walks over a pattern once, copying what both dialects share."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.place = 0
        self.made: list[str] = []
        # Groups opened to hold flags, for each level of parentheses.
        self.open: list[list[str]] = [[]]

    def translate(self) -> str:
        while self.place < len(self.text):
            match self.text[self.place]:
                case "\\":
                    self.made.append(self._escape())
                case "[":
                    self.made.append(self._class())
                case "(":
                    self._group()
                case ")":
                    self._emit(1, ")" * (len(self.open.pop()) if len(self.open) > 1 else 0) + ")")
                case "|":
                    # Flags hold to the end of the group, over its other alternatives too.
                    self._emit(1, ")" * len(self.open[-1]) + "|" + "".join(self.open[-1]))
                case char:
                    self._emit(1, char)
        return "".join(self.made) + ")" * len(self.open[-1])

    def _emit(self, length: int, text: str) -> None:
        self.place += length
        self.made.append(text)

    def _group(self) -> None:
        if _ABSENT.match(self.text, self.place):
            raise InputError(f"pattern {self.text!r}: RE2 has no look-around")
        if flags := _FLAGS.match(self.text, self.place):
            on, off = flags[1], flags[2] or ""
            if "U" in on + off:
                raise UnsupportedOperatorError(f"pattern {self.text!r}: the flag U is not supported")
            self.open[-1].append(f"(?{on}{'-' + off if off else ''}:")
            self._emit(len(flags[0]), self.open[-1][-1])
            return
        self.open.append([])
        if named := _GROUP_NAME.match(self.text, self.place):
            self._emit(len(named[0]), "(?P<")
            return
        self._emit(1, "(")

    def _escape(self) -> str:
        rest = self.text[self.place :]
        if found := _UNICODE.match(self.text, self.place):
            self.place += len(found[0])
            return f"[{_category(found)}]"
        if rest.startswith(r"\Q"):
            literal, end, _ = rest[2:].partition(r"\E")
            self.place += 2 + len(literal) + len(end)
            return re.escape(literal)
        if rest.startswith(r"\x{"):
            digits = rest[3:].partition("}")[0]
            self.place += 4 + len(digits)
            return re.escape(chr(int(digits, 16)))
        self.place += 2
        letter = rest[1:2]
        if letter.lower() in _ESCAPES:
            return f"[{'^' if letter.isupper() else ''}{_ESCAPES[letter.lower()]}]"
        if letter in "bB":
            return f"(?a:\\{letter})"
        return {"z": r"\Z", "C": "(?s:.)"}.get(letter, rest[:2])

    def _class(self) -> str:
        """A bracket expression; negated members become complements."""
        parts, self.place = ["["], self.place + 1
        if self.text.startswith("^", self.place):
            parts.append("^")
            self.place += 1
        if self.text.startswith("]", self.place):
            parts.append(r"\]")
            self.place += 1
        while self.place < len(self.text) and self.text[self.place] != "]":
            parts.append(self._member())
        self.place += 1
        return "".join(parts) + "]"

    def _member(self) -> str:
        text, at = self.text, self.place
        if posix := _POSIX_CLASS.match(text, at):
            if posix[2] not in _POSIX:
                raise InputError(f"pattern {text!r}: there is no class {posix[2]!r}")
            self.place += len(posix[0])
            return _complement(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]]
        if found := _UNICODE.match(text, at):
            self.place += len(found[0])
            return _category(found)
        if text[at] == "\\":
            letter = text[at + 1 : at + 2]
            self.place += 2
            if letter.lower() in _ESCAPES:
                inside = _ESCAPES[letter.lower()]
                return _complement(inside) if letter.isupper() else inside
            return text[at : at + 2]
        self.place += 1
        # Python warns about what may one day be set operations.
        return "\\" + text[at] if text[at] in "[&~|" else text[at]


@lru_cache(maxsize=64)
def _complement(members: str) -> str:
    """Everything but the members of an ASCII class, as ranges."""
    inside = re.compile(f"[{members}]")
    return _ranges([c for c in range(128) if not inside.match(chr(c))]) + rf"\x80-{chr(sys.maxunicode)}"


def _category(found: re.Match[str]) -> str:
    name, negated = found[3] or found[4], (found[1] == "P") != bool(found[2])
    return _category_ranges(name, negated)


@lru_cache(maxsize=64)
def _category_ranges(name: str, negated: bool) -> str:
    if name == "Any":
        return "" if negated else rf"\x00-{chr(sys.maxunicode)}"
    if len(name) > 2 or name[0] not in "CLMNPSZ":
        raise UnsupportedOperatorError(f"the Unicode class {name!r} is not supported; categories such as L or Nd are")
    every = range(sys.maxunicode + 1)
    return _ranges([c for c in every if unicodedata.category(chr(c)).startswith(name) != negated])


def _ranges(points: list[int]) -> str:
    parts: list[str] = []
    start = previous = points[0] if points else 0
    for point in [*points[1:], -1] if points else []:
        if point == previous + 1:
            previous = point
            continue
        parts.append(f"{re.escape(chr(start))}-{re.escape(chr(previous))}")
        start = previous = point
    return "".join(parts)
