"""CSL text to tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wsesim.csl.syntax.diagnostics import Diagnostics
    from wsesim.csl.syntax.source import Source

__all__ = ["KEYWORDS", "Token", "tokenize"]

KEYWORDS = frozenset(
    (
        *("align", "and", "break", "comptime", "const", "continue", "else", "enum", "export", "extern", "false", "fn"),
        *("for", "if", "layout", "linksection", "or", "packed", "param", "return", "struct", "switch", "task", "true"),
        *("union", "var", "while"),
    )
)

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]+|//[^\n]*)
  | (?P<float>0[xX][0-9a-fA-F_]+(?:\.[0-9a-fA-F_]+)?[pP][+-]?[0-9]+
      |[0-9][0-9_]*\.[0-9][0-9_]*(?:[eE][+-]?[0-9]+)?|[0-9][0-9_]*[eE][+-]?[0-9]+)
  | (?P<int>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|[0-9][0-9_]*)
  | (?P<builtin>@[A-Za-z_][A-Za-z0-9_]*)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|.))')
  | (?P<op>/(?![*=])|<<=|>>=|\.\.\.|->|=>|\.\*|\.\{
      |<<|>>|<=|>=|==|!=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|[-+*%&|^~!<>=(){}\[\],;:.?])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token: ``kind`` is ``int float string char builtin name keyword op end``; ``offset`` is into the text."""

    kind: str
    text: str
    offset: int


def tokenize(source: Source, diagnostics: Diagnostics) -> list[Token]:
    """The tokens of a file, ending with one of kind ``end``; a bad character is reported and skipped.

    >>> from wsesim.csl.syntax.diagnostics import Diagnostics
    >>> from wsesim.csl.syntax.source import Source
    >>> [t.text for t in tokenize(Source("a.csl", "x += 0x1f; // note"), Diagnostics())]
    ['x', '+=', '0x1f', ';', '']
    """
    text, tokens, at = source.text, [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            at = _bad_character(source, at, diagnostics)
            continue
        kind = found.lastgroup
        if kind != "space":
            word = found.group()
            tokens.append(Token("keyword" if kind == "name" and word in KEYWORDS else str(kind), word, at))
        at = found.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _bad_character(source: Source, at: int, diagnostics: Diagnostics) -> int:
    text, pos = source.text, source.position(at)
    if text[at] in "\"'":
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        kind = "string" if text[at] == '"' else "character"
        diagnostics.error("unterminated-literal", f"{kind} literal is not closed on its line", pos, end - at)
        return end
    if text.startswith("/*", at):
        diagnostics.error("bad-character", "CSL has no block comments", pos, 2, "start each line with //")
        end = text.find("*/", at)
        return len(text) if end < 0 else end + 2
    diagnostics.error("bad-character", f"character {text[at]!r} does not belong to the language", pos)
    return at + 1
