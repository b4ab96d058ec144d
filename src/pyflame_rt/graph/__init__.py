"""The graph: plain data that everything else reads and writes.

A leaf: nothing here imports another part of the runtime.
"""

from pyflame_rt.graph.dim import Dim, DimLike, symbol
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.fingerprint import fingerprint
from pyflame_rt.graph.graph import Graph
from pyflame_rt.graph.info import NodeArg, TensorInfo, Value
from pyflame_rt.graph.node import Attribute, Node
from pyflame_rt.graph.parse import parse_graph
from pyflame_rt.graph.tensor import Tensor, from_numpy, to_numpy
from pyflame_rt.graph.text import print_graph
from pyflame_rt.graph.types import AnyType, MapType, OptionalType, SequenceType, Shape, TensorType, ValueType
from pyflame_rt.graph.verify import find_errors, verify

__all__ = [
    "AnyType",
    "Attribute",
    "DType",
    "Dim",
    "DimLike",
    "Graph",
    "MapType",
    "Node",
    "NodeArg",
    "OptionalType",
    "SequenceType",
    "Shape",
    "Tensor",
    "TensorInfo",
    "TensorType",
    "Value",
    "ValueType",
    "find_errors",
    "fingerprint",
    "from_numpy",
    "parse_graph",
    "print_graph",
    "symbol",
    "to_numpy",
    "verify",
]
