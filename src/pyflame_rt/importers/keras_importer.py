"""Importer of Keras 3 models (.keras): Keras builds the layers on torch, ``torch.export`` gives their graph."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, InvalidModelError, MissingExtra, UnsupportedFormatError
from pyflame_rt.importers.base import Importer, ImportOptions
from pyflame_rt.importers.detection import detect
from pyflame_rt.importers.torch_export.importer import graph_from_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph

__all__ = ["KerasImporter"]

# Stands for a size that stays open while torch traces the layers; torch takes 0 and 1 for fixed.
_EXAMPLE = 8
_LONGEST = 600


class KerasImporter(Importer):
    """Makes graphs of models that ``model.save("model.keras")`` wrote; Keras 3 and torch are needed.

    Inputs and outputs have Keras's names. Sizes that the model leaves open stay symbols, unless ``input_shapes`` says
    otherwise. Keras reads the file in its safe mode, so lambdas in it are refused.

    Example:
        >>> KerasImporter().import_model("missing.keras").error
        "there is no file 'missing.keras'"
    """

    name = "keras"
    suffixes = (".keras",)
    kinds = ("keras",)

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph of a file."""
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(f"a Keras model is given as a path, got {type(source).__name__}")
        path = Path(source)
        if detect(path) != "keras":
            raise UnsupportedFormatError(f"{str(source)!r} is no model of Keras 3")
        keras = _keras()
        try:
            model = keras.saving.load_model(path, compile=False)
        except (ValueError, TypeError, KeyError, OSError, ImportError, AttributeError) as error:
            raise InvalidModelError(f"{path}: Keras does not load it: {_shortened(error)}") from error
        if not getattr(model, "built", False) or not getattr(model, "inputs", None):
            raise UnsupportedFormatError(f"{path}: the model does not say what its inputs are")
        graph = _graph(model, path, options.input_shapes)
        graph.name = model.name
        graph.metadata["producer_name"] = "keras"
        return graph


def _keras() -> Any:
    """Keras, on torch."""
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = "torch"  # Keras asks once, when it is imported
    try:
        keras: Any = importlib.import_module("keras")
    except ImportError as error:
        raise MissingExtra(f"files of Keras need Keras 3 and torch: pip install keras ({error})") from error
    if (chosen := keras.backend.backend()) != "torch":
        raise UnsupportedFormatError(
            f"Keras runs on {chosen} in this process: set the environment variable KERAS_BACKEND to torch before it "
            "is imported"
        )
    return keras


def _graph(model: Any, path: Path, given: Mapping[str, Sequence[Any]]) -> Graph:
    import torch

    names = [tensor.name for tensor in model.inputs]
    if unknown := sorted(set(given) - set(names)):
        raise InputError(f"input_shapes names {unknown[0]!r}, which is no input. Inputs: {', '.join(names)}")
    examples, sizes = [], []
    for tensor in model.inputs:
        shape = [n if isinstance(n, int) else None for n in given.get(tensor.name, tensor.shape)]
        dtype = getattr(torch, tensor.dtype)
        examples.append(torch.zeros([_EXAMPLE if n is None else n for n in shape], dtype=dtype))
        sizes.append({axis: torch.export.Dim.DYNAMIC for axis, n in enumerate(shape) if n is None})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras calls what torch deprecates
        try:
            graph = graph_from_torch(_listed(model), (examples,), dynamic_shapes=(sizes,))
        except (RuntimeError, ValueError, TypeError) as error:
            raise UnsupportedFormatError(
                f"{path}: torch does not export the layers: {_shortened(error)}. Sizes that cannot stay open are given "
                "as input_shapes"
            ) from error
    outputs = getattr(model, "output_names", None) or [model.layers[-1].name]
    return _named(graph, names, outputs if len(outputs) == len(graph.outputs) else [])


def _named(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The graph with these names for what goes in and comes out; a name that is taken gets a number."""
    taken = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)} | set(graph.initializers)
    names: dict[str, str] = {}
    for info, wanted in zip([*graph.inputs, *graph.outputs], [*inputs, *outputs], strict=False):
        name, number = wanted, 1
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        taken.add(name)
        names[info.name], info.name = name, name
    graph.nodes = [
        node.replace(
            inputs=[names.get(name, name) for name in node.inputs],
            outputs=[names.get(name, name) for name in node.outputs],
        )
        for node in graph.nodes
    ]
    graph.types = {names.get(name, name): kind for name, kind in graph.types.items()}
    return graph


def _listed(model: Any) -> Any:
    """The layers as a module of torch that takes its inputs as one list and gives its results as one."""
    import torch
    from torch.utils import _pytree

    class Listed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: list[Any]) -> list[Any]:
            made = self.model(inputs if len(inputs) > 1 else inputs[0], training=False)
            return _pytree.tree_leaves(made)

    return Listed().eval()


def _shortened(error: BaseException) -> str:
    # Keras puts the whole configuration of a model before the reason.
    return " ".join(str(error).rpartition("Exception encountered:")[2].split())[:_LONGEST] or type(error).__name__
