"""Models to generate with, by their files: sessions of decoders, and their tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.generate.stored_tokens import stored_tokenizer
from pyflame_rt.generate.tokenizer import load_tokenizer
from pyflame_rt.graph.pages import immutable_files
from pyflame_rt.importers.detection import detect

if TYPE_CHECKING:
    import os

    from pyflame_rt.generate.tokenizer import Tokenizer
    from pyflame_rt.options import SessionOptions
    from pyflame_rt.session import InferenceSession

__all__ = ["open_model"]


def open_model(
    path: str | os.PathLike[str], options: SessionOptions | None = None, *, tokens: bool = True
) -> tuple[InferenceSession, Tokenizer | None]:
    """The session of a decoder and its tokenizer, where there is one.

    Decoders of Hugging Face folders and GGUF files write keys and values in place; other files hold what they hold.

    Args:
        path: a folder, a GGUF file, or a model file beside which a tokenizer.json may be.
        options: of the session.
        tokens: whether the tokenizer is wanted.
    """
    from pyflame_rt.session import InferenceSession

    place = Path(path)
    kind = detect(place)
    if kind == "gguf":
        from pyflame_rt.importers.gguf.file import read_gguf
        from pyflame_rt.importers.gguf.importer import gguf_decoder

        with immutable_files(options is not None and options.immutable_model):
            file = read_gguf(place)
        return InferenceSession(gguf_decoder(file), options), stored_tokenizer(file) if tokens else None
    folder = place if place.is_dir() else place.parent
    words = load_tokenizer(folder) if tokens and (folder / "tokenizer.json").is_file() else None
    if kind == "huggingface":
        from pyflame_rt.importers.huggingface.importer import decoder_graph

        return InferenceSession(decoder_graph(place), options), words
    return InferenceSession(str(place), options), words
