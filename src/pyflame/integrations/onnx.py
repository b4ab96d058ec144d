"""ONNX files: models to them, and from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame.arrays import adopt
from pyflame.compiling.trees import flatten
from pyflame.data.collate import to_arrays
from pyflame.exporting import export
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.graph.verify import verify as verify_graph
from pyflame_rt.loading import load_graph
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

__all__ = ["ONNXExportConfig", "ONNXExporter", "ONNXImporter", "ONNXModel", "export_onnx", "import_onnx"]


@dataclass
class ONNXExportConfig:
    """How models are exported; see `pf.export`."""

    opset_version: int | None = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    dynamic_axes: Mapping[str, Any] | None = None


class ONNXExporter:
    """Writes models with the same settings.

    Example:
        >>> import pyflame as pf, tempfile
        >>> exporter = pf.integrations.ONNXExporter(pf.integrations.ONNXExportConfig(input_names=["x"]))
        >>> path = exporter.export(pf.nn.Linear(3, 2), pf.ones([1, 3]), tempfile.mkdtemp() + "/m.onnx")
        >>> pf.integrations.import_onnx(path).input_names
        ['x']
    """

    def __init__(self, config: ONNXExportConfig | None = None) -> None:
        self.config = config or ONNXExportConfig()

    def export(self, model: Any, example: Any, path: str | os.PathLike[str], **changes: Any) -> Path:
        """Write a model; `changes` replace settings for this time."""
        unknown = set(changes) - set(vars(self.config))
        if unknown:
            raise TypeError(f"there is no setting {sorted(unknown)[0]!r}. Settings: {', '.join(vars(self.config))}")
        chosen: dict[str, Any] = {**vars(self.config), **changes}
        if Path(path).suffix != ".onnx":
            raise UnsupportedFormatError(f"{str(path)!r}: ONNX files end in .onnx")
        return export(model, example, path, opset=chosen.pop("opset_version"), **chosen)


def export_onnx(model: Any, example: Any, path: str | os.PathLike[str], **settings: Any) -> Path:
    """Write a model as ONNX; settings as of :class:`ONNXExportConfig`.

    Example:
        >>> import pyflame as pf, tempfile
        >>> pf.integrations.export_onnx(pf.nn.ReLU(), pf.ones([2]), tempfile.mkdtemp() + "/m.onnx").suffix
        '.onnx'
    """
    return ONNXExporter().export(model, example, path, **settings)


class ONNXModel:
    """A model from an ONNX file: call it with tensors or arrays; it gives tensors.

    Attributes:
        session: the runtime's session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return [info.name for info in self.session.get_inputs()]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [info.name for info in self.session.get_outputs()]

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs: a tensor, or a tuple of them."""
        arrays: list[Any] = []
        flatten(to_arrays(inputs), arrays)
        names = [name for name in self.input_names if name not in named]
        if len(arrays) > len(names):
            raise TypeError(f"the model takes {len(self.input_names)} inputs. Received: {len(arrays) + len(named)}")
        feeds = {**dict(zip(names, arrays, strict=False)), **to_arrays(named)}
        made = tuple(adopt(array) for array in self.session.run(None, feeds))
        return made[0] if len(made) == 1 else made


class ONNXImporter:
    """Reads ONNX files."""

    def import_model(self, path: str | os.PathLike[str], verify: bool = True) -> ONNXModel:
        """A model that can be called.

        Args:
            path: The file.
            verify: Refuse a graph that breaks a rule, with all that is wrong.
        """
        graph, _ = load_graph(path)
        if verify:
            verify_graph(graph)
        return ONNXModel(InferenceSession(graph))

    def get_model_info(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """What is in a file, without running it."""
        graph, _ = load_graph(path)
        operators: dict[str, int] = {}
        for node in graph.nodes:
            operators[node.full_name] = operators.get(node.full_name, 0) + 1
        return {
            "name": graph.name,
            "inputs": {i.name: str(i.type) for i in graph.inputs if i.name not in graph.initializers},
            "outputs": {info.name: str(info.type) for info in graph.outputs},
            "operators": operators,
            "parameters": sum(tensor.raw().size for tensor in graph.initializers.values()),
        }


def import_onnx(path: str | os.PathLike[str], verify: bool = True) -> ONNXModel:
    """A model from an ONNX file; see :meth:`ONNXImporter.import_model`."""
    return ONNXImporter().import_model(path, verify)
