"""Operators that give several parts of a value, as one slice for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.graph import Node
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.onnx.slicing import Slice, Split
from pyflame_rt.opt.rule import specialized_rule

if TYPE_CHECKING:
    from pyflame_rt.opt.specialize import Specializer

__all__ = ["split_as_slices"]


@specialized_rule("node", Split.name)
def split_as_slices(s: Specializer, node: Node) -> list[Node]:
    """The parts of a Split as slices, each on its own."""
    attributes = bind_attributes(node, Split)
    parts = s.inferred.infer(Split, [s.values[n] if n else None for n in node.inputs], attributes)
    nodes, first = [], 0
    for name, part in zip(node.outputs, parts, strict=True):
        shape = part.shape
        axis = attributes["axis"] % len(shape)
        if name:
            bounds = [s.fresh(name) for _ in range(3)]
            for bound, number in zip(bounds, (first, first + shape[axis], axis), strict=True):
                s.constant(bound, np.array([number]))
            nodes.append(Node(s.fresh(node.name), Slice.name, [node.inputs[0], *bounds], [name]))
        first += shape[axis]
    return nodes
