"""Channels and heads are really removed: what is left computes what masking computes."""

import numpy as np
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt.graph.dim import symbol
from pyflame_rt.graph.errors import InputError
from pyflame_rt.pruning import PruningConfig, PruningCriterion, PruningWarning, WeightPruner, apply_masks
from pyflame_rt.pruning.coupling import NotFollowed, analyse, components
from pyflame_rt.pruning.layout_rules import regroup
from tests.unit.pruning.nets import Build, mlp, run


def residual():
    b = Build(["N", 3, 8, 8])
    x = b.node("Relu", [b.norm(b.conv("input", "stem", 8, 3), "norm", 8)])
    y = b.conv(b.node("Relu", [b.conv(x, "a", 12, 8)]), "b", 8, 12)
    x = b.node("Add", [x, y])
    x = b.node("Flatten", [b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])])
    return b.done(b.linear(x, "fc", 5, 8 * 16), ["N", 5])


def dense():
    """Concatenation, and a split of what was joined."""
    b = Build(["N", 3, 4, 4])
    x = b.conv("input", "stem", 6, 3)
    y = b.conv(b.node("Relu", [x]), "grow", 4, 6)
    joined = b.node("Concat", [x, y], axis=1)
    left, right = b.node("Split", [joined, b.ints("parts", [6, 4])], ["left", "right"], axis=1)
    both = b.node("Add", [b.conv(left, "l", 8, 6), b.conv(right, "r", 8, 4)])
    x = b.node("GlobalAveragePool", [both])
    return b.done(b.linear(b.node("Flatten", [x]), "fc", 5, 8), ["N", 5])


def grouped():
    """Depthwise and grouped convolutions."""
    b = Build(["N", 4, 6, 6])
    x = b.conv("input", "wide", 8, 4, size=1)
    x = b.node("Relu", [b.conv(x, "deep", 8, 8, group=8)])
    x = b.conv(x, "point", 8, 8, size=1)
    x = b.conv(x, "groups", 8, 8, group=2)
    x = b.node("ReduceMean", [x, b.ints("over", [2, 3])], keepdims=0)
    return b.done(b.linear(x, "fc", 5, 8), ["N", 5])


def attention(target="constant"):
    """Two heads of four, with the sizes of the reshape written down or computed."""
    b = Build(["N", 6, 8])

    def project(name):
        x = b.node("MatMul", ["input", b.weight(f"{name}.weight", 8, 16)])
        x = b.node("Add", [x, b.weight(f"{name}.bias", 16)])
        if target == "constant":
            shape = b.ints(f"{name}.shape", [0, 6, 4, 4])
        else:
            rows = b.node("Shape", ["input"], end=2)
            shape = b.node("Concat", [rows, b.ints(f"{name}.heads", [4, 4])], axis=0)
        return b.node("Transpose", [b.node("Reshape", [x, shape])], perm=[0, 2, 1, 3])

    q, k, v = (project(name) for name in "qkv")
    scores = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 1, 3, 2])])
    mixed = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), v])
    flat = b.node("Reshape", [b.node("Transpose", [mixed], perm=[0, 2, 1, 3]), b.ints("back", [0, 6, 16])])
    return b.done(b.node("MatMul", [flat, b.weight("o.weight", 16, 8)]), ["N", 6, 8])


def packed():
    """One weight for three parts that slices take apart."""
    b = Build(["N", 8])
    weight = b.weight("in.weight", 24, 8)
    parts = []
    for i in range(3):
        ends = [b.ints(f"{word}{i}", [n]) for word, n in (("start", 8 * i), ("end", 8 * i + 8))]
        rows = b.node("Slice", [weight, *ends, b.ints(f"axis{i}", [0])])
        parts.append(b.node("MatMul", ["input", b.node("Transpose", [rows], perm=[1, 0])]))
    x = b.node("Mul", [b.node("Tanh", [parts[0]]), b.node("Add", parts[1:])])
    return b.done(b.linear(x, "out", 4, 8), ["N", 4])


def reshaped():
    """A flattening by Reshape, with the batch worked out."""
    b = Build(["N", 2, 4, 4])
    x = b.node("Relu", [b.conv("input", "c", 6, 2)])
    x = b.node("Reshape", [x, b.ints("flat", [-1, 96])])
    return b.done(b.linear(x, "fc", 3, 96), ["N", 3])


