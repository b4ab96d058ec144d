"""Tokenizers of GGUF files: the vocabulary in the header of a file, as a tokenizer of ``tokenizers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.generate.tokenizer import Tokenizer, tokenizers_library
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.importers.gguf.file import GGUFFile

__all__ = ["stored_tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4  # types of tokens that are found before all others
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How texts are parted before pairs are merged, by the name of it; GPT-2's way is ByteLevel's own.
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "llama-bpe": _PIECES % "{1,3}",
    "llama3": _PIECES % "{1,3}",
    "qwen2": _PIECES % "",
}
_BEGIN_FIRST = ("llama-bpe", "llama3")  # a text begins with the token for that, unless the file says otherwise
_WHOLE_FIRST = _BEGIN_FIRST  # what is a token as it is, is not made by merging
_SPACE = "▁"


def stored_tokenizer(file: GGUFFile) -> Tokenizer | None:
    """The tokenizer of a file; None where it has no vocabulary.

    Raises:
        MissingExtra: ``tokenizers`` is not installed.
        UnsupportedFormatError: It is of a kind that is not known here.
        InvalidModelError: It is damaged.
    """
    kind = _field(file, "model", "none", str)
    if kind in ("none", "no_vocab"):
        return None
    tokens = _field(file, "tokens", [], list)
    ids = {token: i for i, token in enumerate(tokens)}
    if not ids or len(ids) < len(tokens) or not all(isinstance(token, str) for token in tokens):
        raise InvalidModelError(f"{file.where}: its {len(tokens)} tokens are not all texts, each there once")
    try:
        match kind:
            case "llama":
                library = _of_scores(file, ids)
            case "gpt2":
                library = _of_merges(file, ids)
            case _:
                raise UnsupportedFormatError(
                    f"{file.where}: a tokenizer of kind {kind!r} is not one of llama, gpt2: give a tokenizer.json"
                )
        _add_marks(file, library, tokens)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise InvalidModelError(f"{file.where}: its tokenizer is damaged: {error}") from error
    marks = {
        f"{n}_token": tokens[i] for n in ("bos", "eos", "unknown") if (i := _token(file, n, len(tokens))) is not None
    }
    marks["chat_template"] = str(file.fields.get("tokenizer.chat_template", ""))
    ends = [i for n in ("eos", "eot") if (i := _token(file, n, len(tokens))) is not None]
    return Tokenizer(library, marks, ends or None)


def _field(file: GGUFFile, name: str, default: Any, kind: type) -> Any:
    value = file.fields.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, kind):
        raise InvalidModelError(f"{file.where}: tokenizer.ggml.{name} is a {type(value).__name__}, not {kind.__name__}")
    return value


def _token(file: GGUFFile, name: str, count: int) -> int | None:
    """The token for something, where there is one."""
    number = file.fields.get(f"tokenizer.ggml.{name}_token_id")
    if number is not None and (not isinstance(number, int) or not 0 <= number < count):
        raise InvalidModelError(f"{file.where}: tokenizer.ggml.{name}_token_id is {number!r} of {count} tokens")
    return number


def _of_scores(file: GGUFFile, ids: Mapping[str, int]) -> Any:
    """Pieces of SentencePiece: of two neighbours that make a piece, those of the best score are merged first."""
    library = tokenizers_library(file.where)
    scores = _field(file, "scores", [], list)
    if len(scores) != len(ids):
        raise InvalidModelError(f"{file.where}: {len(scores)} scores of {len(ids)} tokens")
    found = []
    for piece, number in ids.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in ids and right in ids:
                found.append((-scores[number], number, -len(left), left, right))
    merges = [(left, right) for *_, left, right in sorted(found)]
    unknown = _token(file, "unknown", len(ids))
    unknown = None if unknown is None else list(ids)[unknown]
    model = library.models.BPE(dict(ids), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    made = library.Tokenizer(model)
    replaced, prefixed = library.normalizers.Replace(" ", _SPACE), _field(file, "add_space_prefix", True, bool)
    parts = [library.normalizers.Prepend(_SPACE), replaced] if prefixed else [replaced]
    made.normalizer = library.normalizers.Sequence(parts)
    decoders = library.decoders
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    _begin_with(file, made, ids, by_default=True)
    return made


def _of_merges(file: GGUFFile, ids: Mapping[str, int]) -> Any:
    """Pairs of bytes, merged in the order of a list."""
    library = tokenizers_library(file.where)
    way = _field(file, "pre", "default", str)
    if way not in _SPLITS:
        raise UnsupportedFormatError(
            f"{file.where}: texts parted as {way!r} are not one of {', '.join(_SPLITS)}: give a tokenizer.json"
        )
    merges = [tuple(pair.split(" ")) for pair in _field(file, "merges", [], list)]
    made = library.Tokenizer(library.models.BPE(dict(ids), merges, ignore_merges=way in _WHOLE_FIRST))
    rule, parting = _SPLITS[way], library.pre_tokenizers
    if rule is None:
        made.pre_tokenizer = parting.ByteLevel(add_prefix_space=False)
    else:
        pieces = parting.Split(library.Regex(rule), "isolated")
        made.pre_tokenizer = parting.Sequence([pieces, parting.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = library.decoders.ByteLevel()
    _begin_with(file, made, ids, by_default=way in _BEGIN_FIRST)
    return made


def _begin_with(file: GGUFFile, made: Any, ids: Mapping[str, int], *, by_default: bool) -> None:
    """Let texts begin with the token for that, where the file says so."""
    begin = _token(file, "bos", len(ids))
    if begin is not None and _field(file, "add_bos_token", by_default, bool):
        mark = list(ids)[begin]
        processors = tokenizers_library(file.where).processors
        made.post_processor = processors.TemplateProcessing(
            single=[mark, "$A"], pair=[mark, "$A", "$B"], special_tokens=[(mark, begin)]
        )


def _add_marks(file: GGUFFile, made: Any, tokens: list[str]) -> None:
    """Tokens that are no words: found in texts as they are, and not shown."""
    library, kinds = tokenizers_library(file.where), _field(file, "token_type", [], list)
    for group, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [t for t, kind in zip(tokens, kinds, strict=False) if kind == group]
        added = [library.AddedToken(t, special=special, normalized=False) for t in found]
        (made.add_special_tokens if special else made.add_tokens)(added)
