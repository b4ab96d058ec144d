"""`torch.onnx.export`, by `pf.export`."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame.exporting import export as _export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["export"]


# What torch's exporter also takes, and the values that ask for what is done here anyway.
_TAKEN: dict[str, tuple[Any, ...]] = {
    "verbose": (None, False), "optimize": (True, False), "do_constant_folding": (True, False),
    "autograd_inlining": (True, False), "keep_initializers_as_inputs": (None, False), "report": (False,),
    "verify": (False,), "profile": (False,), "dump_exported_program": (False,), "fallback": (False,),
    "custom_opsets": (None,), "custom_translation_table": (None,), "export_modules_as_functions": (False,),
    "external_data": (True,),
}  # fmt: skip


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
    **options: Any,
) -> Path | None:
    """Write a model as ONNX, in evaluation mode, with torch's arguments.

    Args:
        model: any function of tensors.
        args: one example, or a tuple of them.
        f: a path that ends in ``.onnx``, or an open binary file.
        kwargs: further arguments of the model, by name; their tensors are inputs after those of ``args``.
        export_params: False, a file without weights, is refused.
        input_names: names of the inputs.
        output_names: names of the outputs.
        opset_version: version of the operators.
        dynamic_axes: by name of the input, the axes that may have any size; `pf.export` says more.
        dynamic_shapes: the same, also by the model's parameters, or as a sequence.
        training: anything but evaluation mode is refused.
        dynamo: which of torch's two exporters; here there is one.
        options: torch's others, such as ``do_constant_folding`` and ``verbose``, with the values that change nothing
            about the model; others are refused. Weights lie beside the file from 2 GB on.

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
    _refuse(bool(training) and "EVAL" not in str(training), "training: a model is written in evaluation mode")
    _refuse(f is None, "f: say which file to write")
    for name, value in options.items():
        if name not in _TAKEN:
            raise TypeError(f"onnx.export takes no argument {name!r}. Further ones of torch: {', '.join(_TAKEN)}")
        _refuse(not any(value is fine for fine in _TAKEN[name]), f"{name}={value!r} is not supported")
    if kwargs:
        args = args if isinstance(args, tuple) else (args,)
        model, args = _ByName(model, len(args), list(kwargs)), (*args, *kwargs.values())
    chosen: dict[str, Any] = {
        "input_names": input_names, "output_names": output_names, "opset": opset_version,
        "dynamic_axes": dynamic_axes, "dynamic_shapes": dynamic_shapes,
    }  # fmt: skip
    if not hasattr(f, "write"):
        return _export(model, args, f, **chosen)
    with tempfile.TemporaryDirectory() as folder:
        f.write(_export(model, args, Path(folder) / "model.onnx", **chosen).read_bytes())
    return None


class _ByName:
    """A model whose last arguments are given by name."""

    def __init__(self, model: Any, count: int, names: list[str]) -> None:
        self._model, self._count, self._names = model, count, names
        taken = inspect.signature(getattr(model, "forward", model)).parameters
        lost = [name for name in names if name not in taken]
        if lost and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            raise TypeError(f"onnx.export: the model has no argument {lost[0]!r}. It takes {', '.join(taken)}")
        first = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in [*list(taken)[:count], *names]]
        self.__signature__ = inspect.Signature(first)

    def __call__(self, *args: Any) -> Any:
        named = zip(self._names, args[self._count :], strict=True)
        return self._model(*args[: self._count], **dict(named))

    def __getattr__(self, name: str) -> Any:
        if name == "forward":
            raise AttributeError(name)  # its parameters are in another order
        return getattr(self._model, name)


def _refuse(condition: bool, text: str) -> None:
    if condition:
        raise ValueError(f"onnx.export: {text}")
