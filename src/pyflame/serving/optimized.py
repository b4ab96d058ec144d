"""A model as a session of the runtime: traced once, for answering only."""

from __future__ import annotations

from typing import Any

from pyflame.arrays import adopt
from pyflame.compiling.trees import flatten
from pyflame.data.collate import to_arrays
from pyflame.device import _PROVIDERS, _parse
from pyflame.exporting import evaluation_graph
from pyflame.serving.quantized import quantized
from pyflame_rt.session import InferenceSession

__all__ = ["OptimizedModel", "optimize_for_inference"]


class OptimizedModel:
    """What :func:`optimize_for_inference` gives: call it like the model.

    Attributes:
        session: the runtime's session; `session.explain()` tells what was fused and where it runs.
    """

    def __init__(self, session: InferenceSession, names: list[str]) -> None:
        self.session = session
        self._names = names

    def __call__(self, *inputs: Any) -> Any:
        """The outputs as tensors: one, or a tuple."""
        arrays: list[Any] = []
        flatten(to_arrays(inputs), arrays)
        if len(arrays) != len(self._names):
            raise TypeError(f"the model takes {len(self._names)} tensors. Received: {len(arrays)}")
        results = self.session.run(None, dict(zip(self._names, arrays, strict=True)))
        made = tuple(adopt(array) for array in results)
        return made[0] if len(made) == 1 else made


def optimize_for_inference(
    model: Any,
    example: Any,
    enable_fusion: bool = True,
    enable_quantization: bool = False,
    target_device: str = "cpu",
) -> OptimizedModel:
    """Trace a model in evaluation mode and compile it for answering alone.

    Args:
        model: A module, or any function of tensors; its weights become part of the result.
        example: One argument, or a tuple of them, for shapes and element types.
        enable_fusion: Compile to machine code that fuses operators; else each runs on its own, by the interpreter.
        enable_quantization: Compute products with constant weights (linear layers) in 8-bit integers: weights as int8
            with a scale for each output, data as uint8 by its own range while running.
        target_device: As `pf.set_device` takes it.

    Raises:
        UnsupportedOperatorError: `enable_quantization` for a model without such a product.

    Example:
        >>> import pyflame as pf
        >>> fast = pf.serving.optimize_for_inference(pf.nn.Linear(3, 2), pf.ones([4, 3]))
        >>> fast(pf.ones([4, 3])).shape
        [4, 2]
    """
    arguments = example if isinstance(example, tuple) else (example,)
    graph = evaluation_graph(model, arguments)
    if enable_quantization:
        graph = quantized(graph)
    provider = _PROVIDERS[_parse(target_device)[0]]
    if not enable_fusion and target_device == "cpu":
        provider = "ReferenceExecutionProvider"
    session = InferenceSession(graph, providers=[provider])
    return OptimizedModel(session, [info.name for info in graph.inputs])