def lstm():
    """A recurrent layer reads channels, and keeps the size of its state."""
    b = Build(["T", 2, 6])
    x = b.node("MatMul", ["input", b.weight("in.weight", 6, 8)])
    weights = [b.weight("rnn.w", 1, 16, 8), b.weight("rnn.r", 1, 16, 4)]
    y, _ = b.node("LSTM", [x, *weights], ["y", "h"], hidden_size=4)
    last = b.node("Squeeze", [y, b.ints("axes", [1])])
    return b.done(b.node("Relu", [last]), ["T", 2, 4])


def shared_keys(mask_heads=8):
    """Eight heads of queries share two of keys and values, with a bias for each head, as ONNX's Attention has it."""
    b = Build(["N", 6, 8])

    def project(name, heads):
        x = b.node("MatMul", ["input", b.weight(f"{name}.weight", 8, 4 * heads)])
        x = b.node("Reshape", [x, b.ints(f"{name}.shape", [0, 6, heads, 4])])
        return b.node("Transpose", [x], perm=[0, 2, 1, 3])

    q, k, v = project("q", 8), project("k", 2), project("v", 2)
    x = b.node("Attention", [q, k, v, b.weight("slopes", 1, mask_heads, 6, 6)], ["mixed", "keys"], is_causal=1)[0]
    flat = b.node("Reshape", [b.node("Transpose", [x], perm=[0, 2, 1, 3]), b.ints("back", [0, 6, 32])])
    return b.done(b.node("MatMul", [flat, b.weight("o.weight", 32, 8)]), ["N", 6, 8])


def repeated_keys():
    """The same, with the keys and values repeated by expansion to computed sizes."""
    b = Build(["N", 6, 8])

    def project(name, heads):
        x = b.node("MatMul", ["input", b.weight(f"{name}.weight", 8, 4 * heads)])
        x = b.node("Reshape", [x, b.ints(f"{name}.shape", [-1, 6, heads, 4])])
        x = b.node("Transpose", [x], perm=[0, 2, 1, 3])
        if heads == 4:
            return x
        rows = b.node("Shape", ["input"], end=1)
        wide = b.node("Concat", [rows, b.ints(f"{name}.many", [2, 2, 6, 4])], axis=0)
        x = b.node("Expand", [b.node("Unsqueeze", [x, b.ints(f"{name}.at", [2])]), wide])
        return b.node("Reshape", [x, b.node("Concat", [rows, b.ints(f"{name}.all", [4, 6, 4])], axis=0)])

    q, k, v = project("q", 4), project("k", 2), project("v", 2)
    scores = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 1, 3, 2])])
    x = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), v])
    flat = b.node("Reshape", [b.node("Transpose", [x], perm=[0, 2, 1, 3]), b.ints("back", [0, 6, 16])])
    return b.done(b.node("MatMul", [flat, b.weight("o.weight", 16, 8)]), ["N", 6, 8])


def places():
    """Where the largest pixel of each channel is, beside the pixel itself."""
    b = Build(["N", 3, 4, 4])
    x = b.node("Reshape", [b.conv("input", "c", 6, 3), b.ints("line", [0, 6, 16])])
    x = b.node("CumSum", [x, b.ints("along", 2)])
    where = b.node("Cast", [b.node("ArgMax", [x], axis=2, keepdims=0)], to=1)
    x = b.node("Add", [where, b.node("ReduceMax", [x, b.ints("over", [2])], keepdims=0)])
    return b.done(b.linear(x, "fc", 5, 6), ["N", 5])


def unread():
    """Second outputs and nodes that nobody reads, as exporters leave them."""
    b = Build(["N", 3, 8, 8])
    x, _ = b.node("MaxPool", [b.conv("input", "c", 6, 3)], ["pooled", "where"], kernel_shape=[2, 2], strides=[2, 2])
    b.node("ArgMax", [x], axis=1)
    return b.done(b.linear(b.node("Flatten", [x]), "fc", 5, 96), ["N", 5])


def computed():
    """Sizes of slices and reshapes that are worked out from the number of channels."""
    b = Build(["N", 3, 4, 4])
    x = b.conv("input", "c", 8, 3)
    wide = b.node("Shape", [x], start=1, end=2)
    half = b.node("Div", [wide, b.ints("two", [2])])
    left = b.node("Slice", [x, b.ints("zero", [0]), half, b.ints("axis", [1])])
    right = b.node("Slice", [x, half, wide, b.ints("axis2", [1])])
    x = b.node("Mul", [left, b.node("Sigmoid", [right])])
    size = b.node("Concat", [b.node("Shape", [x], end=1), b.node("Mul", [half, b.ints("pixels", [16])])], axis=0)
    return b.done(b.linear(b.node("Reshape", [x, size]), "fc", 5, 64), ["N", 5])


