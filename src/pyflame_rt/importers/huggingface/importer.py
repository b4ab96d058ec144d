"""Folders of Hugging Face models: config.json says which family, its builder makes the graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.importers.base import Importer, ImportOptions
from pyflame_rt.importers.huggingface.folder import read_settings, read_weights
from pyflame_rt.ops.core.trace import Tracer
from pyflame_rt.ops.core.value import scope

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    from pyflame_rt.graph import Graph
    from pyflame_rt.importers.huggingface.folder import Settings, Weights

    Builder = Callable[[Settings, Weights, Tracer], None]

__all__ = ["HuggingFaceImporter", "decoder_graph"]


class HuggingFaceImporter(Importer):
    """Makes graphs of folders that ``save_pretrained`` wrote, without transformers and torch, in float32.

    Families: BERT, RoBERTa, DistilBERT, GPT-2, Llama, Qwen2, Mistral, Gemma, Phi, T5, ViT, CLIP, Whisper, ResNet.
    Inputs and outputs have transformers' names. Decoders take past keys and values and give the present ones.

    Example:
        >>> HuggingFaceImporter().import_model("missing").error
        "there is no folder 'missing'"
    """

    name = "huggingface"
    kinds = ("huggingface",)

    def can_import(self, path: str | os.PathLike[str]) -> bool:
        """True for a folder with a config.json."""
        return (Path(path) / "config.json").is_file()

    def locate(self, source: Any) -> Any:
        """The folder, which must be there."""
        if not isinstance(source, (str, Path)) or not Path(source).is_dir():
            raise ModelNotFoundError(f"there is no folder {str(source)!r}")
        return Path(source)

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph of a folder."""
        from pyflame_rt.importers.huggingface.families import ARCHITECTURES

        if options.opset_version is not None:
            raise InputError("opset_version is for ONNX files")
        return _traced(Path(source), ARCHITECTURES)


def decoder_graph(folder: Path) -> Graph:
    """The graph of a folder's decoder that writes keys and values in place; see ``caches.BufferCache``.

    Raises:
        UnsupportedFormatError: The folder's architecture generates nothing.
    """
    from pyflame_rt.importers.huggingface.families import GENERATING, trace_decoder

    return _traced(folder, {named: partial(trace_decoder, family) for named, family in GENERATING.items()})


def _traced(folder: Path, known: Mapping[str, Builder]) -> Graph:
    from pyflame_rt.importers.huggingface.families import IGNORED

    settings = read_settings(folder)
    architecture = _architecture(settings, known)
    weights = read_weights(folder)
    tracer = Tracer(folder.resolve().name)
    with scope(tracer):
        known[architecture](settings, weights, tracer)
    weights.refuse_left(architecture, IGNORED)
    tracer.graph.metadata |= {"producer_name": "transformers", "custom.architecture": architecture}
    return tracer.graph


def _architecture(settings: Settings, known: Collection[str]) -> str:
    settings.refuse("quantization_config")
    listed = settings.values.get("architectures")
    named = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(named, str) or named not in known:
        kind = settings.values.get("model_type")
        raise UnsupportedFormatError(
            f"{settings.where}: architecture {named!r} (model_type {kind!r}) is not one of "
            f"{', '.join(sorted(known))}; export it to ONNX"
        )
    return named
