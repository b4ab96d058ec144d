"""Every operator the wafer's generator has a rule for, with the inputs it is tried on."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyflame_rt.graph import DType, Graph

BOTH = (-4.0, 4.0)
FLOATS = ("float32", "float16")
NUMBERS = (*FLOATS, "int32", "int16")


@dataclass(frozen=True)
class Case:
    """One way to call an operator.

    Attributes:
        group: the heading under which the documentation lists it.
        shapes: of the inputs of the case's type.
        span: where their contents lie.
        more: further inputs, with contents of their own; None leaves one out.
        before: put the further inputs in front.
        types: element types it is tried with.
        result: element type of the result, where it is another one.
        outputs: how many results it has.
        scale: bound on the error, as a multiple of the table's.
    """

    op: str
    group: str
    shapes: tuple[tuple[int, ...], ...]
    span: tuple[float, float] = BOTH
    attributes: dict[str, Any] = field(default_factory=dict)
    more: tuple[Any, ...] = ()
    fixed: tuple[Any, ...] = ()
    before: bool = False
    types: tuple[str, ...] = FLOATS
    result: str = ""
    outputs: int = 1
    domain: str = ""
    scale: float = 1.0

    @property
    def name(self):
        """The operator's full name."""
        return f"{self.domain}::{self.op}" if self.domain else self.op

    def graph(self, dtype):
        """A graph of one node."""
        graph = Graph(self.op)
        kind = DType.of(np.dtype(dtype))
        names = [f"x{i}" for i in range(len(self.shapes))]
        for name, shape in zip(names, self.shapes, strict=True):
            graph.add_input(name, shape, kind)
        extra = []
        for i, array in enumerate(self.more):
            extra.append("" if array is None else f"m{i}")
            if array is not None:
                graph.add_input(f"m{i}", array.shape, DType.of(array.dtype))
        names = [*extra, *names] if self.before else [names[0], *extra, *names[1:]]
        for i, array in enumerate(self.fixed):
            if array is not None:
                graph.add_initializer(f"c{i}", np.asarray(array))
            names.append("" if array is None else f"c{i}")
        made = [f"y{i}" for i in range(self.outputs)]
        graph.add_node("node", self.op, names, made, self.attributes, domain=self.domain)
        out = DType.of(np.dtype(self.result)) if self.result else kind
        for name in made:
            graph.add_output(name, None, out)
        return graph

    def feeds(self, graph, seed):
        """Contents of the inputs."""
        rng = np.random.default_rng(seed)
        found = {}
        for info in graph.inputs:
            if info.name[0] == "m":
                found[info.name] = self.more[int(info.name[1:])]
                continue
            shape = [int(d) for d in info.type.shape]
            found[info.name] = rng.uniform(*self.span, shape).astype(info.type.dtype.numpy)
        return found


def _many(group, shapes, spans, **rest):
    return [Case(op, group, shapes, span, **rest) for op, span in spans.items()]


_ONE, _TWO = ((5, 7),), ((5, 7), (5, 7))
_rng = np.random.default_rng(7)
_TRUTH = _rng.integers(0, 2, (5, 7)).astype(bool)


def _at(*shape, below):
    return _rng.integers(0, below, shape)