NETS = {
    "residual": residual,
    "dense": dense,
    "grouped": grouped,
    "attention": attention,
    "attention with computed sizes": lambda: attention("computed"),
    "packed": packed,
    "reshaped": reshaped,
    "mlp": mlp,
    "lstm": lstm,
    "shared keys": shared_keys,
    "one bias for all heads": lambda: shared_keys(1),
    "repeated keys": repeated_keys,
    "places": places,
    "unread": unread,
    "computed": computed,
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_narrowed_graph_computes_what_a_masked_one_does(name, share, tmp_path):
    graph = NETS[name]()
    pruner = WeightPruner(PruningConfig.structured_pruning(share))
    narrowed = pruner.prune(graph)
    masked = apply_masks(graph, pruner.compute_masks(graph))
    got, wanted = run(narrowed), run(masked)
    assert got.shape == run(graph).shape
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert not np.allclose(got, run(graph), atol=1e-4), "nothing was pruned"
    stats = pruner.get_stats()
    assert stats.removed_channels
    assert stats.pruned_size_bytes < stats.original_size_bytes
    path = tmp_path / "narrowed.onnx"
    pyflame_rt.export_onnx(narrowed, path)
    feed = {"input": np.random.default_rng(1).normal(size=[2, *graph.inputs[0].shape[1:]]).astype(np.float32)}
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)[0]
    np.testing.assert_allclose(got, theirs, rtol=1e-4, atol=1e-5)


def test_coupled_layers_lose_the_same_channels():
    pruned = WeightPruner(PruningConfig.structured_pruning(0.5)).prune(residual())
    shapes = {name: list(tensor.shape) for name, tensor in pruned.initializers.items()}
    assert shapes["stem.weight"] == [4, 3, 3, 3]
    assert shapes["norm.mean"] == [4]
    assert shapes["a.weight"] == [6, 4, 3, 3]
    assert shapes["b.weight"] == [4, 6, 3, 3]
    assert shapes["fc.weight"] == [5, 64]


def test_heads_go_whole():
    pruned = WeightPruner(PruningConfig.structured_pruning(0.5)).prune(attention())
    assert list(pruned.get_initializer("q.weight").shape) == [8, 8]  # two heads of four are left
    assert list(pruned.get_initializer("o.weight").shape) == [8, 8]
    (heads,) = [f for f in analyse(attention())[1] if f.heads]
    assert len(heads.channels) == 4
    assert set(heads.owners) == {"q.weight", "k.weight", "v.weight"}


def test_statistics_that_nobody_reads_are_no_reason_to_keep_channels():
    """A normalisation over channels that go is one over those that stay: it equals no mask."""
    b = Build(["N", 4])
    inputs = [b.linear("input", "in", 8, 4), b.weight("n.weight", 8), b.weight("n.bias", 8)]
    x, *_ = b.node("LayerNormalization", inputs, ["normal", "mean", "spread"], axis=-1)
    pruned = WeightPruner(PruningConfig.structured_pruning(0.5)).prune(b.done(b.linear(x, "fc", 5, 8), ["N", 5]))
    names = ("in.weight", "in.bias", "n.weight", "n.bias", "fc.weight", "fc.bias")
    w, c, g, d, v, e = (pruned.initializers[name].raw() for name in names)
    assert (w.shape, g.shape, v.shape) == ((4, 4), (4,), (5, 4))
    x = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    y = x @ w.T + c
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-5) * g + d
    np.testing.assert_allclose(run(pruned, {"input": x}), y @ v.T + e, rtol=1e-5, atol=1e-5)


def test_all_heads_that_share_keys_go_with_them():
    pruned = WeightPruner(PruningConfig.structured_pruning(0.5)).prune(shared_keys())
    shapes = [pruned.get_initializer(f"{name}.weight").shape for name in "qkvo"]
    assert [list(shape) for shape in shapes] == [[8, 16], [8, 4], [8, 4], [16, 8]]
    assert list(pruned.get_initializer("slopes").shape) == [1, 4, 6, 6]


def test_the_weakest_channels_go():
    graph = mlp((4, 6, 3))
    strength = np.array([5, 1, 4, 0.5, 3, 0.1], np.float32)
    for name, axis in (("fc1.weight", 0), ("fc2.weight", 1)):
        shape = graph.get_initializer(name).numpy().shape
        scale = strength.reshape([-1 if i == axis else 1 for i in range(2)])
        graph.add_initializer(name, np.broadcast_to(scale, shape).astype(np.float32).copy())
    pruned = WeightPruner(PruningConfig.structured_pruning(0.5)).prune(graph)
    assert pruned.get_initializer("fc1.weight").numpy()[:, 0].tolist() == [5, 4, 3]
    assert pruned.get_initializer("fc2.weight").numpy()[0].tolist() == [5, 4, 3]


