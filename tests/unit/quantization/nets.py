"""Models to quantize, and data for them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import pyflame as pf
import pyflame_rt
from pyflame import nn
from pyflame.data import load_digits
from pyflame.exporting import evaluation_graph
from pyflame_rt.demo import model_path, test_set
from pyflame_rt.graph import Graph


class Trained(NamedTuple):
    """A classifier with the data to calibrate and to test it."""

    graph: Graph
    input: str
    output: str
    feeds: list[dict[str, np.ndarray]]
    images: np.ndarray
    labels: np.ndarray

    def scores(self, graph: Graph, **options) -> np.ndarray:
        session = pyflame_rt.InferenceSession(graph, **options)
        return session.run([self.output], {self.input: self.images})[0]

    def accuracy(self, scores: np.ndarray) -> float:
        return float((scores.argmax(1) == self.labels).mean())

    def agreement(self, scores: np.ndarray) -> float:
        return float((scores.argmax(1) == self.scores(self.graph).argmax(1)).mean())


@cache
def convnet() -> Trained:
    """The classifier of digits that comes with the package."""
    graph = pyflame_rt.InferenceSession(model_path()).graph()
    images, labels = test_set()
    shown = load_digits().train_images * 16
    feeds = [{"image": shown[i : i + 32]} for i in range(0, 320, 32)]
    return Trained(graph, "image", "probabilities", feeds, images, labels)


class _Encoder(nn.Module):
    """Rows of an image as tokens, one transformer layer, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(pf.randn([1, 8, 32]) * 0.1)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        rows = self.embed(x.reshape([-1, 8, 8])) + self.place
        return self.head(self.block(rows).reshape([-1, 256]))


@cache
def transformer() -> Trained:
    """A transformer classifier, trained here in two seconds."""
    pf.manual_seed(0)
    digits, net = load_digits(), _Encoder()
    optimizer = pf.optim.Adam(net.parameters(), lr=3e-3)
    loss_of = nn.CrossEntropyLoss()

    @pf.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    order = np.random.default_rng(0)
    for _ in range(25):
        for rows in order.permutation(1344).reshape(-1, 64):
            step(pf.from_numpy(digits.train_images[rows]), pf.from_numpy(digits.train_labels[rows]))
    net.eval()
    graph = evaluation_graph(net, (pf.from_numpy(digits.test_images),))
    name = graph.inputs[0].name
    feeds = [{name: digits.train_images[:450]}, {name: digits.train_images[450:900]}]
    return Trained(graph, name, graph.outputs[0].name, feeds, digits.test_images, digits.test_labels)


def dense(seed: int = 0, sizes: tuple[int, ...] = (6, 8, 4)) -> Graph:
    """Products with biases and Relu between them."""
    rng = np.random.default_rng(seed)
    graph = Graph("dense")
    graph.add_input("x", ["N", sizes[0]])
    last = "x"
    for i, (a, b) in enumerate(pairwise(sizes)):
        graph.add_initializer(f"w{i}", rng.standard_normal((b, a)).astype(np.float32))
        graph.add_initializer(f"b{i}", rng.standard_normal(b).astype(np.float32))
        graph.add_node(f"fc{i}", "Gemm", [last, f"w{i}", f"b{i}"], [f"h{i}"], transB=1)
        graph.add_node(f"act{i}", "Relu", [f"h{i}"], [f"a{i}"])
        last = f"a{i}"
    graph.add_output(last, ["N", sizes[-1]])
    return graph


def residual(seed: int = 0) -> Graph:
    """Convolutions with a normalisation, a residual sum, pooling and a product."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    graph = Graph("residual")
    graph.add_input("x", ["N", 3, 8, 8])
    graph.add_initializer("w1", draw(8, 3, 3, 3) * 0.3)
    graph.add_node("c1", "Conv", ["x", "w1"], ["y1"], pads=[1, 1, 1, 1])
    for part, values in (("s", abs(draw(8)) + 0.5), ("t", draw(8)), ("m", draw(8)), ("v", abs(draw(8)) + 0.5)):
        graph.add_initializer(part, values)
    graph.add_node("bn", "BatchNormalization", ["y1", "s", "t", "m", "v"], ["n1"])
    graph.add_node("r1", "Relu", ["n1"], ["z1"])
    graph.add_initializer("w2", draw(8, 4, 3, 3) * 0.2)
    graph.add_initializer("b2", draw(8))
    graph.add_node("c2", "Conv", ["z1", "w2", "b2"], ["y2"], pads=[1, 1, 1, 1], group=2)
    graph.add_node("sum", "Add", ["y2", "z1"], ["u"])
    graph.add_node("r2", "Relu", ["u"], ["z2"])
    graph.add_initializer("w3", draw(8, 8, 1, 1) * 0.3)
    graph.add_node("c3", "Conv", ["z2", "w3"], ["y3"])
    graph.add_node("pool", "MaxPool", ["y3"], ["p"], kernel_shape=[8, 8])
    graph.add_node("flat", "Flatten", ["p"], ["f"])
    graph.add_initializer("w4", draw(8, 5))
    graph.add_node("last", "MatMul", ["f", "w4"], ["out"])
    graph.add_output("out", ["N", 5])
    return graph
