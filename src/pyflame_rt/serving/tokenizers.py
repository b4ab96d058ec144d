"""Tokenizers and chat templates that lie beside a model, as Hugging Face writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyflame_rt.graph.errors import InputError, MissingExtra
from pyflame_rt.graph.records import dataclass

__all__ = ["TextFiles", "find_text_files"]


@dataclass(slots=True)
class TextFiles:
    """What turns text into tokens and back.

    Attributes:
        tokenizer: has ``encode(text)`` with ``.ids``, and ``decode(ids)``.
        chat_template: makes a prompt of messages; "" for a plain one.
        ends: tokens that end an answer.
        names: tokens that templates name, such as ``bos_token``.
    """

    tokenizer: Any
    chat_template: str
    ends: list[int]
    names: dict[str, str]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self.tokenizer.encode(text).ids)

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        """The prompt of a conversation.

        Raises:
            InputError: The template refuses the messages.
        """
        if not self.chat_template:
            return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: "
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise InputError(f"the chat template refuses the messages: {message}")

        world = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        world.globals["raise_exception"] = refuse
        try:
            made = world.from_string(self.chat_template)
            return made.render(messages=messages, add_generation_prompt=True, **self.names)
        except TemplateError as error:
            raise InputError(f"the chat template cannot be used: {error}") from error


def find_text_files(given: str, model_path: str) -> TextFiles | None:
    """The tokenizer of a model: the one that is named, else one beside the model; None where there is none.

    Raises:
        InputError: It cannot be read.
        MissingExtra: The library for it is not installed.
    """
    place = Path(given) if given else Path(model_path).parent if model_path else None
    if place is None:
        return None
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        if given:
            raise InputError(f"there is no tokenizer {given!r}")
        return None
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtra("models of text need tokenizers: pip install 'pyflame[serve]'") from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no class of its own
        raise InputError(f"{str(file)!r} is no tokenizer: {error}") from error
    settings = _read(file.parent / "tokenizer_config.json")
    ends = _read(file.parent / "generation_config.json").get("eos_token_id")
    names = {key: _name(value) for key, value in settings.items() if key.endswith("_token")}
    if ends is None and names.get("eos_token"):
        ends = tokenizer.token_to_id(names["eos_token"])
    template = settings.get("chat_template")
    found = [] if ends is None else [ends] if isinstance(ends, int) else [int(end) for end in ends]
    return TextFiles(tokenizer, template if isinstance(template, str) else "", found, names)


def _name(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{str(file)!r} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
