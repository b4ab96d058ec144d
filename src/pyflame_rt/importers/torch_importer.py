"""State dicts of torch to graphs: the weights from the file, the structure from a function of the caller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.errors import InputError, InvalidModelError, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.importers.base import Importer, ImportOptions, ImportResult, ImportStats
from pyflame_rt.importers.detection import detect
from pyflame_rt.importers.tensor_file import read_safetensors
from pyflame_rt.importers.torch_pickle import read_archive
from pyflame_rt.ops.onnx.matmul import Gemm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Definer: TypeAlias = Callable[[Graph, Mapping[str, Tensor]], Graph | None]

__all__ = ["STATE_DICT_KEYS", "MissingWeightError", "PyTorchImporter", "read_state_dict"]

STATE_DICT_KEYS = ("model_state_dict", "state_dict", "model")
# What wrappers put before every name: DataParallel and DistributedDataParallel, torch.compile.
WRAPPERS = ("module.", "_orig_mod.")
_USUAL_BYTES, _MOST_TIMES = 1 << 30, 16
_SHOWN = 8


class MissingWeightError(InvalidModelError, KeyError):
    """A definer asked for a weight the state dict does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Weights(dict[str, Tensor]):
    """Tensors by name; a name that is missing is an error that lists those there are."""

    def __missing__(self, name: str) -> Tensor:
        raise MissingWeightError(f"the state dict has no {name!r}. It has {_some(self)}")


class PyTorchImporter(Importer):
    """Makes graphs of state dicts (.pt, .pth, .bin, .safetensors), without torch and without running code of the file.

    A state dict has weights and no structure: a definer, ``definer(graph, weights)``, adds inputs, initializers, nodes
    and outputs to an empty graph, or returns a graph of its own. Linear weights of torch are ``[out, in]``: a Gemm node
    without ``transB`` whose second input is a weight of the file, unchanged, gets ``transB=1``, and ``stats.warnings``
    says so. An explicit ``transB`` and weights the definer computed stay as they are.

    Example:
        >>> PyTorchImporter().import_model("missing.pth", lambda graph, weights: None).error
        "there is no file 'missing.pth'"
    """

    name = "pytorch"
    suffixes = (".pt", ".pth", ".bin", ".safetensors")
    kinds = ("torch", "torch-legacy", "safetensors")
    makes_graphs = False

    def can_import(self, path: str | os.PathLike[str]) -> bool:
        """True for the suffixes of torch; .bin, which others use too, is torch's only by its content."""
        return super().can_import(path) and (Path(path).suffix.lower() != ".bin" or not Path(path).is_file())

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """Refuse: without a definer there is no graph."""
        del options
        path = _file(source)
        _refuse_other_kinds(path)
        raise UnsupportedFormatError(
            f"{str(source)!r} is a state dict of PyTorch: weights without a graph. Give a function that builds the "
            "graph: pyflame_rt.import_module.PyTorchImporter().import_model(path, definer)"
        )

    def import_model(
        self,
        source: Any,
        options: ImportOptions | Definer | None = None,
        definer: Definer | None = None,
        *,
        state_dict_key: str | None = None,
        max_bytes: int | None = None,
    ) -> ImportResult:
        """Import a state dict; failures are reported in the result, but what the definer raises itself is not caught.

        Args:
            source: the file.
            options: how, or the definer.
            definer: ``definer(graph, weights)`` adds to the graph, or returns another one.
            state_dict_key: under which the state dict is kept; None looks at the root, then under "model_state_dict",
                "state_dict" and "model".
            max_bytes: that all tensors together may take; a gigabyte, or sixteen times the file, unless given.
        """
        if callable(options):
            if definer is not None:
                raise TypeError("two definers were given")
            options, definer = None, options
        chosen = ImportOptions() if options is None else options
        stats = ImportStats()

        def read() -> Graph:
            if definer is None:
                return self.read(source, chosen)
            weights = read_state_dict(source, state_dict_key, max_bytes=max_bytes)
            return _defined(definer, weights, Path(source).stem, stats)

        return self._reported(source, chosen, stats, read)

    import_file = import_model


