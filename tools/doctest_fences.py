"""Show examples in docstrings as code: a griffe extension for the reference pages of `make docs`."""

from typing import Any

from griffe import Extension, Object


def fenced(text: str) -> str:
    """The text with every doctest in a code block.

    Without one, Markdown reads `>>>` as a quotation and `[a, b]` in a result as a link.
    """
    lines: list[str] = []
    margin: str | None = None
    for line in text.splitlines():
        code = line.lstrip()
        if margin is None and code.startswith(">>>"):
            margin = line[: len(line) - len(code)]
            lines.append(f"{margin}```pycon")
        elif margin is not None and not code:
            lines.append(f"{margin}```")
            margin = None
        lines.append(line)
    if margin is not None:
        lines.append(f"{margin}```")
    return "\n".join(lines)


class DoctestFences(Extension):
    """Applies `fenced` to every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called once for each object, after it is loaded."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
