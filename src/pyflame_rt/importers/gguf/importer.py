"""GGUF files as graphs: weights in blocks stay in blocks, and are multiplied as they are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, InvalidModelError, ModelNotFoundError
from pyflame_rt.importers.base import Importer, ImportOptions
from pyflame_rt.importers.gguf.file import MAGIC, read_gguf
from pyflame_rt.importers.gguf.models import halves, read_model
from pyflame_rt.importers.huggingface.caches import BufferCache, ConcatCache
from pyflame_rt.importers.huggingface.families import trace_decoder
from pyflame_rt.importers.huggingface.folder import BlockWeights, Settings, Weights
from pyflame_rt.ops.core.trace import Tracer
from pyflame_rt.ops.core.value import scope
from pyflame_rt.ops.pyflame.stored_blocks import FORMATS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    import numpy as np

    from pyflame_rt.graph import Graph
    from pyflame_rt.importers.gguf.file import GGUFFile, StoredTensor
    from pyflame_rt.importers.gguf.models import StoredModel

__all__ = ["GGUFImporter", "gguf_decoder"]

_FLOATS = ("F32", "F16", "BF16")


class GGUFImporter(Importer):
    """Makes graphs of GGUF files of the architectures llama and gpt2.

    Weights of Q4_0, Q4_1, Q8_0, Q4_K, Q5_K and Q6_K stay as they are in the file; others become float32. Decoders take
    past keys and values and give the present ones.

    Example:
        >>> GGUFImporter().import_model("missing.gguf").error
        "there is no file 'missing.gguf'"
    """

    name = "gguf"
    suffixes = (".gguf",)
    kinds = ("gguf",)

    def can_import(self, path: str | os.PathLike[str]) -> bool:
        """True for a file that begins as GGUF files do."""
        file = Path(path)
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC

    def locate(self, source: Any) -> Any:
        """The file, which must be there."""
        if not isinstance(source, (str, Path)) or not Path(source).is_file():
            raise ModelNotFoundError(f"there is no file {str(source)!r}")
        return Path(source)

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph of a file."""
        if options.opset_version is not None:
            raise InputError("opset_version is for ONNX files")
        return _traced(read_gguf(source), ConcatCache)


def gguf_decoder(file: GGUFFile) -> Graph:
    """The graph of a file's decoder that writes keys and values in place; see ``caches.BufferCache``.

    Raises:
        InvalidModelError: It lacks weights, or they are of other sizes than its header says.
        UnsupportedFormatError: Its architecture, or a type of weights, is not supported.
    """
    return _traced(file, BufferCache)


def _traced(file: GGUFFile, form: type[BufferCache | ConcatCache]) -> Graph:
    model = read_model(file)
    weights = Weights(_arrays(file.where, model), file.where)
    tracer = Tracer(Path(file.where).stem)
    with scope(tracer):
        trace_decoder(model.family, Settings(model.settings, file.where), weights, tracer, form, conv1d=False)
    weights.refuse_left(model.family, ())
    tracer.graph.metadata |= {"producer_name": "gguf", "custom.architecture": model.family}
    return tracer.graph


def _arrays(where: str, model: StoredModel) -> dict[str, np.ndarray[Any, Any] | BlockWeights]:
    """The weights: blocks and float32 as they lie in the file, others as float32."""
    _warn_of_widened(where, model.weights.values())
    _check_sizes(where, model)
    made: dict[str, np.ndarray[Any, Any] | BlockWeights] = {}
    for name, tensor in model.weights.items():
        heads = model.turned.get(name)
        if tensor.kind in FORMATS and len(tensor.shape) == 2:
            made[name] = BlockWeights(tensor.data if heads is None else halves(tensor.data, heads), tensor.kind)
        else:
            array = tensor.numbers()
            made[name] = array if heads is None else halves(array, heads)
    return made


def _check_sizes(where: str, model: StoredModel) -> None:
    """Refuse matrices of other sizes than those of the first layer, which the header was compared with."""
    sizes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.weights.items():
        part = name.split(".", 2)[-1] if name[:1] in "hl" and name.count(".") > 2 else name
        if sizes.setdefault(part, tensor.shape) != tensor.shape:
            raise InvalidModelError(f"{where}: {tensor.name} is {list(tensor.shape)}, elsewhere {list(sizes[part])}")


def _warn_of_widened(where: str, tensors: Iterable[StoredTensor]) -> None:
    counts: dict[str, int] = {}
    for tensor in tensors:
        if tensor.kind not in FORMATS and tensor.kind not in _FLOATS:
            counts[tensor.kind] = counts.get(tensor.kind, 0) + 1
    if counts:
        said = ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))
        warnings.warn(
            f"{where}: weights become float32, several times as large, as no product takes their blocks: {said}; "
            f"those of {', '.join(FORMATS)} stay as they are",
            stacklevel=2,
        )
