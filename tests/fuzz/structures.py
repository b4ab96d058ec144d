"""Structural models that nobody means: blow-ups, cycles, depths, sizes and names out of all proportion."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
ML, HUGE = "ai.onnx.ml", (2**31, 2**40, 2**62)


def _model(
    nodes: list[Any],
    constants: dict[str, Any] | None = None,
    *,
    x: tuple[int, Any] = (FLOAT, [4]),
    y: tuple[int, Any] = (FLOAT, None),
    opset: int = 21,
    functions: tuple[Any, ...] = (),
    out: str = "y",
) -> ModelProto:
    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", *x)], [helper.make_tensor_value_info(out, *y)], weights
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 3), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def _sized(size: int) -> Iterator[tuple[str, ModelProto]]:
    """Operators that make as many elements as a number in the file says."""
    n, ints = helper.make_node, lambda *v: np.asarray(v, np.int64)
    one = {"s": ints(size)}
    yield "ConstantOfShape", _model([n("ConstantOfShape", ["s"], ["y"])], one)
    yield "Expand", _model([n("Expand", ["x", "s"], ["y"])], {"s": ints(size, 4)})
    yield "Tile", _model([n("Tile", ["x", "s"], ["y"])], one)
    yield "Pad", _model([n("Pad", ["x", "s"], ["y"])], {"s": ints(0, size)})
    yield "Pad both", _model([n("Pad", ["x", "s"], ["y"], mode="reflect")], {"s": ints(size, size)})
    span = {"a": np.int64(0), "b": np.int64(size), "c": np.int64(1)}
    yield "Range", _model([n("Range", ["a", "b", "c"], ["y"])], span, y=(INT64, None))
    hot = {"d": np.int64(size), "v": np.float32([0, 1]), "i": ints(1, 2)}
    yield "OneHot", _model([n("OneHot", ["i", "d", "v"], ["y"])], hot)
    image = (FLOAT, [1, 1, 2, 2])
    yield "Resize", _model([n("Resize", ["x", "", "", "s"], ["y"])], {"s": ints(1, 1, size, 2)}, x=image)
    scales = {"s": np.float32([1, 1, size, 1])}
    yield "Resize scales", _model([n("Resize", ["x", "", "s"], ["y"], mode="cubic")], scales, x=image)
    boxes = {"r": np.float32([[0, 0, size, size]]), "b": ints(0)}
    yield "RoiAlign", _model([n("RoiAlign", ["x", "r", "b"], ["y"])], boxes, x=image)
    wide = {"output_height": min(size, 2**62), "output_width": 2}
    yield "RoiAlign output", _model([n("RoiAlign", ["x", "r", "b"], ["y"], **wide)], boxes, x=image)
    mel = {"a": np.int64(size), "b": np.int64(size), "c": np.int64(8000), "d": np.float32(0), "e": np.float32(4000)}
    yield "MelWeightMatrix", _model([n("MelWeightMatrix", list("abcde"), ["y"])], mel)
    for window in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        yield window, _model([n(window, ["s"], ["y"])], {"s": np.int64(size)})
    yield "DFT", _model([n("DFT", ["x", "s"], ["y"])], {"s": np.int64(size)}, x=(FLOAT, [1, 4, 1]))
    yield "EyeLike", _model([n("EyeLike", ["x"], ["y"], k=size)], x=(FLOAT, [4, 4]))
    yield "RandomNormal", _model([n("RandomNormal", [], ["y"], shape=[size, 4])])
    columns = {"s": ints(size, 2), "k": ints(1, 1)}
    yield "Col2Im", _model([n("Col2Im", ["x", "s", "k"], ["y"])], columns, x=(FLOAT, [1, 1, 4]))
    spots = {"i": np.zeros((1, 1, 2, 2), np.int64), "s": ints(1, 1, size, 4)}
    yield "MaxUnpool", _model([n("MaxUnpool", ["x", "i", "s"], ["y"], kernel_shape=[2, 2])], spots, x=image)
    grid = {"g": np.zeros((1, 2, 3), np.float32), "s": ints(1, 1, size, 4)}
    yield "AffineGrid", _model([n("AffineGrid", ["g", "s"], ["y"])], grid)
    yield "CenterCropPad", _model([n("CenterCropPad", ["x", "s"], ["y"])], one)
    pads = {"kernel_shape": [3], "pads": [size, size]}
    weight = {"w": np.ones((1, 1, 3), np.float32)}
    yield "Conv pads", _model([n("Conv", ["x", "w"], ["y"], **pads)], weight, x=(FLOAT, [1, 1, 8]))
    yield "AveragePool pads", _model([n("AveragePool", ["x"], ["y"], **pads)], x=(FLOAT, [1, 1, 8]))
    strides = {"kernel_shape": [3], "strides": [size]}
    yield "ConvTranspose", _model([n("ConvTranspose", ["x", "w"], ["y"], **strides)], weight, x=(FLOAT, [1, 1, 8]))
    yield "LpPool dilated", _model([n("LpPool", ["x"], ["y"], kernel_shape=[size])], x=(FLOAT, [1, 1, 8]))
    yield "DepthToSpace", _model([n("DepthToSpace", ["x"], ["y"], blocksize=min(size, 2**62))], x=(FLOAT, [1, 4, 1, 1]))
    yield "input", _model([n("Neg", ["x"], ["y"])], x=(FLOAT, [size]))
    trips = {"m": np.int64(size), "c": np.bool_(False)}
    yield "Loop never", _model([n("Loop", ["m", "c", "x"], ["y"], body=_body())], trips)


def _body() -> Any:
    infos = [("i", INT64, []), ("c_in", TensorProto.BOOL, []), ("v", FLOAT, [4])]
    nodes = [helper.make_node("Identity", ["c_in"], ["c_out"]), helper.make_node("Neg", ["v"], ["w"])]
    outs = [("c_out", TensorProto.BOOL, []), ("w", FLOAT, [4])]
    make = helper.make_tensor_value_info
    return helper.make_graph(nodes, "body", [make(*i) for i in infos], [make(*o) for o in outs])


def _doubled() -> Iterator[tuple[str, ModelProto]]:
    """A few nodes whose values double, or multiply, from one to the next."""
    n = helper.make_node
    for steps in (20, 30, 40, 80):
        chain = [n("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0) for i in range(steps)]
        yield f"Concat {steps}", _model([n("Identity", ["x"], ["v0"]), *chain, n("Identity", [f"v{steps}"], ["y"])])
        outer = [n("Unsqueeze", [f"v{i}", "a"], [f"u{i}"]) for i in range(steps)]
        pairs = [p for i in range(steps) for p in (outer[i], n("Add", [f"v{i}", f"u{i}"], [f"v{i + 1}"]))]
        last = [n("ReduceSum", [f"v{steps}"], ["y"])]
        axes = {"a": np.asarray([-1], np.int64)}
        yield f"outer sum {steps}", _model([n("Identity", ["x"], ["v0"]), *pairs, *last], axes)
        functions = []
        for i in range(steps):
            inner = "Neg" if i == 0 else f"f{i - 1}"
            where = "" if i == 0 else "mine"
            body = [n(inner, ["a"], ["b"], domain=where), n(inner, ["b"], ["c"], domain=where)]
            imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
            functions.append(helper.make_function("mine", f"f{i}", ["a"], ["c"], body, imports))
        call = n(f"f{steps - 1}", ["x"], ["y"], domain="mine")
        yield f"functions {steps}", _model([call], functions=tuple(functions))


def _nested() -> Iterator[tuple[str, ModelProto]]:
    """Graphs in graphs, long chains, cycles, functions that call themselves."""
    n = helper.make_node
    for depth in (3, 12, 24):
        graph = helper.make_graph(
            [n("Neg", ["x"], ["r0"])], "g0", [], [helper.make_tensor_value_info("r0", FLOAT, [4])]
        )
        for i in range(1, depth):
            inner = n("If", ["c"], [f"r{i}"], then_branch=graph, else_branch=graph if i < 4 else _leaf(i))
            graph = helper.make_graph([inner], f"g{i}", [], [helper.make_tensor_value_info(f"r{i}", FLOAT, [4])])
        outer = n("If", ["c"], ["y"], then_branch=graph, else_branch=_leaf(0))
        yield f"If {depth}", _model([outer], {"c": np.bool_(True)})
    for length in (1000, 20_000):
        names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
        yield f"chain {length}", _model([n("Neg", [a], [b]) for a, b in pairwise(names)])
    yield "cycle", _model([n("Add", ["x", "y"], ["z"]), n("Neg", ["z"], ["y"])])
    yield "own input", _model([n("Neg", ["y"], ["y"])])
    yield "made twice", _model([n("Neg", ["x"], ["y"]), n("Abs", ["x"], ["y"])])
    yield "nothing makes it", _model([n("Neg", ["nowhere"], ["y"])])
    yield "no nodes", _model([])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    one = helper.make_function("mine", "f", ["a"], ["b"], [n("f", ["a"], ["b"], domain="mine")], imports)
    yield "calls itself", _model([n("f", ["x"], ["y"], domain="mine")], functions=(one,))
    two = [
        helper.make_function("mine", name, ["a"], ["b"], [n(other, ["a"], ["b"], domain="mine")], imports)
        for name, other in (("f", "h"), ("h", "f"))
    ]
    yield "call each other", _model([n("f", ["x"], ["y"], domain="mine")], functions=tuple(two))
    for opset in (0, 1, 10**6, 2**62):
        yield f"opset {opset}", _model([n("Neg", ["x"], ["y"])], opset=opset)
    for count in (1000, 10_000, 100_000):
        parts = [f"p{i}" for i in range(count)]
        yield f"Split {count}", _model([n("Split", ["x"], parts, num_outputs=count)], out="p0")
        yield f"Sum {count}", _model([n("Sum", ["x"] * count, ["y"])])


def _leaf(i: int) -> Any:
    return helper.make_graph(
        [helper.make_node("Abs", ["x"], [f"e{i}"])],
        f"leaf{i}",
        [],
        [helper.make_tensor_value_info(f"e{i}", FLOAT, [4])],
    )


def _tree(true: list[int], false: list[int], modes: list[bytes]) -> ModelProto:
    count = len(modes)
    settings: dict[str, Any] = {
        "nodes_truenodeids": true,
        "nodes_falsenodeids": false,
        "nodes_modes": modes,
        "nodes_nodeids": list(range(count)),
        "nodes_treeids": [0] * count,
        "nodes_featureids": [0] * count,
        "nodes_values": [0.5] * count,
        "target_ids": [0],
        "target_nodeids": [count - 1],
        "target_treeids": [0],
        "target_weights": [1.0],
        "n_targets": 1,
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **settings)
    return _model([node], x=(FLOAT, [2, 1]))


def _learned() -> Iterator[tuple[str, ModelProto]]:
    """Trees that do not end, patterns that do not end, declared sizes without contents."""
    n = helper.make_node
    yield "own child", _tree([0, 0], [0, 0], [b"BRANCH_LEQ", b"LEAF"])
    yield "round", _tree([1, 0, 0], [2, 2, 0], [b"BRANCH_LEQ", b"BRANCH_LEQ", b"LEAF"])
    yield "child out of range", _tree([7, 0], [-3, 0], [b"BRANCH_LEQ", b"LEAF"])
    for pattern in (r"(a*)*b", r"(a|aa)+$", r"(.*)(.*)(.*)(.*)x", r"(a)\1", r"(?=a)b", "a{1000}{1000}", "(" * 5000):
        text = _model(
            [n("ConstantOfShape", ["s"], ["z"]), n("RegexFullMatch", ["t"], ["y"], pattern=pattern)],
            {"s": np.asarray([1], np.int64), "t": np.asarray(["a" * 4000], object)},
            y=(TensorProto.BOOL, None),
        )
        yield f"pattern {pattern[:12]}", text
    for dims in ([2**40], [2**31, 2**31], [-5], [0, 2**62]):
        model = _model([n("Add", ["x", "w"], ["y"])])
        model.graph.initializer.append(TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=b"\0" * 16))
        yield f"weight {dims}", model
        sparse = SparseTensorProto(dims=dims)
        sparse.values.CopyFrom(TensorProto(name="w", data_type=FLOAT, dims=[1], float_data=[1.0]))
        sparse.indices.CopyFrom(TensorProto(data_type=INT64, dims=[1], int64_data=[0]))
        model = _model([n("Add", ["x", "w"], ["y"])])
        model.graph.sparse_initializer.append(sparse)
        yield f"sparse {dims}", model
    for equation in ("i->" + "ij"[:1] * 30, "...,...->...", "i,i,i,i,i,i->i", "zz->z", "i->j", ","):
        yield f"Einsum {equation[:8]}", _model([n("Einsum", ["x"], ["y"], equation=equation)])


@cache
def structures() -> tuple[tuple[str, bytes], ...]:
    """Every structural model by name."""
    made = [(f"{name} {size}", model) for size in HUGE for name, model in _sized(size)]
    made += [*_doubled(), *_nested(), *_learned()]
    return tuple((name, model.SerializeToString()) for name, model in made)
