"""Tokens to text as they come: no half characters, nothing of what ends the text, and no token decoded twice over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TextStream"]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens before the new ones that are decoded with them: spaces and joined signs depend on neighbours


class TextStream:
    """The text of a sequence of tokens.

    Args:
        tokenizer: has ``decode(tokens)``.
        stop: texts to stop at, among others.

    Attributes:
        text: all of it so far, perhaps with signs that are not complete.

    Example:
        >>> class Letters:
        ...     def decode(self, tokens):
        ...         return "".join(map(chr, tokens))
        >>> stream = TextStream(Letters(), ["END"])
        >>> for letter in "abE":
        ...     stream.add(ord(letter))
        >>> stream.text, stream.take()
        ('abE', 'ab')
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str | Sequence[int]] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = [text for text in stop if isinstance(text, str)]
        self.restart([])
        self._given = 0

    def restart(self, tokens: Sequence[int]) -> None:
        """Begin anew with these tokens; what was taken stays taken."""
        self._tokens = list(tokens)
        self._from = 0  # the first token that is decoded again
        self._before = ""  # the text of those before it
        self.text = str(self._tokenizer.decode(self._tokens)) if self._tokens else ""

    def add(self, token: int) -> None:
        """A token more."""
        self._tokens.append(token)
        if len(self._tokens) - self._from > 4 * _CONTEXT:
            self._move()
        self.text = self._before + self._decoded(self._tokens[self._from :])

    def _move(self) -> None:
        """Begin further on, where the text before is complete and stays as it is."""
        middle = len(self._tokens) - _CONTEXT
        whole, head = self._decoded(self._tokens[self._from :]), self._decoded(self._tokens[self._from : middle])
        tail = self._decoded(self._tokens[middle:])
        # Some tokenizers leave out a space at the very beginning: only where both parts make the whole it is safe.
        if whole == head + tail and not head.endswith(_UNFINISHED):
            self._before, self._from = self._before + head, middle

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens)))

    def cut(self) -> bool:
        """Whether the text has one to stop at, which is then cut off with what follows it."""
        found = [at for stop in self._stops if (at := self.text.find(stop)) >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    def take(self, *, whole: bool = False) -> str:
        """What is new and certain: no half sign, nothing that a text to stop at may begin with; all if ``whole``."""
        safe = len(self.text) if whole else self._safe()
        new = self.text[self._given : safe]
        self._given = max(self._given, safe)
        return new

    def _safe(self) -> int:
        text = self.text.rstrip(_UNFINISHED)
        held = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), held, -1):
                if text.endswith(stop[:size]):
                    held = size
                    break
        return len(text) - held
