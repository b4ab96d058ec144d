"""A model as a session of the runtime: traced once, for answering only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.arrays import adopt
from pyflame.compiling.trees import flatten
from pyflame.data.collate import to_arrays
from pyflame.devices import _PROVIDERS, _parse
from pyflame.exporting import evaluation_graph
from pyflame.serving.quantized import quantized
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.quantization import QuantMode
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OptimizedModel", "optimize_for_inference"]


class OptimizedModel:
    """What :func:`optimize_for_inference` gives: call it like the model.

    Attributes:
        session: the runtime's session; `session.explain()` tells what was fused and where it runs.
    """

    @names_arguments
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


@names_arguments
def optimize_for_inference(
    model: Any,
    example: Any,
    enable_fusion: bool = True,
    enable_quantization: bool = False,
    target_device: str = "cpu",
    *,
    enable_fp16: bool = False,
    calibration_data: Iterable[Any] | None = None,
) -> OptimizedModel:
    """Trace a model in evaluation mode and compile it for answering alone.

    Args:
        model: A module, or any function of tensors; its weights become part of the result.
        example: One argument, or a tuple of them, for shapes and element types.
        enable_fusion: Compile to machine code that fuses operators; else each runs on its own, by the interpreter.
        enable_quantization: Compute convolutions and products with constant weights in 8-bit integers: weights as int8
            with a scale for each output, data as uint8 by its own range while running.
        target_device: As `pf.set_device` takes it.
        enable_fp16: Keep the weights in half precision; arithmetic stays float32.
        calibration_data: For `enable_quantization`: arguments like `example`, one item a batch, by which the ranges of
            data are found now, so that they need not be found while running.

    Raises:
        UnsupportedOperatorError: There is nothing to quantize.
        InputError: `enable_quantization` with `enable_fp16`, or calibration data without the former.

    Example:
        >>> import pyflame as pf
        >>> fast = pf.serving.optimize_for_inference(pf.nn.Linear(3, 2), pf.ones([4, 3]))
        >>> fast(pf.ones([4, 3])).shape
        [4, 2]
    """
    arguments = example if isinstance(example, tuple) else (example,)
    graph = evaluation_graph(model, arguments)
    names = [info.name for info in graph.inputs]
    if enable_quantization and enable_fp16:
        raise InputError("enable_quantization keeps weights in 8 bits, enable_fp16 in 16: choose one of them")
    if calibration_data is not None and not enable_quantization:
        raise InputError("calibration_data is for enable_quantization, which is off")
    if enable_quantization:
        feeds = None if calibration_data is None else (_feed(names, item) for item in calibration_data)
        graph = quantized(graph, feeds=feeds)
    elif enable_fp16:
        graph = quantized(graph, QuantMode.FP16)
    provider = _PROVIDERS[_parse(target_device)[0]]
    if not enable_fusion and target_device == "cpu":
        provider = "ReferenceExecutionProvider"
    session = InferenceSession(graph, providers=[provider])
    return OptimizedModel(session, names)


def _feed(names: list[str], arguments: Any) -> dict[str, Any]:
    """Arguments of the model by the names of the graph's inputs."""
    arrays: list[Any] = []
    flatten(to_arrays(arguments if isinstance(arguments, tuple) else (arguments,)), arrays)
    if len(arrays) != len(names):
        raise TypeError(f"the model takes {len(names)} tensors. calibration_data gave: {len(arrays)}")
    return dict(zip(names, arrays, strict=True))