ELEMENTWISE = [
    *_many("elementwise", _ONE, {
        "Acos": (-1, 1), "Acosh": (1, 9), "Asin": (-1, 1), "Asinh": BOTH, "Atan": BOTH, "Atanh": (-0.9, 0.9),
        "Ceil": BOTH, "Cos": BOTH, "Cosh": BOTH, "Erf": BOTH, "Exp": BOTH, "Floor": BOTH, "Log": (0.1, 9),
        "Round": BOTH, "Sigmoid": BOTH, "Sin": BOTH, "Sinh": BOTH, "Softplus": BOTH, "Sqrt": (0, 9),
        "Tan": (-1, 1), "Tanh": BOTH, "Reciprocal": (0.5, 4), "Relu": BOTH, "LeakyRelu": BOTH, "Elu": BOTH,
        "Selu": BOTH, "Gelu": BOTH, "HardSwish": BOTH, "HardSigmoid": BOTH, "Mish": BOTH, "Softsign": BOTH,
        "Celu": BOTH, "Swish": BOTH, "ThresholdedRelu": BOTH, "Shrink": BOTH, "Identity": BOTH, "Dropout": BOTH,
    }),
    *_many("elementwise", _ONE, {"Abs": BOTH, "Neg": BOTH, "Sign": BOTH}, types=NUMBERS),
    *_many("elementwise", _TWO, {"Add": BOTH, "Sub": BOTH, "Mul": BOTH, "Max": BOTH, "Min": BOTH}, types=NUMBERS),
    Case("Add", "elementwise", ((2, 5, 7), (5, 1)), types=NUMBERS),
    Case("Add", "elementwise", ((23,), (23,))),
    Case("Div", "elementwise", _TWO, (1, 9), types=NUMBERS),
    Case("Pow", "elementwise", _TWO, (0.5, 2)),
    Case("Pow", "elementwise", _ONE, (0.5, 2), fixed=(np.array(3),)),
    Case("Mod", "elementwise", _TWO, (0.5, 9), {"fmod": 1}),
    Case("Mod", "elementwise", ((5, 7),), (-9, 9), fixed=(np.array(3, np.int32),), types=("int32",)),
    Case("PRelu", "elementwise", ((5, 7), (7,))),
    Case("Sum", "elementwise", ((5, 7), (5, 7), (7,))),
    Case("Mean", "elementwise", ((5, 7), (5, 7))),
    Case("Clip", "elementwise", _ONE, fixed=(np.float32(-1), np.float32(2)), types=("float32",)),
    *_many("comparison", _TWO, dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"), (-2, 2)),
           types=NUMBERS, result="bool"),
    *_many("comparison", _ONE, dict.fromkeys(("IsNaN", "IsInf"), BOTH), result="bool"),
    *_many("comparison", ((5, 7),), dict.fromkeys(("And", "Or", "Xor"), (0, 2)), more=(_TRUTH,), types=("bool",)),
    Case("Not", "comparison", _ONE, (0, 2), types=("bool",)),
    Case("Where", "comparison", _TWO, more=(_TRUTH,), before=True, types=NUMBERS),
    Case("Cast", "elementwise", _ONE, attributes={"to": DType.Float16.onnx}, result="float16"),
    Case("Cast", "elementwise", _ONE, attributes={"to": DType.Int64.onnx}, result="int64", types=(*NUMBERS, "bool")),
    Case("Cast", "elementwise", _ONE, attributes={"to": DType.Float32.onnx}, result="float32", types=NUMBERS),
    Case("Cast", "elementwise", _ONE, attributes={"to": DType.Bool.onnx}, result="bool", types=NUMBERS),
]  # fmt: skip

REDUCTIONS = [
    *[Case(op, "reduction", _ONE, attributes={"keepdims": keep}, fixed=(np.array(axes),), types=types)
      for op, types in {"ReduceSum": NUMBERS, "ReduceMax": NUMBERS, "ReduceMin": NUMBERS, "ReduceMean": FLOATS}.items()
      for axes, keep in (([0], 1), ([-1], 0), ([0, 1], 1))],
    *[Case(op, "reduction", _ONE, (0.5, 1.5), {"keepdims": 0}, fixed=(np.array([1]),))
      for op in ("ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")],
    *[Case(op, "reduction", _ONE, attributes={"axis": axis, "keepdims": axis}, result="int64")
      for op in ("ArgMax", "ArgMin") for axis in (0, 1)],
    Case("CumSum", "reduction", _ONE, fixed=(np.array(1),), types=(*FLOATS, "int32")),
    Case("CumSum", "reduction", _ONE, attributes={"reverse": 1, "exclusive": 1}, fixed=(np.array(0),)),
    *[Case(op, "normalisation", _ONE, attributes={"axis": axis})
      for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (0, 1)],
    Case("LayerNormalization", "normalisation", ((5, 8), (8,), (8,)), scale=3),
    Case("RMSNormalization", "normalisation", ((5, 8), (8,)), scale=3),
    Case("LpNormalization", "normalisation", _ONE),
    Case("MeanVarianceNormalization", "normalisation", ((2, 3, 4, 5),), scale=3),
    Case("InstanceNormalization", "normalisation", ((2, 3, 5), (3,), (3,)), scale=3),
    Case("GroupNormalization", "normalisation", ((2, 4, 5), (4,), (4,)), attributes={"num_groups": 2}, scale=3),
    Case("BatchNormalization", "normalisation", ((2, 3, 4), (3,), (3,), (3,), (3,)), (0.5, 2), scale=3),
    Case("LRN", "normalisation", ((1, 5, 3, 4),), attributes={"size": 3}),
    Case("SumTo", "reduction", _ONE, fixed=(np.array([7]),), domain="pyflame"),
]  # fmt: skip

PRODUCTS = [
    Case("MatMul", "product", ((5, 7), (7, 6)), (-1, 1)),
    Case("MatMul", "product", ((1, 7), (7, 6)), (-1, 1)),
    Case("MatMul", "product", ((5, 7), (7,)), (-1, 1)),
    Case("MatMul", "product", ((3, 4, 5), (3, 5, 6)), (-1, 1)),
    Case("Gemm", "product", ((5, 7), (6, 7), (6,)), (-1, 1), {"transB": 1, "alpha": 0.5}),
    Case("Attention", "product", ((1, 2, 4, 6), (1, 2, 5, 6), (1, 2, 5, 6)), (-1, 1)),
]

