"""Shorter ways to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.loading import load_graph
from pyflame_rt.options import CompileOptions
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from pyflame_rt.options import SessionOptions

__all__ = ["create_session", "from_onnx", "from_pyflame", "from_torch"]


def create_session(
    model: Any, options: SessionOptions | CompileOptions | None = None, providers: Any = ()
) -> InferenceSession:
    """A session from a model; takes CompileOptions, too.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [1]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [1])
        >>> session = create_session(g, CompileOptions(dynamic_batch=True))
        >>> session.run(None, {"x": [1, 2]})
        [array([-1., -2.], dtype=float32)]
    """
    if not isinstance(options, CompileOptions):
        return InferenceSession(model, options, providers)
    if options.dynamic_batch:
        model, _ = load_graph(model)
        for info in (*model.inputs, *model.outputs):
            if info.shape:
                info.shape = ["batch", *info.shape[1:]]
        model.types = {}
    return InferenceSession(model, options.session_options(), providers)


@names_arguments
def from_onnx(
    path: Any, options: Any = None, *, session_options: SessionOptions | None = None, providers: Any = ()
) -> InferenceSession:
    """A session from an ONNX file; raises typed errors.

    Args:
        path: the file (or its bytes).
        options: ImportOptions.
        session_options: options of the session.
        providers: as for InferenceSession.

    Example:
        >>> from_onnx("missing.onnx")
        Traceback (most recent call last):
        pyflame_rt.graph.errors.ModelNotFoundError: there is no file 'missing.onnx'
    """
    from pyflame_rt.importers.onnx_importer import ONNXImporter

    return InferenceSession(ONNXImporter().import_model(path, options).unwrap(), session_options, providers)


def from_pyflame(
    model: Any, example: Any, *, session_options: SessionOptions | None = None, providers: Any = ()
) -> InferenceSession:
    """A session from a PyFlame model, in evaluation mode: train there, serve here.

    Args:
        model: a module, or whatever gives its graph through ``__runtime_graph__(arguments)``.
        example: one argument of the model, or a tuple of them, for shapes and element types.
        session_options: options of the session.
        providers: as for InferenceSession.

    Example:
        >>> import pyflame as pf
        >>> session = from_pyflame(pf.nn.Linear(3, 2), pf.ones([1, 3]))
        >>> session.run(None, {"input": [[1.0, 2.0, 3.0]]})[0].shape
        (1, 2)
    """
    give = getattr(type(model), "__runtime_graph__", None)
    if give is None:
        raise TypeError(
            f"{type(model).__name__} gives no graph (it has no __runtime_graph__): pass a pyflame.nn.Module, or a "
            "function wrapped with pyflame.compile"
        )
    graph = give(model, example if isinstance(example, tuple) else (example,))
    return InferenceSession(graph, session_options, providers)


def from_torch(
    module: Any,
    example: Any,
    kwargs: Any = None,
    *,
    dynamic_shapes: Any = None,
    session_options: SessionOptions | None = None,
    providers: Any = (),
) -> InferenceSession:
    """A session from a live module of torch, or a program of ``torch.export``.

    Args:
        module: a ``torch.nn.Module``; in the mode it is in, so call ``eval()`` first.
        example: its inputs, a tensor or a tuple of them.
        kwargs: further inputs by name.
        dynamic_shapes: which sizes may change, as ``torch.export.export`` takes them; others are fixed.
        session_options: options of the session.
        providers: as for InferenceSession.

    Example:
        >>> import torch
        >>> session = from_torch(torch.nn.ReLU(), torch.tensor([-1.0, 2.0]))
        >>> session.run(None, {"input": np.array([3, -4], np.float32)})
        [array([3., 0.], dtype=float32)]
    """
    from pyflame_rt.importers.torch_export.importer import graph_from_torch

    graph = graph_from_torch(module, example, kwargs, dynamic_shapes=dynamic_shapes)
    return InferenceSession(graph, session_options, providers)