def test_excluded_and_single_targets():
    config = PruningConfig.structured_pruning(0.5)
    config.add_exclude_layer("fc1")
    config.per_layer_sparsity = {"fc2.weight": 0.75}
    pruned = WeightPruner(config).prune(mlp())
    assert list(pruned.get_initializer("fc1.weight").shape) == [32, 16]
    assert list(pruned.get_initializer("fc2.weight").shape) == [8, 32]


def test_coupled_layers_cannot_have_two_targets():
    config = PruningConfig.structured_pruning(0.5)
    config.per_layer_sparsity = {"stem": 0.25, "b": 0.75}
    with pytest.raises(InputError, match=r"coupled.*stem: 0.25, b: 0.75"):
        WeightPruner(config).prune(residual())


def test_widths_are_rounded_up():
    config = PruningConfig.structured_pruning(0.6)
    config.round_to = 8
    pruned = WeightPruner(config).prune(mlp())
    assert list(pruned.get_initializer("fc1.weight").shape) == [16, 16]


@pytest.mark.parametrize("criterion", [PruningCriterion.LAMP, PruningCriterion.RANDOM])
def test_other_criteria(criterion):
    config = PruningConfig.structured_pruning(0.5)
    config.criterion = criterion
    pruner = WeightPruner(config)
    pruned = pruner.prune(mlp())
    removed = sum(n for n, _ in pruner.get_stats().removed_channels.values())
    assert removed == 32
    assert run(pruned).shape == (2, 10)


def mixing():
    """A normalisation over neighbouring channels between two convolutions."""
    b = Build(["N", 3, 4, 4])
    x = b.node("LRN", [b.conv("input", "in", 8, 3)], name="mixes", size=3)
    x = b.node("GlobalAveragePool", [b.conv(x, "out", 5, 8)])
    return b.done(b.node("Flatten", [x]), ["N", 5])


def test_what_cannot_be_narrowed_is_zeroed_with_a_warning():
    graph = mixing()
    pruner = WeightPruner(PruningConfig.structured_pruning(0.5))
    with pytest.warns(PruningWarning, match=r"4 of 8 channels of in\.weight are set to zero.*LRN 'mixes'"):
        pruned = pruner.prune(graph)
    weight = pruned.get_initializer("in.weight").numpy()
    assert weight.shape == (8, 3, 3, 3)
    assert (np.abs(weight).sum(axis=(1, 2, 3)) == 0).sum() == 4
    assert run(pruned).shape == run(graph).shape


def test_outputs_keep_their_width():
    b = Build(["N", 4])
    graph = b.done(b.linear("input", "only", 6, 4), ["N", 6])
    pruner = WeightPruner(PruningConfig.structured_pruning(0.5))
    assert run(pruner.prune(graph)).shape == (2, 6)
    assert pruner.get_stats().actual_sparsity() == 0


def test_components_are_those_of_a_plain_search():
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(1, 60))
        edges = rng.integers(0, n, size=(int(rng.integers(0, 80)), 2))
        found = components(n, [(edges[:, 0].copy(), edges[:, 1].copy())])
        groups = {i: {i} for i in range(n)}
        for a, b in edges:
            joined = groups[a] | groups[b]
            groups.update(dict.fromkeys(joined, joined))
        assert found.tolist() == [min(groups[i]) for i in range(n)]


def test_groups_of_sizes_that_are_not_known():
    n = symbol("N")
    assert regroup([n, 6, 32], [6 * n, 32]) == [([0, 1], [0]), ([2], [1])]
    assert regroup([6 * n, 32], [6, n, 4, 8]) == [([0], [0, 1]), ([1], [2, 3])]
    with pytest.raises(NotFollowed, match="not known"):
        regroup([None, 32], [None, 4, 8])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([2, 3, 4], [24]),
        ([6, 2, 3], [2, 3, 6]),
        ([6, 4], [2, 3, 4]),
        ([4, 12, 3], [4, 3, 12]),
        ([1, 5], [5, 1]),
        ([5], [1, 5, 1]),
    ],
)
def test_groups_of_a_reshape_hold_the_same_elements(before, after):
    groups = regroup(before, after)
    assert [i for left, _ in groups for i in left] == list(range(len(before)))
    assert [j for _, right in groups for j in right] == list(range(len(after)))
    for left, right in groups:
        assert np.prod([before[i] for i in left]) == np.prod([after[j] for j in right])
