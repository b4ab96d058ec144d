"""Random graphs: what is left after channels were taken out computes what setting them to zero computes."""

import warnings

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.pruning import PruningConfig, PruningCriterion, PruningWarning, WeightPruner, apply_masks
from tests.unit.pruning.nets import Build

EDGE = 4


class Random(Build):
    """A convolutional trunk of random blocks, and one of several heads."""

    def __init__(self, seed):
        super().__init__(["N", 4, EDGE, EDGE] if seed % 2 else [2, 4, EDGE, EDGE], seed)
        self.names = iter(f"l{i}" for i in range(10_000))
        self.tied = {}

    def pick(self, *values):
        return values[int(self.rng.integers(len(values)))]

    def layer(self, x, outs, ins, group=1):
        """A convolution, with or without bias and normalisation, its weight perhaps shared or turned round."""
        name, size = next(self.names), self.pick(1, 3)
        key = (outs, ins // group, size)
        weight = self.tied.get(key) if self.rng.random() < 0.2 else None
        weight = weight or self.weight(f"{name}.weight", *key, size)
        self.tied[key] = weight
        if self.rng.random() < 0.2:  # stored with its axes in another order
            self.weight(f"{name}.turned", ins // group, outs, size, size)
            weight = self.node("Transpose", [f"{name}.turned"], perm=[1, 0, 2, 3])
        inputs = [x, weight] + ([self.weight(f"{name}.bias", outs)] if self.rng.random() < 0.5 else [])
        x = self.node("Conv", inputs, name=name, pads=[size // 2] * 4, group=group)
        return self.norm(x, f"{name}.norm", outs) if self.rng.random() < 0.5 else x

    def act(self, x, width):
        kind = self.pick("Relu", "Sigmoid", "PRelu", "Tanh", "HardSwish", "Clip")
        if kind == "PRelu":
            return self.node(kind, [x, self.weight(f"{next(self.names)}.slope", width, 1, 1)])
        if kind == "Clip":
            self.graph.add_initializer("low", np.float32(-0.5))
            return self.node(kind, [x, "low"])
        return self.node(kind, [x])

    # Each block gets a value and its width, and gives another.

    def plain(self, x, width):
        outs = self.pick(4, 8, 12)
        return self.act(self.layer(x, outs, width), outs), outs

    def residual(self, x, width):
        y = self.layer(self.act(self.layer(x, 8, width), 8), width, 8)
        return self.node("Add", [x, y]), width

    def depthwise(self, x, width):
        times = self.pick(1, 2)
        return self.layer(x, width * times, width, group=width), width * times

    def grouped(self, x, width):
        groups = self.pick(2, 4)
        return self.layer(x, 8, width, group=groups), 8

    def concat(self, x, width):
        y = self.layer(x, 4, width)
        return self.node("Concat", self.pick([x, y], [y, x]), axis=1), width + 4

    def joined_residual(self, x, width):
        """Concatenation and residual at once: one side of the sum is made of two."""
        parts = [self.layer(x, width // 2, width) for _ in range(2)]
        return self.node("Add", [x, self.node("Concat", parts, axis=1)]), width

    def split(self, x, width):
        a, b = self.node("Split", [x], [f"{next(self.names)}_{k}" for k in "ab"], axis=1, num_outputs=2)
        gated = self.node("Mul", [a, self.node("Sigmoid", [b])])
        return gated, width // 2

    def sliced(self, x, width):
        name = next(self.names)
        given = [self.ints(f"{name}.{w}", [n]) for w, n in (("start", -width // 2), ("end", 10_000), ("axis", 1))]
        half = self.node("Slice", [x, *given])
        return self.node("Concat", [half, x], axis=1), width + (width // 2)

    def squeeze_excite(self, x, width):
        y = self.node("GlobalAveragePool", [x])
        y = self.node("Sigmoid", [self.layer(self.node("Relu", [self.layer(y, 4, width)]), width, 4)])
        return self.node("Mul", [x, y]), width

    def shuffle(self, x, width):
        groups, name = 2, next(self.names)
        apart = self.ints(f"{name}.apart", [self.pick(0, -1), groups, width // groups, EDGE, EDGE])
        x = self.node("Transpose", [self.node("Reshape", [x, apart])], perm=[0, 2, 1, 3, 4])
        return self.node("Reshape", [x, self.ints(f"{name}.back", [-1, width, EDGE, EDGE])]), width

    def padded(self, x, width):
        name = next(self.names)
        x = self.node("Pad", [x, self.ints(f"{name}.pads", [0, 0, 1, 1, 0, 0, 1, 1])])
        return self.node("AveragePool", [x], kernel_shape=[3, 3]), width

    def broadcast(self, x, width):
        return self.node("Mul", [x, self.weight(f"{next(self.names)}.scale", 1, width, 1, 1)]), width

    # Heads: from an image to [N, 5].

    def pooled(self, x, width):
        x = self.node("Flatten", [self.node("GlobalAveragePool", [x])])
        return self.linear(x, "fc", 5, width)

    def flat(self, x, width):
        whole = width * EDGE * EDGE
        match self.pick("flatten", "reshape", "computed"):
            case "flatten":
                x = self.node("Flatten", [x])
            case "reshape":
                x = self.node("Reshape", [x, self.ints("flat", [-1, whole])])
            case _:
                rows = self.node("Shape", [x], end=1)
                x = self.node("Reshape", [x, self.node("Concat", [rows, self.ints("rest", [-1])], axis=0)])
        self.weight("fc.weight", whole, 8)
        x = self.node("Relu", [self.node("MatMul", [x, "fc.weight"])])
        return self.linear(x, "out", 5, 8)

    def left_product(self, x, width):
        """The weight on the left: columns are rows."""
        x = self.node("Reshape", [x, self.ints("columns", [0, width, EDGE * EDGE])])
        x = self.node("Relu", [self.node("MatMul", [self.weight("left.weight", 8, width), x])])
        return self.linear(self.node("ReduceMean", [x, self.ints("over", [2])], keepdims=0), "out", 5, 8)

    def attention(self, x, width):
        """Heads whose size is worked out from the shape, as exporters write it."""
        heads, inner = 4, 16
        x = self.node("Reshape", [x, self.ints("tokens", [0, width, EDGE * EDGE])])
        x = self.node("Transpose", [x], perm=[0, 2, 1])
        written = self.pick("constant", "computed")

        def project(name):
            y = self.node("MatMul", [x, self.weight(f"{name}.weight", width, inner)])
            if written == "constant":
                shape = self.ints(f"{name}.shape", [0, 0, heads, inner // heads])
            else:
                rows = self.node("Shape", [y], end=2)
                whole = self.node("Shape", [y], start=2)
                each = self.node("Div", [whole, self.ints(f"{name}.by", [heads])])
                shape = self.node("Concat", [rows, self.ints(f"{name}.heads", [heads]), each], axis=0)
            return self.node("Transpose", [self.node("Reshape", [y, shape])], perm=[0, 2, 1, 3])

        q, k, v = (project(name) for name in "qkv")
        scores = self.node("Softmax", [self.node("MatMul", [q, self.node("Transpose", [k], perm=[0, 1, 3, 2])])])
        y = self.node("Transpose", [self.node("MatMul", [scores, v])], perm=[0, 2, 1, 3])
        back = self.ints("back", [0, 0, self.pick(inner, -1)])
        y = self.node("MatMul", [self.node("Reshape", [y, back]), self.weight("o.weight", inner, 8)])
        return self.linear(self.node("ReduceMean", [y, self.ints("over", [1])], keepdims=0), "out", 5, 8)


BLOCKS = [
    *("plain", "residual", "depthwise", "grouped", "concat", "joined_residual", "split", "sliced"),
    *("squeeze_excite", "shuffle", "padded", "broadcast"),
]


def random_graph(seed):
    b = Random(seed)
    x, width = b.plain("input", 4)
    for _ in range(int(b.rng.integers(1, 6))):
        x, width = getattr(b, b.pick(*BLOCKS))(x, width)
        if width % 4:
            x, width = b.layer(x, 8, width), 8
    x = getattr(b, b.pick("pooled", "flat", "left_product", "attention"))(x, width)
    return b.done(x, ["N", 5])


def compare(seed):
    graph = random_graph(seed)
    config = PruningConfig.structured_pruning(float(np.random.default_rng(seed).choice([0.25, 0.5, 0.9])))
    config.criterion = PruningCriterion.RANDOM if seed % 4 == 0 else PruningCriterion.MAGNITUDE
    config.seed = seed
    pruner = WeightPruner(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PruningWarning)
        narrowed = pruner.prune(graph)
        masked = apply_masks(graph, pruner.compute_masks(graph))
    x = np.random.default_rng(seed + 1).normal(size=(2, 4, EDGE, EDGE)).astype(np.float32)
    got, wanted, before = (InferenceSession(g).run(None, {"input": x})[0] for g in (narrowed, masked, graph))
    assert got.shape == before.shape
    scale = max(np.abs(wanted).max(), 1e-3)
    np.testing.assert_allclose(got / scale, wanted / scale, atol=2e-5, err_msg=f"seed {seed}")
    return pruner.get_stats()


@pytest.mark.parametrize("seed", range(40))
def test_narrowed_equals_masked(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_narrowed_equals_masked_often(part):
    removed = [bool(compare(1000 + 100 * part + k).removed_channels) for k in range(100)]
    assert sum(removed) > 95
