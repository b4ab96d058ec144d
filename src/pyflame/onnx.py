"""`torch.onnx.export`, by `pf.export`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame.exporting import export as _export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["export"]


def export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    export_params: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_axes: Any = None,
    dynamic_shapes: Any = None,
    training: Any = None,
    dynamo: bool = True,
) -> Path | None:
    """Write a model as ONNX, in evaluation mode, with torch's arguments.

    Args:
        model: any function of tensors.
        args: one example, or a tuple of them.
        f: a path that ends in ``.onnx``, or an open binary file.
        kwargs: further arguments of the model; they are refused.
        export_params: False, a file without weights, is refused.
        input_names: names of the inputs.
        output_names: names of the outputs.
        opset_version: version of the operators.
        dynamic_axes: by name of the input, the axes that may have any size.
        dynamic_shapes: the same, also as a sequence.
        training: anything but evaluation mode is refused.
        dynamo: which of torch's two exporters; here there is one.

    Returns:
        The path; None for an open file.

    Example:
        >>> import io, pyflame as pf
        >>> file = io.BytesIO()
        >>> pf.onnx.export(pf.nn.Linear(3, 2), pf.ones([1, 3]), file, input_names=["x"])
        >>> len(file.getvalue()) > 100
        True
    """
    del dynamo
    _refuse(export_params is not True, "export_params=False: weights are part of the file")
    _refuse(bool(kwargs), "kwargs: give the examples in args, in the order of forward's parameters")
    _refuse(bool(training), "training: a model is written in evaluation mode")
    _refuse(f is None, "f: say which file to write")
    options: dict[str, Any] = {
        "input_names": input_names, "output_names": output_names, "opset": opset_version,
        "dynamic_axes": dynamic_axes, "dynamic_shapes": dynamic_shapes,
    }  # fmt: skip
    if not hasattr(f, "write"):
        return _export(model, args, f, **options)
    with tempfile.TemporaryDirectory() as folder:
        f.write(_export(model, args, Path(folder) / "model.onnx", **options).read_bytes())
    return None


def _refuse(condition: bool, text: str) -> None:
    if condition:
        raise ValueError(f"onnx.export: {text}")
