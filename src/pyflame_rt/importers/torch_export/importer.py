"""Importer of torch.export's programs (.pt2), and of live modules through them."""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, MissingExtra, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.importers.aten.table import find_lowering
from pyflame_rt.importers.base import Importer, ImportOptions
from pyflame_rt.importers.detection import detect
from pyflame_rt.importers.torch_export.archive import read_exported
from pyflame_rt.importers.torch_export.lowering import exported_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph

__all__ = ["TorchExportImporter", "graph_from_torch"]

_USUAL_BYTES, _MOST_TIMES = 1 << 30, 16


class TorchExportImporter(Importer):
    """Makes graphs of programs that ``torch.export.save`` wrote (.pt2); torch is not needed, no code of them runs.

    Inputs have the names of the arguments; dynamic sizes stay symbols.

    Example:
        >>> TorchExportImporter().import_model("missing.pt2").error
        "there is no file 'missing.pt2'"
    """

    name = "torch-export"
    suffixes = (".pt2",)
    kinds = ("torch-export",)

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph of an archive."""
        del options
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(f"an exported program is given as a path, got {type(source).__name__}")
        path = Path(source)
        if not path.is_file():
            raise ModelNotFoundError(f"there is no file {str(source)!r}")
        if detect(path) != "torch-export":
            raise UnsupportedFormatError(f"{str(source)!r} is no program of torch.export")
        limit = max(_USUAL_BYTES, _MOST_TIMES * path.stat().st_size)
        graph = exported_graph(path.stem, read_exported(path, limit))
        graph.metadata["producer_name"] = "torch.export"
        return graph


def graph_from_torch(
    module: Any, example: Any, kwargs: Mapping[str, Any] | None = None, *, dynamic_shapes: Any = None
) -> Graph:
    """The graph of a live module, through ``torch.export``.

    Args:
        module: a ``torch.nn.Module``, or a program of ``torch.export``.
        example: its inputs, a tensor or a tuple of them.
        kwargs: its inputs by name.
        dynamic_shapes: which sizes may change, as ``torch.export.export`` takes them; they stay symbols.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("from_torch needs torch: pip install 'pyflame[torch]'") from error
    if isinstance(module, torch.export.ExportedProgram):
        program = module
    elif isinstance(module, torch.nn.Module):
        args = tuple(example) if isinstance(example, (tuple, list)) else (example,)
        program = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    else:
        raise InputError(f"a module of torch is needed, got {type(module).__name__}")
    program = _decomposed(program)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own format
        path = Path(folder) / "model.pt2"
        torch.export.save(_of_plain_results(program), path)
        exported = read_exported(path, _MOST_TIMES * max(path.stat().st_size, _USUAL_BYTES))
    return exported_graph(type(module).__name__, exported)


def _of_plain_results(program: Any) -> Any:
    """The program with its results in a tuple: torch saves no named tuples of classes it was not told of."""
    from torch.utils import _pytree as pytree

    first, *rest = program.module_call_graph
    if first.signature is None:
        return program
    flat = pytree.tree_structure(tuple(range(first.signature.out_spec.num_leaves)))
    made = copy.copy(program)
    made._module_call_graph = [
        dataclasses.replace(first, signature=dataclasses.replace(first.signature, out_spec=flat)),
        *rest,
    ]
    return made


def _decomposed(program: Any) -> Any:
    """The program with operators that are not lowered taken apart, as far as torch can."""
    from torch.export import default_decompositions

    missing = [
        node.target
        for node in program.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "overloadpacket") and not _is_lowered(node.target)
    ]
    if not missing:
        return program
    known = default_decompositions()
    return program.run_decompositions({target: known[target] for target in missing if target in known})


def _is_lowered(target: Any) -> bool:
    name, _, overload = str(target.name()).partition("::")[2].partition(".")
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return find_lowering(name, overload) is not None or find_lowering(plain) is not None
