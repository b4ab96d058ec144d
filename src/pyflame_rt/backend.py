"""The interface of ``onnx.backend``: prepare, run_model, run_node, supports_device.

Example:
    >>> import numpy as np, onnx.helper
    >>> node = onnx.helper.make_node("Neg", ["x"], ["y"])
    >>> run_node(node, [np.array([1.0, -2.0], np.float32)])[0]
    array([-1.,  2.], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from pyflame_rt.compiler import find_unsupported
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import BackendError, PyFlameRTError
from pyflame_rt.importers.onnx_importer import MAX_OPSET_VERSION, graph_from_proto
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PyFlameBackend",
    "PyFlameBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class PyFlameBackendRep(BackendRep):
    """A model that was prepared."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs, as a tuple with names.

        Args:
            inputs: a dict by name, a list in the order of the model's inputs, or one array.
            kwargs: ``run_options``.
        """
        names = [arg.name for arg in self.session.get_inputs()]
        if isinstance(inputs, dict):
            feed = inputs
        elif isinstance(inputs, (list, tuple)):
            feed = dict(zip(names, inputs, strict=False))
        else:
            feed = {names[0]: inputs}
        results = self.session.run(None, feed, kwargs.get("run_options"))
        return namedtupledict("Outputs", [arg.name for arg in self.session.get_outputs()])(*results)


class PyFlameBackend(Backend):
    """ONNX's backend interface over sessions; ``providers=[...]`` chooses where models run."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True when every operator of the model is known."""
        del kwargs
        if not cls.supports_device(device):
            return False
        try:
            return not find_unsupported(graph_from_proto(model))
        except PyFlameRTError:
            return False

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PyFlameBackendRep:
        """Load and compile a model: a ModelProto, bytes or a path."""
        _check_device(device)
        options, providers = kwargs.get("options"), kwargs.get("providers", ())
        return PyFlameBackendRep(InferenceSession(model, options, providers))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays, given in the order of its inputs."""
        del outputs_info
        names = list(dict.fromkeys(filter(None, node.input)))
        arrays = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=False))
        model = _one_node_model(node, arrays, kwargs.pop("opset_version", MAX_OPSET_VERSION))
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        return device.upper().partition(":")[0] == "CPU"


def _check_device(device: str) -> None:
    if not PyFlameBackend.supports_device(device):
        raise BackendError(f"device {device!r} is not available. Devices: CPU")


def _one_node_model(node: onnx.NodeProto, arrays: dict[str, Any], opset: int) -> onnx.ModelProto:
    inputs = []
    for name, value in arrays.items():
        array = np.asarray(value)
        kind = DType.of(array.dtype).onnx
        inputs.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid(node.domain, 1))
    return onnx.helper.make_model(graph, opset_imports=opsets)


is_compatible = PyFlameBackend.is_compatible
prepare = PyFlameBackend.prepare
run_model = PyFlameBackend.run_model
run_node = PyFlameBackend.run_node
supports_device = PyFlameBackend.supports_device
