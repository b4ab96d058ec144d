r"""Regular expressions by RE2: time and memory grow with the text, whatever the pattern."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError, MissingExtra, UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compile_re2"]

# What RE2 leaves out because it cannot be matched in linear time, by how its message begins.
_ABSENT = {
    "invalid escape sequence: \\": "backreferences",
    "invalid perl operator: (?=": "lookahead",
    "invalid perl operator: (?!": "lookahead",
    "invalid perl operator: (?<": "lookbehind",
    "invalid perl operator: (?>": "atomic groups",
}


@lru_cache(maxsize=128)
def compile_re2(pattern: str) -> Callable[[str], bool]:
    r"""Whether a text matches a pattern in RE2's syntax from end to end.

    Example:
        >>> compile_re2("[[:alpha:]]+")("abc"), compile_re2(r"\d")("٣")
        (True, False)
    """
    try:
        import re2
    except ModuleNotFoundError as error:
        raise MissingExtra("regular expressions need google-re2: pip install google-re2") from error
    options = re2.Options()
    options.log_errors = False
    try:
        matcher = re2.compile(pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        raise _refusal(pattern, _text(error)) from error
    return lambda text: matcher.fullmatch(text.encode("utf-8", "surrogateescape")) is not None


def _text(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


def _refusal(pattern: str, said: str) -> InputError | UnsupportedOperatorError:
    for begin, name in _ABSENT.items():
        rest = said.removeprefix(begin)
        if rest != said and (name != "backreferences" or rest[:1].isdigit()):
            return UnsupportedOperatorError(
                f"pattern {pattern!r} uses {name}, which RE2, the dialect of RegexFullMatch, does not have ({said})"
            )
    return InputError(f"pattern {pattern!r} cannot be read: {said}")
