"""Small graphs for the tests of pruning and distillation."""

from itertools import pairwise

import numpy as np

import pyflame_rt
from pyflame_rt.graph import Graph


class Build:
    """Adds layers to a graph, with weights from a seed."""

    def __init__(self, shape, seed=0):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph("net")
        self.graph.add_input("input", shape)
        self.count = 0

    def weight(self, name, *shape):
        array = self.rng.normal(size=shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]) or 1)
        self.graph.add_initializer(name, array.astype(np.float32))
        return name

    def ints(self, name, values):
        self.graph.add_initializer(name, np.array(values, np.int64))
        return name

    def node(self, op, inputs, outputs=None, name=None, **attributes):
        self.count += 1
        name = name or f"{op.lower()}_{self.count}"
        made = outputs or [f"{name}_out"]
        self.graph.add_node(name, op, inputs, made, attributes)
        return made[0] if len(made) == 1 else made

    def conv(self, x, name, outs, ins, size=3, group=1):
        inputs = [x, self.weight(f"{name}.weight", outs, ins // group, size, size), self.weight(f"{name}.bias", outs)]
        return self.node("Conv", inputs, name=name, pads=[size // 2] * 4, group=group)

    def norm(self, x, name, channels):
        for part in ("weight", "bias", "mean"):
            self.weight(f"{name}.{part}", channels)
        self.graph.add_initializer(f"{name}.var", self.rng.uniform(0.5, 2, channels).astype(np.float32))
        return self.node(
            "BatchNormalization", [x, *(f"{name}.{p}" for p in ("weight", "bias", "mean", "var"))], name=name
        )

    def linear(self, x, name, outs, ins):
        inputs = [x, self.weight(f"{name}.weight", outs, ins), self.weight(f"{name}.bias", outs)]
        return self.node("Gemm", inputs, name=name, transB=1)

    def done(self, value, shape):
        self.graph.nodes[-1] = self.graph.nodes[-1].replace(outputs=["output"])
        assert value != "output"
        self.graph.add_output("output", shape)
        return self.graph


def mlp(sizes=(16, 32, 32, 10), seed=0):
    b = Build(["N", sizes[0]], seed)
    x = "input"
    for i, (ins, outs) in enumerate(pairwise(sizes), 1):
        x = b.linear(x, f"fc{i}", outs, ins)
        x = b.node("Relu", [x]) if i < len(sizes) - 1 else x
    return b.done(x, ["N", sizes[-1]])


def run(graph, feed=None, seed=1):
    """The first output for random inputs, or given ones."""
    shapes = {i.name: [2 if not isinstance(d, int) else d for d in i.shape] for i in graph.inputs}
    rng = np.random.default_rng(seed)
    feed = feed or {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return pyflame_rt.InferenceSession(graph).run(None, feed)[0]
