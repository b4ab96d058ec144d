"""Constant folding: what depends on constants alone is computed now."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, TensorType
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.core.evaluate import Context, bind_attributes, run_op
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.onnx.quantize import DequantizeLinear
from pyflame_rt.ops.pyflame.quantized import CastFromBF16, CastFromFP16, Dequantize
from pyflame_rt.opt.base import EditingPass, PassResult, Rewrite
from pyflame_rt.opt.config import ConstantFoldingConfig

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.editor import Editor

__all__ = ["ConstantFoldingPass", "fold_constants"]

# Results of these are larger than what they are computed from; those of products take long to compute.
_LARGER = frozenset({DequantizeLinear, CastFromBF16, CastFromFP16, Dequantize})
# Failing to compute is no fault of the pass: the node fails when it runs, as it would have anyway.
_FAULTS = (PyFlameRTError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError)


class ConstantFoldingPass(EditingPass):
    """Computes nodes whose inputs are constants, or whose results follow from known sizes.

    Example:
        >>> ConstantFoldingPass().name()
        'ConstantFoldingPass'
    """

    def __init__(self, config: ConstantFoldingConfig | None = None) -> None:
        self.config = ConstantFoldingConfig() if config is None else config
        self._context: Context | None = None

    def edit(self, editor: Editor) -> PassResult:
        """Fold in one walk: what was folded is constant for what comes after."""
        result = PassResult()
        for node in editor.walk():
            if not self._may_fold(editor, node):
                continue
            op = find_op(node.op_type, node.domain)
            if op is None or op.random or node.full_name in self.config.exclude_ops:
                continue
            if next(node_subgraphs(node), None) is not None:
                continue
            arrays = self._known(editor, node) if self.config.fold_shape_ops else None
            if arrays is None:
                arrays = self._computed(editor, node, op, result)
            if arrays is not None:
                editor.fold(node, arrays)
                result.modified = True
                result.stats.constants_folded += 1
                result.stats.nodes_removed += 1
                result.rewrites.append(Rewrite("constant_folding", (node.name,)))
        return result

    def _may_fold(self, editor: Editor, node: Node) -> bool:
        """Whether all that it reads is constant, or all that it makes is known; most nodes are done with that."""
        for name in node.inputs:
            if name and not editor.is_constant(name):
                break
        else:
            return True
        if not self.config.fold_shape_ops:
            return False
        unknown = [name for name in node.outputs if name and editor.value(name).known is None]
        return not unknown

    def _known(self, editor: Editor, node: Node) -> list[np.ndarray[Any, Any]] | None:
        """Contents that inference knows, all of them numbers."""
        values = [editor.value(name) for name in node.outputs if name]
        if not values or any(v.known is None or not isinstance(v.type, TensorType) for v in values):
            return None
        if any(isinstance(item, Dim) for v in values if v.known.dtype == object for item in v.known.ravel()):  # type: ignore[union-attr]
            return None
        known = {v.ref: np.asarray(v.known, dtype=v.dtype.numpy) for v in values}
        if sum(array.nbytes for array in known.values()) > self.config.max_tensor_bytes:
            return None
        return [known.get(name, np.empty(0)) for name in node.outputs]

    def _computed(self, editor: Editor, node: Node, op: Op, result: PassResult) -> list[np.ndarray[Any, Any]] | None:
        """What a node makes of constants; None where it is not folded."""
        inputs = [editor.constant(name) if name else None for name in node.inputs]
        if any(array is None and name for array, name in zip(inputs, node.inputs, strict=True)):
            return None
        if (op.kind == "product" or op in _LARGER) and not self.config.fold_expensive_ops:
            return None
        if self._too_large(editor, node):
            result.warnings.append(f"node {node.name!r} ({node.full_name}) is not folded: its result is too large")
            return None
        self._context = self._context or Context.of("numpy")
        arrays = [np.require(a, requirements="A") if isinstance(a, np.ndarray) else a for a in inputs]
        try:
            made = run_op(op, arrays, bind_attributes(node, op), self._context, len(node.outputs))
        except _FAULTS:
            return None
        wanted = [array for name, array in zip(node.outputs, made, strict=False) if name]
        if len(made) < len(node.outputs) or not all(isinstance(a, np.ndarray) for a in wanted):
            return None
        return made if sum(a.nbytes for a in wanted) <= self.config.max_tensor_bytes else None

    def _too_large(self, editor: Editor, node: Node) -> bool:
        """Whether the sizes say so before anything is computed."""
        for name in filter(None, node.outputs):
            kind, shape = editor.type(name), editor.static_shape(name)
            if kind is None or shape is None:
                continue
            if math.prod(shape) * kind.dtype.itemsize > self.config.max_tensor_bytes:
                return True
        return False


@names_arguments
def fold_constants(graph: Graph, config: ConstantFoldingConfig | None = None) -> PassResult:
    """Fold constants of a graph, in place.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_initializer("a", np.float32([1, 2])), g.add_node("n", "Neg", ["a"], ["y"]), g.add_output("y", [2])
        >>> fold_constants(g).stats.constants_folded, g.initializers["y"].numpy()
        (1, array([-1., -2.], dtype=float32))
    """
    return ConstantFoldingPass(config).run(graph)
