"""Importer of TorchScript archives (``torch.jit.trace`` and ``torch.jit.script``), without torch."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, ModelNotFoundError, UndeterminedError, UnsupportedFormatError
from pyflame_rt.importers.base import Importer, ImportOptions, ImportResult, ImportStats
from pyflame_rt.importers.detection import detect
from pyflame_rt.importers.torchscript.archive import read_scripted
from pyflame_rt.importers.torchscript.interface import input_plan
from pyflame_rt.importers.torchscript.lowering import deferred_graph, lowered_graph
from pyflame_rt.importers.torchscript.program import make_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph

__all__ = ["TorchScriptImporter"]

_USUAL_BYTES, _MOST_TIMES = 1 << 30, 16


class TorchScriptImporter(Importer):
    """Makes graphs of TorchScript archives (.pt), read as text and tensors: torch is not needed, no code of them runs.

    An argument ``x`` of forward is the input ``x.1``; :meth:`InferenceSession.run` takes ``x``, too. Archives of traced
    models say how many axes their inputs have; sizes stay open. Scripted ones do not: their graph is one node, opened
    for the shapes of each call, unless ``input_shapes`` of the options names shapes (``None`` leaves a size open).
    Arguments with a default keep it, unless ``input_shapes`` names them.

    Example:
        >>> TorchScriptImporter().import_model("missing.pt").error
        "there is no file 'missing.pt'"
    """

    name = "torchscript"
    suffixes = (".pt",)
    kinds = ("torchscript",)

    def can_import(self, path: str | os.PathLike[str]) -> bool:
        """True for archives with code; the suffix alone says nothing."""
        return detect(path) == "torchscript"

    def read(self, source: Any, options: ImportOptions, input_types: Mapping[str, Any] | None = None,
             max_bytes: int | None = None) -> Graph:  # fmt: skip
        """The graph of an archive."""
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(f"a TorchScript model is given as a path, got {type(source).__name__}")
        path = Path(source)
        if not path.is_file():
            raise ModelNotFoundError(f"there is no file {str(source)!r}")
        if detect(path) != "torchscript":
            raise UnsupportedFormatError(f"{str(source)!r} is no TorchScript archive")
        limit = max(_USUAL_BYTES, _MOST_TIMES * path.stat().st_size) if max_bytes is None else max_bytes
        scripted = read_scripted(path, limit)
        program, weights = make_program(scripted)
        plan = input_plan(program, scripted.examples, options.input_shapes, input_types or {})
        try:
            graph = lowered_graph(path.stem, program, weights, plan)
        except UndeterminedError:
            graph = deferred_graph(path.stem, program, weights, plan)
        graph.metadata["producer_name"] = "TorchScript"
        return graph

    def import_model(
        self, source: Any, options: ImportOptions | None = None, *, input_types: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> ImportResult:  # fmt: skip
        """Import an archive; failures are reported in the result, not raised.

        Args:
            source: the file.
            options: how; ``input_shapes`` names inputs with or without the ``.1``.
            input_types: element types of inputs that the archive does not tell; float32 unless given.
            max_bytes: that all tensors together may take; a gigabyte, or sixteen times the file, unless given.
        """
        chosen = ImportOptions() if options is None else options
        after = dataclasses.replace(chosen, input_shapes={})  # reading has used them
        return self._reported(source, after, ImportStats(), lambda: self.read(source, chosen, input_types, max_bytes))

    import_file = import_model
