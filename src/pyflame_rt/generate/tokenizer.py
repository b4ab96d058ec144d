"""Tokenizers of Hugging Face folders: tokenizer.json through ``tokenizers``, chat templates through ``jinja2``."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, InvalidModelError, MissingExtra, ModelNotFoundError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["Tokenizer", "load_tokenizer", "tokenizers_library"]

_EXTRA = "pip install 'pyflame[generate]'"


class Tokenizer:
    """Text to tokens and back.

    Args:
        library: a ``tokenizers.Tokenizer``.
        config: what tokenizer_config.json says.
        ends: tokens that end a text, where generation_config.json names them.

    Attributes:
        eos_token_ids: tokens that end a text.
        chat_template: how messages become a prompt, or "".
    """

    @names_arguments
    def __init__(
        self, library: Any, config: Mapping[str, Any] | None = None, ends: int | Sequence[int] | None = None
    ) -> None:
        self._library = library
        config = config or {}
        self._marks = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
        if ends is None and self._marks.get("eos_token"):
            ends = library.token_to_id(self._marks["eos_token"])
        self.eos_token_ids: list[int] = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        self.chat_template: str = _template(config.get("chat_template"))
        self._guides: dict[frozenset[int], Any] = {}

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        return list(self._library.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without those that only mark something."""
        return str(self._library.decode(list(tokens), skip_special_tokens=True))

    def guide(self, ends: frozenset[int] = frozenset()) -> Any:
        """The tokenizer for ``llguidance``, with the tokens that end a text; made once.

        Raises:
            InputError: No token ends a text.
        """
        chosen = ends or frozenset(self.eos_token_ids)
        if not chosen:
            raise InputError("constrained output needs a token that ends it: give eos_token_id")
        made = self._guides.get(chosen)
        if made is None:
            from llguidance import LLTokenizer

            settings = json.loads(self._library.to_str()) | {"padding": None, "truncation": None}
            try:
                made = LLTokenizer(json.dumps(settings), eos_token=sorted(chosen))
            except Exception as error:  # the library raises bare Exceptions
                raise InputError(f"this tokenizer cannot be constrained: {error}") from error
            self._guides[chosen] = made
        return made

    def chat(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """The prompt for messages with a "role" and "content", as the model's template writes it, or line by line.

        Raises:
            InputError: The template refuses the messages.
        """
        if not self.chat_template:
            return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: "
        try:
            import jinja2
            import jinja2.sandbox
        except ModuleNotFoundError as error:
            raise MissingExtra(f"chat templates need jinja2: {_EXTRA}") from error

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        # Templates come with models, from anywhere: they may not reach Python.
        room = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        room.globals["raise_exception"] = refuse
        room.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        room.filters["tojson"] = _as_json
        try:
            template = room.from_string(self.chat_template)
            return template.render(messages=list(messages), add_generation_prompt=True, **self._marks, **more)
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the chat template refuses the messages: {error}") from error


@names_arguments
def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a folder, or of a tokenizer.json.

    Raises:
        ModelNotFoundError: There is none.
        InvalidModelError: It is damaged.
        MissingExtra: ``tokenizers`` is not installed.

    Example:
        >>> load_tokenizer("missing")
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.ModelNotFoundError: there is no tokenizer.json at 'missing'
    """
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise ModelNotFoundError(f"there is no tokenizer.json at {str(path)!r}")
    try:
        library = tokenizers_library(file.name).Tokenizer.from_str(file.read_text("utf-8"))
    except MissingExtra:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise InvalidModelError(f"{file}: no tokenizer: {error}") from error
    ends = _config(file.with_name("generation_config.json")).get("eos_token_id")
    config = _config(file.with_name("tokenizer_config.json"))
    template = file.with_name("chat_template.jinja")  # where newer folders keep it
    if template.is_file():
        config["chat_template"] = template.read_text("utf-8", errors="replace")
    return Tokenizer(library, config, _ends(file, ends))


def tokenizers_library(what: str) -> Any:
    """The package ``tokenizers``.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise MissingExtra(f"reading {what} needs tokenizers: {_EXTRA}") from error
    return tokenizers


def _as_json(value: Any, indent: int | None = None) -> str:
    """JSON as templates of transformers write it: no sign is escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InvalidModelError(f"{file}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidModelError(f"{file}: it holds no settings")
    return found


def _ends(file: Path, found: Any) -> int | list[int] | None:
    given = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(end, int) for end in given):
        raise InvalidModelError(f"{file.with_name('generation_config.json')}: eos_token_id is {found!r}, no tokens")
    return given or None


def _content(entry: Any) -> str:
    """A token: its text, or a mapping that has it."""
    return str(entry.get("content", "") if isinstance(entry, dict) else entry or "")


def _template(entry: Any) -> str:
    """The template, or of several the one named "default"."""
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        return str(named.get("default") or "")
    return str(entry or "")
