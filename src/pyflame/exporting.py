"""From a model to a graph of the runtime, and to files of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd.modes import no_grad
from pyflame.compiling.tracer import Tracer
from pyflame.compiling.trees import flatten, unflatten
from pyflame.dtypes import to_dtype
from pyflame.evaluation import Work, evaluate, graphs
from pyflame.lazy import Val, apply, modes, spec_of
from pyflame.module_scopes import ModuleScopes, recording
from pyflame.ops.core import Handle, wrap
from pyflame.runtime_graph import to_graph
from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.dim import SIZE_BOUNDS
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.loss import Dropout
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.norm import LayerNormalization
from pyflame_rt.ops.onnx.rnn import GRU, LSTM, RNN

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["export", "model_graph"]


def model_graph(
    model: Callable[..., Any],
    *example: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    name: str | None = None,
) -> Graph:
    """What a model computes, as a graph of ``pyflame_rt``: parameters become initializers under their own names.

    Args:
        model: any function of tensors; a module is traced in the mode it is in.
        example: arguments, for their shapes and element types.
        input_names: names of the tensors among them, "input" or "input_0", ... by default.
        output_names: names of the results, "output" or "output_0", ... by default.
        name: of the graph.

    Example:
        >>> import pyflame as pf
        >>> g = model_graph(lambda x: pf.relu(x) + 1, pf.ones([2]))
        >>> [node.op_type for node in g.nodes], g.inputs[0].name, g.outputs[0].name
        (['Relu', 'Add'], 'input', 'output')
    """
    tensors: list[Any] = []
    structure = flatten(example, tensors)
    tracer = Tracer(exports=True)
    tracer.spans = ModuleScopes(model)
    inputs = [_placeholder(tracer, i, t) for i, t in enumerate(tensors)]
    results = _outputs(_trace(model, structure, inputs, tracer), inputs)
    evaluate([v for v, _ in tracer.captured.values() if v.array is None])
    for v in inputs:
        v.array = np.empty(0)  # stands for "given when it runs"
    names = _value_names(model, tracer)
    names |= _numbered(inputs, input_names, "input") | _numbered(results, output_names, "output")
    label = name or getattr(model, "__name__", type(model).__name__)
    with graphs:
        work = Work(results, exact=True)
        fixed = [v for v in work.leaves if not any(v is given for given in inputs)]
        for i, v in enumerate(fixed):
            names.setdefault(id(v), f"const_{i}")
        graph = to_graph(work.exprs, [*inputs, *fixed], work.outputs, names, label, tracer.spans)
    _drop_unread(graph)
    constant = {names[id(v)]: v for v in fixed}
    graph.inputs = [info for info in graph.inputs if info.name not in constant]
    for text, v in constant.items():
        graph.add_initializer(text, Tensor(np.asarray(v.array)))
    return graph


# Their outputs after the first may be left out.
_OPTIONAL = (LayerNormalization.name, MaxPool.name, Dropout.name, LSTM.name, GRU.name, RNN.name)


def _drop_unread(graph: Graph) -> None:
    """Leave out optional results at the end of a node that nobody reads."""
    read = {name for node in graph.nodes for name in node.inputs} | {info.name for info in graph.outputs}
    for i, node in enumerate(graph.nodes):
        if node.domain or node.op_type not in _OPTIONAL:
            continue
        kept = list(node.outputs)
        while len(kept) > 1 and kept[-1] not in read:
            graph.types.pop(kept.pop(), None)
        if len(kept) < len(node.outputs):
            graph.nodes[i] = node.replace(outputs=kept)


def _placeholder(tracer: Tracer, i: int, t: Any) -> Val:
    spec = t._value.spec if isinstance(t, Handle) else spec_of(to_dtype(t.dtype), t.shape)
    v = Val(spec_of(spec.dtype, tuple(spec.shape)))
    tracer.placeholders[id(v)] = i
    return v


def _trace(model: Callable[..., Any], structure: Any, inputs: list[Val], tracer: Tracer) -> list[Any]:
    """Run the model on placeholders; what it writes (statistics) is put back."""
    before = modes.tracer
    modes.switch(tracer=tracer)
    try:
        with no_grad(), recording(tracer.spans):
            result = model(*unflatten(structure, iter([wrap(v) for v in inputs])))
    finally:
        modes.switch(tracer=before)
        tracer.restore()
    outs: list[Any] = []
    flatten(result, outs)
    if not outs:
        raise TypeError(f"the model gives {type(result).__name__}, no tensor")
    return outs


def _outputs(outs: list[Any], inputs: list[Val]) -> list[Val]:
    """The values of the results; one that is an input, or known already, goes through a node of its own."""
    values: list[Val] = []
    with no_grad():
        for t in outs:
            v = t._value
            repeated = any(v is other for other in (*values, *inputs))
            values.append(apply(Identity, (v,)) if repeated or v.array is not None else v)
    return values


def _value_names(model: Any, tracer: Tracer) -> dict[int, str]:
    """Names of captured parameters and buffers."""
    known: dict[int, str] = {}
    for kind in ("named_parameters", "named_buffers"):
        if hasattr(model, kind):
            known |= {id(t): text for text, t in getattr(model, kind)()}
    return {id(v): known[id(seen())] for v, seen in tracer.captured.values() if id(seen()) in known}


def _numbered(values: list[Val], given: Sequence[str] | None, word: str) -> dict[int, str]:
    names = list(given) if given is not None else [word] if len(values) == 1 else []
    if given is None and not names:
        names = [f"{word}_{i}" for i in range(len(values))]
    if len(names) != len(values) or len(set(names)) != len(names):
        raise ValueError(f"{len(values)} different {word} names are needed, got {names}")
    return {id(v): text for v, text in zip(values, names, strict=True)}


def export(
    model: Callable[..., Any],
    example: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
) -> Path:
    """Write a model as ``.onnx``, for any runtime, or ``.pfm``, for this one.

    A module is exported in evaluation mode and left in the mode it had.

    Args:
        model: any function of tensors.
        example: one argument, or a tuple of them.
        path: the suffix says which format.
        input_names: names of the inputs.
        output_names: names of the outputs.
        opset: version of the ONNX operators; the newest by default.
        dynamic_axes: axes that may have any size, by name of the input: ``{"input": {0: "batch"}}``, or a list of
            axes. Axes of the same name have the same size. Those of outputs follow; naming them is allowed. A size
            may have bounds, ``("batch", 1, 8)`` or ``torch.export.Dim("batch", min=1, max=8)``: the file keeps them,
            and sessions refuse other sizes.
        dynamic_shapes: the same, also by the model's parameters, or as a sequence with one entry for each argument, in
            the structure of the arguments: ``({0: "batch"},)``.

    Returns:
        The path.

    Raises:
        UnsupportedOperatorError: an operator cannot be written for all sizes of the dynamic axes; it is named.

    Example:
        >>> import numpy as np, pyflame as pf, pyflame_rt, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        >>> _ = pf.export(lambda x: pf.relu(x), pf.ones([2]), path)
        >>> pyflame_rt.InferenceSession(path).run(None, {"input": [1.0, -1.0]})
        [array([1., 0.], dtype=float32)]
        >>> net = pf.nn.Linear(3, 2)
        >>> _ = pf.export(net, pf.ones([1, 3]), path, dynamic_axes={"input": {0: "batch"}})
        >>> session = pyflame_rt.InferenceSession(path)
        >>> [session.run(None, {"input": np.ones((n, 3), np.float32)})[0].shape for n in (1, 7)]
        [(1, 2), (7, 2)]
    """
    target = Path(path)
    if target.suffix not in (".onnx", ".pfm"):
        raise UnsupportedFormatError(f"{str(path)!r}: models are written as .onnx or .pfm")
    arguments = example if isinstance(example, tuple) else (example,)
    if example is None:
        raise TypeError("the example is None: give a tensor of the shape that the model takes, or a tuple of arguments")
    if dynamic_axes is not None and dynamic_shapes is not None:
        raise ValueError("dynamic_axes and dynamic_shapes say the same: give one of them")
    dynamic = dynamic_axes if dynamic_axes is not None else dynamic_shapes
    graph = _graph(model, arguments, dynamic, input_names=input_names, output_names=output_names)
    if target.suffix == ".onnx":
        from pyflame_rt.exporters import export_onnx

        export_onnx(graph, target, opset=opset)
    else:
        from pyflame_rt.format import save_model

        save_model(graph, target)
    return target


def _graph(model: Any, arguments: tuple[Any, ...], dynamic: Any, **names: Any) -> Graph:
    """The graph of a model in evaluation mode, for any size of the axes that are dynamic."""
    graph = evaluation_graph(model, arguments, **names)
    if not dynamic:
        return graph
    from pyflame.dynamic import dynamic_graph
    from pyflame.size_names import by_input, dynamic_axes

    tensors: list[Any] = []
    structure = flatten(arguments, tensors)
    arrays = [np.asarray(t.numpy() if hasattr(t, "numpy") else t) for t in tensors]
    inputs, outputs = [info.name for info in graph.inputs], [info.name for info in graph.outputs]
    given = by_input(model, arguments, dynamic, [*inputs, *outputs])
    axes, bounds = dynamic_axes(given, inputs, [a.shape for a in arrays], outputs)
    if not axes:
        return graph

    def make(given: tuple[Any, ...]) -> Graph:
        return evaluation_graph(model, unflatten(structure, iter(given)), **names)

    made = dynamic_graph(make, arrays, axes)
    if bounds:
        made.metadata[SIZE_BOUNDS] = json.dumps(bounds)
    return made


def evaluation_graph(model: Any, arguments: tuple[Any, ...], **options: Any) -> Graph:
    """The graph of a model in evaluation mode."""
    modules = [m for m in model.modules() if m.training] if hasattr(model, "modules") else []
    for module in modules:
        module.training = False
    try:
        return model_graph(model, *arguments, **options)
    finally:
        for module in modules:
            module.training = True