WINDOWS = [
    Case("Conv", "windows", ((2, 3, 6, 7), (4, 3, 3, 3), (4,)), (-1, 1), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Case("Conv", "windows", ((1, 4, 9), (4, 2, 3)), (-1, 1), {"group": 2}),
    Case("MaxPool", "windows", ((2, 3, 6, 7),), attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("AveragePool", "windows", ((2, 3, 6, 7),), attributes={"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    Case("GlobalAveragePool", "windows", ((2, 3, 5, 4),)),
    Case("GlobalMaxPool", "windows", ((2, 3, 5, 4),)),
    Case("LpPool", "windows", ((1, 2, 6, 6),), (0.5, 2), {"kernel_shape": [2, 2]}),
    Case("MaxPoolValues", "windows", ((2, 3, 6, 7),), attributes={"kernel_shape": [2, 3]}, domain="pyflame"),
    Case("ReduceWindow", "windows", ((5, 6),), domain="pyflame",
         attributes={"window": [2, 2], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0], "kind": "sum"}),
]  # fmt: skip

MOVES = [
    Case("Transpose", "moves", _ONE, attributes={"perm": [1, 0]}, types=NUMBERS),
    Case("Reshape", "moves", ((4, 6),), fixed=(np.array([3, -1]),), types=NUMBERS),
    Case("Flatten", "moves", ((2, 3, 4),)),
    Case("Squeeze", "moves", ((1, 5, 7),), fixed=(np.array([0]),)),
    Case("Unsqueeze", "moves", _ONE, fixed=(np.array([1]),)),
    Case("Concat", "moves", ((5, 7), (5, 4)), attributes={"axis": 1}, types=NUMBERS),
    Case("Split", "moves", ((6, 7),), attributes={"axis": 0, "num_outputs": 2}, outputs=2),
    Case("Slice", "moves", _ONE, fixed=(np.array([1]), np.array([6]), np.array([1]), np.array([2]))),
    Case("Expand", "moves", ((5, 1),), fixed=(np.array([5, 7]),), types=NUMBERS),
    Case("Tile", "moves", ((3, 4),), fixed=(np.array([2, 3]),)),
    Case("Pad", "moves", _ONE, fixed=(np.array([1, 0, 2, 3]),)),
    Case("Pad", "moves", _ONE, attributes={"mode": "reflect"}, fixed=(np.array([1, -1, 2, 3]),)),
    Case("Trilu", "moves", _ONE),
    Case("DepthToSpace", "moves", ((1, 8, 2, 3),), attributes={"blocksize": 2}),
    Case("SpaceToDepth", "moves", ((1, 2, 4, 6),), attributes={"blocksize": 2}),
]  # fmt: skip

NUMBERED = [
    Case("Gather", "by number", ((7, 5),), more=(_at(2, 4, below=7) - 3,), types=NUMBERS),
    Case("Gather", "by number", ((7, 5),), attributes={"axis": 1}, more=(_at(below=5),)),
    Case("GatherElements", "by number", ((7, 5),), attributes={"axis": 1}, more=(_at(7, 1, below=5),)),
    Case("GatherElements", "by number", ((7, 5),), attributes={"axis": 0}, more=(_at(3, 4, below=7),), types=NUMBERS),
    Case("GatherND", "by number", ((4, 3, 5),), more=(_at(6, 2, below=3),)),
    Case("ScatterElements", "by number", ((7, 5), (7, 2)), attributes={"axis": 1, "reduction": "add"},
         more=(_at(7, 2, below=5),), types=NUMBERS),
    Case("ScatterND", "by number", ((7, 5), (6, 5)), attributes={"reduction": "max"}, more=(_at(6, 1, below=7),)),
    Case("ScatterND", "by number", ((4, 3, 5), (2, 5)), more=(np.array([[3, 1], [0, 2]]),)),
    Case("OneHot", "by number", (), more=(_at(5, below=6),), before=True, types=("float32",),
         fixed=(np.array(6), np.array([0.0, 1.0], np.float32))),
    Case("NegativeLogLikelihoodLoss", "losses", ((6, 5),), more=(_at(6, below=5),), types=("float32",)),
    Case("SoftmaxCrossEntropyLoss", "losses", ((6, 5),), more=(_at(6, below=5),)),
]  # fmt: skip

CASES = [*ELEMENTWISE, *REDUCTIONS, *PRODUCTS, *WINDOWS, *MOVES, *NUMBERED]

__all__ = ["CASES", "Case"]
