"""Thirty small models of every kind that a partitioner meets; each gives a graph and a feed."""

from collections.abc import Callable
from typing import Any

import numpy as np

import pyflame as pf
from pyflame import models, nn
from pyflame.exporting import _graph as exported
from pyflame_rt import DType, Graph, Tensor

ROWS = 6
MODELS: dict[str, Callable[[], tuple[Graph, dict[str, Any]]]] = {}


def model(make):
    MODELS[make.__name__] = make
    return make


class Net:
    """A graph that is built from its input on."""

    def __init__(self, name: str, shape: list[object], dtype: DType = DType.Float32) -> None:
        self.graph, self.count = Graph(name), 0
        self.random = np.random.default_rng(len(name) + 7)
        self.graph.add_input("x", shape, dtype)

    def weight(self, *shape: int, scale: float = 0.4) -> str:
        self.count += 1
        values = self.random.standard_normal(shape).astype(np.float32) * scale
        self.graph.add_initializer(f"w{self.count}", values)
        return f"w{self.count}"

    def ints(self, *values: int) -> str:
        self.count += 1
        self.graph.add_initializer(f"i{self.count}", np.array(values, np.int64))
        return f"i{self.count}"

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        self.count += 1
        names = [f"v{self.count}_{i}" for i in range(outputs)]
        self.graph.add_node(f"{op}_{self.count}", op, inputs, names, attributes, domain=domain)
        return names[0] if outputs == 1 else names

    def dense(self, x: str, inner: int, outer: int) -> str:
        return self.node("Gemm", x, self.weight(inner, outer), self.weight(outer))

    def conv(self, x: str, inner: int, outer: int, size: int = 3, **attributes: Any) -> str:
        weight = self.weight(outer, inner // attributes.get("group", 1), size, size)
        return self.node("Conv", x, weight, self.weight(outer), pads=[size // 2] * 4, **attributes)

    def done(self, *outputs: str, **feeds: Any) -> tuple[Graph, dict[str, Any]]:
        for i, name in enumerate(outputs):
            self.node_named("Identity", name, f"y{i}")
            self.graph.add_output(f"y{i}", None)
        return self.graph, {"x": self.feed(), **feeds}

    def node_named(self, op: str, source: str, name: str) -> None:
        self.graph.add_node(f"out_{name}", op, [source], [name])

    def feed(self) -> np.ndarray:
        info = self.graph.inputs[0]
        dims = [d if isinstance(d, int) else ROWS for d in info.shape]
        if info.dtype is DType.Int64:
            return self.random.integers(0, 10, dims)
        return self.random.standard_normal(dims).astype(info.dtype.numpy)


@model
def mlp():
    n = Net("mlp", [None, 16])
    x = "x"
    for inner, outer in ((16, 24), (24, 24), (24, 24), (24, 10)):
        x = n.node("Relu", n.dense(x, inner, outer))
    return n.done(x)


@model
def softmax_head():
    n = Net("softmax_head", ["N", 12])
    return n.done(n.node("Softmax", n.dense(n.node("Tanh", n.dense("x", 12, 20)), 20, 5)))


@model
def residual():
    n = Net("residual", ["N", 16])
    x = "x"
    for _ in range(3):
        x = n.node("Add", x, n.node("Sigmoid", n.dense(x, 16, 16)))
    return n.done(x)


@model
def branches():
    n = Net("branches", ["N", 16])
    ways = [n.node("Relu", n.dense(n.node("Tanh", n.dense("x", 16, 20)), 20, 8)) for _ in range(4)]
    return n.done(n.node("Concat", *ways, axis=1))


@model
def two_inputs():
    n = Net("two_inputs", ["N", 8])
    n.graph.add_input("z", ["N", 8])
    mixed = n.node("Mul", n.dense("x", 8, 12), n.dense("z", 8, 12))
    return n.done(n.dense(mixed, 12, 3), z=n.feed())


@model
def two_outputs():
    n = Net("two_outputs", ["N", 8])
    hidden = n.node("Relu", n.dense("x", 8, 16))
    return n.done(n.dense(hidden, 16, 4), n.node("ReduceMean", hidden, n.ints(1), keepdims=0))


@model
def static_batch():
    n = Net("static_batch", [ROWS, 8])
    hidden = n.node("Reshape", n.dense("x", 8, 12), n.ints(ROWS, 3, 4))
    return n.done(n.node("Tanh", hidden))


@model
def open_reshape():
    n = Net("open_reshape", ["N", 8])
    rows = n.node("Reshape", n.dense("x", 8, 12), n.ints(-1, 4))
    back = n.node("Reshape", n.node("Softmax", rows), n.ints(-1, 12))
    return n.done(n.dense(back, 12, 4))


@model
def sizes_from_shape():
    n = Net("sizes_from_shape", ["N", 3, 4])
    size = n.node("Gather", n.node("Shape", "x"), n.ints(0), axis=0)
    flat = n.node("Reshape", "x", n.node("Concat", size, n.ints(-1), axis=0))
    return n.done(n.dense(flat, 12, 6))


@model
def mixes_rows():
    n = Net("mixes_rows", ["N", 8])
    return n.done(n.node("Softmax", n.dense("x", 8, 8), axis=0))


@model
def divides_by_rows():
    n = Net("divides_by_rows", ["N", 8])
    size = n.node("Cast", n.node("Gather", n.node("Shape", "x"), n.ints(0), axis=0), to=1)
    return n.done(n.node("Div", n.dense("x", 8, 8), size))


@model
def convolutions():
    n = Net("convolutions", ["N", 3, 10, 10])
    x = n.node("Relu", n.conv("x", 3, 8))
    x = n.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n.node("Relu", n.conv(x, 8, 12))
    return n.done(n.dense(n.node("Flatten", n.node("GlobalAveragePool", x)), 12, 5))


@model
def depthwise():
    n = Net("depthwise", ["N", 4, 8, 8])
    x = n.node("Relu", n.conv("x", 4, 8, 1))
    x = n.node("Relu", n.conv(x, 8, 8, group=8))
    x = n.node("Add", "x", n.conv(x, 8, 4, 1))
    return n.done(n.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]))


@model
def batch_norm():
    n = Net("batch_norm", ["N", 3, 6, 6])
    x = n.conv("x", 3, 6)
    n.graph.add_initializer("var", np.abs(n.random.standard_normal(6)).astype(np.float32) + 0.5)
    x = n.node("BatchNormalization", x, n.weight(6), n.weight(6), n.weight(6), "var")
    return n.done(n.node("Clip", n.conv(n.node("LeakyRelu", x, alpha=0.1), 6, 4), n.weight(scale=0.0)))


@model
def layer_norm():
    n = Net("layer_norm", ["N", 5, 16])
    x = n.node("LayerNormalization", "x", n.weight(16), n.weight(16))
    x = n.node("Gelu", n.node("Add", n.node("MatMul", x, n.weight(16, 32)), n.weight(32)))
    return n.done(n.node("Add", "x", n.node("MatMul", x, n.weight(32, 16))))


@model
def attention():
    n = Net("attention", ["N", 6, 16])
    parts = n.node("Split", n.node("MatMul", "x", n.weight(16, 48)), n.ints(16, 16, 16), outputs=3, axis=2)
    heads = [n.node("Transpose", n.node("Reshape", p, n.ints(0, 6, 4, 4)), perm=[0, 2, 1, 3]) for p in parts]
    scores = n.node("MatMul", heads[0], n.node("Transpose", heads[1], perm=[0, 1, 3, 2]))
    x = n.node("MatMul", n.node("Softmax", scores), heads[2])
    x = n.node("Reshape", n.node("Transpose", x, perm=[0, 2, 1, 3]), n.ints(0, 6, 16))
    return n.done(n.node("Add", "x", n.node("MatMul", x, n.weight(16, 16))))


@model
def lstm():
    n = Net("lstm", [5, "N", 8])
    _, h, _ = n.node("LSTM", "x", n.weight(1, 24, 8), n.weight(1, 24, 6), outputs=3, hidden_size=6)
    return n.done(n.dense(n.node("Squeeze", h, n.ints(0)), 6, 4))


@model
def gru_rows_first():
    n = Net("gru_rows_first", ["N", 5, 8])
    steps = n.node("Transpose", "x", perm=[1, 0, 2])
    y, _ = n.node("GRU", steps, n.weight(1, 18, 8), n.weight(1, 18, 6), outputs=2, hidden_size=6)
    last = n.node("Gather", n.node("Squeeze", y, n.ints(1)), n.ints(4), axis=0)
    return n.done(n.dense(n.node("Squeeze", last, n.ints(0)), 6, 4))


@model
def embedding():
    n = Net("embedding", ["N", 4], DType.Int64)
    x = n.node("Gather", n.weight(10, 8), "x")
    return n.done(n.dense(n.node("ReduceSum", x, n.ints(1), keepdims=0), 8, 3))


@model
def top_k():
    n = Net("top_k", ["N", 12])
    values, places = n.node("TopK", n.dense("x", 12, 12), n.ints(3), outputs=2, axis=1)
    return n.done(values, places)


@model
def einsum():
    n = Net("einsum", ["N", 4, 6])
    return n.done(n.node("Einsum", n.node("Tanh", "x"), n.weight(6, 5), equation="bij,jk->bik"))


@model
def default_input():
    n = Net("default_input", ["N", 8])
    n.graph.add_input("scale", [8])
    n.graph.add_initializer("scale", np.full(8, 2.0, np.float32))
    return n.done(n.dense(n.node("Mul", "x", "scale"), 8, 8))


@model
def constants_inside():
    n = Net("constants_inside", ["N", 8])
    one = n.node("Constant", value=Tensor(np.full(8, 0.5, np.float32)))
    return n.done(n.node("Add", n.node("Mul", n.dense("x", 8, 8), one), one))


@model
def chosen_branch():
    n = Net("chosen_branch", ["N", 8])
    ways = {}
    for name, op in (("then_branch", "Exp"), ("else_branch", "Neg")):
        inner = Graph(name)
        inner.add_node(name, op, ["h"], [f"{name}_y"])
        inner.add_output(f"{name}_y", None)
        inner.add_input("h", None)
        ways[name] = inner
    hidden = n.dense("x", 8, 8)
    condition = n.node("Greater", n.node("ReduceSum", hidden, keepdims=0), n.weight(scale=0.0))
    return n.done(n.node("If", condition, hidden, **ways))


@model
def sequences():
    n = Net("sequences", ["N", 8])
    parts = n.node("SplitToSequence", n.dense("x", 8, 8), n.ints(4, 4), axis=1)
    return n.done(n.node("ConcatFromSequence", parts, axis=1))


def _traced(module: Any, *example: Any, rows: bool = True) -> tuple[Graph, dict[str, Any]]:
    names = [f"in{i}" for i in range(len(example))]
    dynamic = {name: {0: "N"} for name in names} if rows else None
    graph = exported(module, example, dynamic, input_names=names)
    return graph, {name: e.numpy() for name, e in zip(names, example, strict=True)}


def _ids(high: int, length: int, rows: int = ROWS) -> Any:
    return pf.tensor(np.random.default_rng(3).integers(0, high, (rows, length)))


@model
def resnet():
    pf.manual_seed(1)
    shape = models.ResNetConfig(layers=(1, 1, 1, 1), num_classes=4, width_per_group=64, small_images=True)
    return _traced(models.ResNet(shape), pf.randn([2, 3, 8, 8]))


@model
def vit():
    pf.manual_seed(2)
    shape = models.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_layers=2, num_heads=2, mlp_size=32, num_classes=3
    )
    return _traced(models.ViT(shape), pf.randn([ROWS, 3, 8, 8]))


@model
def gpt2():
    pf.manual_seed(3)
    shape = models.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    return _traced(models.GPT2(shape), _ids(20, 6))


@model
def bert():
    pf.manual_seed(4)
    shape = models.BertConfig(20, 16, 2, 2, 32, 8)
    return _traced(models.BertForSequenceClassification(shape), _ids(20, 6))


@model
def unet():
    pf.manual_seed(5)
    return _traced(models.UNet(in_channels=2, num_classes=2, width=4, depth=2), pf.randn([3, 2, 8, 8]))


@model
def feed_forward():
    pf.manual_seed(6)
    layers = [nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 12), nn.LayerNorm(12)]
    return _traced(nn.Sequential(*layers, *layers[:2], nn.Linear(32, 4)), pf.randn([ROWS, 12]))