def read_state_dict(
    path: str | os.PathLike[str], state_dict_key: str | None = None, *, max_bytes: int | None = None
) -> dict[str, Tensor]:
    """The weights of a file by name, without the prefixes of wrappers (``module.``, ``_orig_mod.``).

    Raises:
        ModelNotFoundError: there is no such file.
        UnsupportedFormatError: it is a TorchScript archive, an exported program, or older than torch 1.6.
        InvalidModelError: it is damaged, holds no state dict, or more than ``max_bytes``.
    """
    file = _file(path)
    _refuse_other_kinds(file)
    limit = max(_USUAL_BYTES, _MOST_TIMES * file.stat().st_size) if max_bytes is None else max_bytes
    try:
        safe = detect(file) == "safetensors"
        data = read_safetensors(file, limit) if safe else read_archive(file, limit)
    except OSError as error:
        raise InvalidModelError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InvalidModelError(f"{str(path)!r}: there is no memory for what it holds") from error
    found = _state_dict(data, state_dict_key, str(path))
    return _Weights({name: Tensor(array) for name, array in _unwrapped(found, str(path)).items()})


def _file(source: Any) -> Path:
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"a state dict is given as a path, got {type(source).__name__}")
    if not Path(source).is_file():
        raise ModelNotFoundError(f"there is no file {str(source)!r}")
    return Path(source)


def _refuse_other_kinds(path: Path) -> None:
    kind = detect(path)
    advice = {
        "torchscript": "is a TorchScript archive: pyflame_rt.import_module.TorchScriptImporter reads it",
        "torch-export": "is a program of torch.export: pyflame_rt.import_module.TorchExportImporter reads it",
        "torch-legacy": "was written in the form before torch 1.6: load it in torch and save it again",
        "": "is no file of torch.save or safetensors",
    }.get(kind)
    if advice is not None:
        raise UnsupportedFormatError(f"{str(path)!r} {advice}")


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(v, np.ndarray) for v in value.values())


def _state_dict(data: Any, key: str | None, path: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise InvalidModelError(f"{path!r} holds a {type(data).__name__}, not a state dict; save model.state_dict()")
    if key is not None:
        if key not in data:
            raise InvalidModelError(f"{path!r} has nothing under state_dict_key={key!r}. It has {_some(data)}")
        data = data[key]
    elif not _is_state_dict(data):
        data = next((data[k] for k in STATE_DICT_KEYS if _is_state_dict(data.get(k))), data)
    if _is_state_dict(data):
        return data
    where = path if key is None else f"{path}[{key}]"
    if not isinstance(data, dict):
        raise InvalidModelError(f"{where!r} is a {type(data).__name__}, not a state dict")
    odd = [name for name, value in data.items() if not isinstance(value, np.ndarray)]
    raise InvalidModelError(
        f"{where!r} is no state dict: {_some(odd) if odd else 'it has no tensors'}"
        f"{' are no tensors' if odd else ''}; state_dict_key= says under which key it is"
    )


def _unwrapped(found: dict[Any, Any], path: str) -> dict[str, Any]:
    if not all(isinstance(name, str) for name in found):
        raise InvalidModelError(f"{path!r}: a state dict has names that are no text")
    while prefix := next((p for p in WRAPPERS if all(name.startswith(p) for name in found)), None):
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def _defined(definer: Definer, weights: dict[str, Tensor], name: str, stats: ImportStats) -> Graph:
    graph = Graph(name)
    returned = definer(graph, weights)
    if returned is not None and not isinstance(returned, Graph):
        raise InputError(f"a definer returns None or a Graph, got {type(returned).__name__}")
    made = graph if returned is None else returned
    _transpose_linear(made, {id(tensor) for tensor in weights.values()}, stats)
    return made


def _transpose_linear(graph: Graph, known: set[int], stats: ImportStats) -> None:
    pending = [graph]
    while pending:
        current = pending.pop()
        pending.extend(current.subgraphs())
        for node in current.nodes:
            if node.op_type != Gemm.name or node.domain or node.has_attr("transB") or len(node.inputs) < 2:
                continue
            weight = current.initializers.get(node.inputs[1])
            if weight is not None and id(weight) in known:
                node.set_attr("transB", 1)
                stats.warnings.append(
                    f"node {node.name!r}: transB=1 was set, as {node.inputs[1]!r} is a weight of torch, [out, in]; "
                    "give transB to say otherwise"
                )


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")
