"""Patterns, criteria, schedules and settings of the pruner."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pyflame_rt
from pyflame_rt import DType, pruning
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.pruning import PruningConfig, PruningCriterion, PruningGranularity, PruningSchedule, WeightPruner
from pyflame_rt.pruning.patterns import block_keep, nm_keep
from pyflame_rt.pruning.scores import keep_largest, prunable_weights, score
from pyflame_rt.quantization import QuantConfig, Quantizer
from pyflame_rt.quantization.operator_form import to_operators
from tests.unit.pruning.nets import Build, mlp, run


def weights(graph):
    return {name: graph.get_initializer(name).numpy() for name in prunable_weights(graph)}


@given(st.integers(0, 2**31), st.floats(0, 0.99))
def test_exactly_the_smallest_go(seed, share):
    values = np.random.default_rng(seed).integers(0, 20, size=(7, 9)).astype(float)
    keep = keep_largest(values, share)
    assert (~keep).sum() == round(share * 63)
    if keep.any() and not keep.all():
        assert values[keep].min() >= values[~keep].max()


@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 8), st.integers(1, 30))
def test_n_of_m(seed, a, b, columns):
    n, m = sorted((a, b))
    values = np.random.default_rng(seed).random((3, columns))
    keep = nm_keep(values, n, m)
    for row, kept in zip(values, keep, strict=True):
        for start in range(0, columns, m):
            part, mine = row[start : start + m], kept[start : start + m]
            assert mine.sum() == min(n, len(part))
            assert sorted(part[mine]) == sorted(part)[len(part) - mine.sum() :]


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 5), st.floats(0, 0.95))
def test_blocks(seed, high, wide, share):
    values = np.random.default_rng(seed).random((11, 13))
    keep = block_keep(values, share, [high, wide])
    blocks = [
        (keep[i : i + high, j : j + wide], values[i : i + high, j : j + wide].mean())
        for i in range(0, 11, high)
        for j in range(0, 13, wide)
    ]
    assert all(block.all() or not block.any() for block, _ in blocks)
    gone = [mean for block, mean in blocks if not block.any()]
    stay = [mean for block, mean in blocks if block.all()]
    assert len(gone) == round(share * len(blocks))
    assert not gone or not stay or max(gone) <= min(stay)


def test_the_graph_that_is_pruned_stays_as_it_is():
    graph = mlp()
    before = {name: array.copy() for name, array in weights(graph).items()}
    for config in (PruningConfig(), PruningConfig.structured_pruning(0.5), PruningConfig.nm_sparsity()):
        WeightPruner(config).prune(graph)
    for name, array in weights(graph).items():
        np.testing.assert_array_equal(array, before[name])


def test_stats_count_what_is_zero():
    pruner = WeightPruner(PruningConfig.magnitude_pruning(0.75))
    pruned = pruner.prune(mlp())
    found = weights(pruned)
    zeros, total = sum(int((a == 0).sum()) for a in found.values()), sum(a.size for a in found.values())
    stats = pruner.get_stats()
    assert stats.actual_sparsity() == zeros / total
    assert stats.compression_ratio() == pytest.approx(total / (total - zeros))
    assert stats.per_layer_sparsity == {name: float((a == 0).mean()) for name, a in found.items()}
    assert pruning.analyze_sparsity(pruned)["fc1.weight"].zeros == int((found["fc1.weight"] == 0).sum())


def test_lamp_is_its_definition():
    weight = np.random.default_rng(0).normal(size=(4, 5))
    config = PruningConfig(criterion=PruningCriterion.LAMP)
    found = score("w", weight, config, None)
    for at in np.ndindex(weight.shape):
        own = weight[at] ** 2
        assert found[at] == pytest.approx(own / (weight**2)[weight**2 >= own].sum())


def test_a_global_scope_reaches_the_target_over_all_layers():
    graph = mlp()
    graph.add_initializer("fc1.weight", graph.get_initializer("fc1.weight").numpy() * 0.01)
    config = PruningConfig(target_sparsity=0.4, scope="global")
    pruner = WeightPruner(config)
    pruner.prune(graph)
    stats = pruner.get_stats()
    assert stats.actual_sparsity() == pytest.approx(0.4, abs=1e-3)
    assert stats.per_layer_sparsity["fc1.weight"] > 0.9


def torch_gradients(graph, x, y):
    w = {name: torch.tensor(tensor.numpy(), requires_grad=True) for name, tensor in graph.initializers.items()}
    h = torch.tensor(x)
    for i in (1, 2, 3):
        h = h @ w[f"fc{i}.weight"].T + w[f"fc{i}.bias"]
        h = torch.relu(h) if i < 3 else h
    torch.nn.functional.cross_entropy(h, torch.tensor(y)).backward()
    return {name: value.grad.numpy() for name, value in w.items()}


@pytest.mark.parametrize("criterion", [PruningCriterion.TAYLOR, PruningCriterion.MOVEMENT])
def test_gradients_of_data_are_those_of_torch(criterion):
    graph, rng = mlp(), np.random.default_rng(3)
    x, y = rng.normal(size=(24, 16)).astype(np.float32), rng.integers(0, 10, 24)
    config = PruningConfig(criterion=criterion, target_sparsity=0.5)
    by_data = WeightPruner(config).compute_masks(graph, data=(x, y))
    by_torch = WeightPruner(config).compute_masks(graph, gradients=torch_gradients(graph, x, y))
    same = [np.mean(by_data[name].numpy() == by_torch[name].numpy()) for name in by_torch]
    assert min(same) > 0.99  # ties at zero gradients aside
    config.granularity = PruningGranularity.STRUCTURED
    assert run(WeightPruner(config).prune(graph, data=(x, y))).shape == (2, 10)


@pytest.mark.parametrize("criterion", [PruningCriterion.TAYLOR, PruningCriterion.MOVEMENT])
@pytest.mark.parametrize("granularity", [PruningGranularity.UNSTRUCTURED, PruningGranularity.STRUCTURED])
def test_without_gradients_there_is_no_silent_magnitude(criterion, granularity):
    config = PruningConfig(criterion=criterion, granularity=granularity)
    with pytest.raises(InputError, match="pass gradients="):
        WeightPruner(config).prune(mlp())


def test_gradients_must_fit():
    config = PruningConfig(criterion=PruningCriterion.TAYLOR)
    gradients = dict.fromkeys(("fc1.weight", "fc2.weight", "fc3.weight"), np.zeros(3))
    with pytest.raises(ShapeMismatchError, match=r"fc1\.weight"):
        WeightPruner(config).prune(mlp(), gradients=gradients)


def test_names_of_layers():
    config = PruningConfig(target_sparsity=0.5, per_layer_sparsity={"fc1.weight": 0.25, "fc2": 0.75})
    config.add_exclude_layer("fc3")
    pruner = WeightPruner(config)
    pruner.prune(mlp())
    assert pruner.get_stats().per_layer_sparsity == {"fc1.weight": 0.25, "fc2.weight": 0.75, "fc3.weight": 0.0}


def test_a_layer_that_is_not_there():
    config = PruningConfig()
    config.add_exclude_layer("classifier")
    with pytest.raises(InputError, match=r"no layer .* 'classifier'; weights: fc1\.weight"):
        WeightPruner(config).prune(mlp())


@pytest.mark.parametrize(
    "changes",
    [
        {"target_sparsity": 1.0},
        {"target_sparsity": -0.1},
        {"target_sparsity": float("nan")},
        {"target_sparsity": "half"},
        {"initial_sparsity": 2},
        {"per_layer_sparsity": {"fc1": 1.5}},
        {"n_value": 5},
        {"n_value": 0},
        {"block_size": [4]},
        {"block_size": [0, 4]},
        {"end_step": -1},
        {"pruning_frequency": 0},
        {"scope": "all"},
        {"criterion": "magnitude"},
        {"power": 0},
        {"round_to": 0},
    ],
)
def test_settings_that_mean_nothing(changes):
    with pytest.raises(InputError):
        WeightPruner(PruningConfig(**changes))


def test_only_graphs_are_pruned():
    with pytest.raises(InputError, match="takes a Graph"):
        WeightPruner(PruningConfig()).prune("model.onnx")


@pytest.mark.parametrize("schedule", list(PruningSchedule))
def test_schedules(schedule):
    config = PruningConfig(0.9, schedule=schedule, initial_sparsity=0.1, start_step=10, end_step=110, power=2.0)
    expected = {
        PruningSchedule.ONE_SHOT: lambda t: 0.9,
        PruningSchedule.ITERATIVE: lambda t: 0.1 + 0.8 * t,
        PruningSchedule.CUBIC: lambda t: 0.9 - 0.8 * (1 - t) ** 3,
        PruningSchedule.POLYNOMIAL: lambda t: 0.9 - 0.8 * (1 - t) ** 2,
    }[schedule]
    pruner = WeightPruner(config)
    for t in (0, 0.25, 0.5, 1):
        assert pruner.get_sparsity_at_step(10 + int(100 * t)) == pytest.approx(expected(t))
    assert pruner.get_sparsity_at_step(0) == pytest.approx(0.1)
    assert pruner.get_sparsity_at_step(10_000) == pytest.approx(0.9)


@pytest.mark.parametrize("schedule", PruningSchedule)
@pytest.mark.parametrize("span", [0, 1, 10])
def test_schedules_are_exact_at_their_ends(schedule, span):
    config = PruningConfig(0.8, schedule=schedule, start_step=10, end_step=10 + span, initial_sparsity=0.2)
    assert [config.sparsity_at(step) for step in (-5, 0, 9)] == [0.2] * 3
    assert [config.sparsity_at(step) for step in (10 + span, 11 + span, 10**9)] == [0.8] * 3
    shares = [config.sparsity_at(step) for step in range(9, 22)]
    assert shares == sorted(shares)


def test_tables_and_biases_are_no_weights_of_layers():
    b = Build(["N", 3])
    b.graph.inputs[0].dtype = pyflame_rt.DType.Int64
    x = b.node("Gather", [b.weight("table", 5, 4), "input"])
    x = b.node("Add", [x, b.weight("places", 3, 4)])
    graph = b.done(b.node("MatMul", [x, b.weight("out", 4, 2)]), ["N", 3, 2])
    assert list(prunable_weights(graph)) == ["out"]


def test_single_tensors():
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    tensor = pyflame_rt.from_numpy(weight)
    assert (pruning.magnitude_prune(tensor, 0.5).numpy() == 0).sum() == 32
    assert (np.abs(pruning.structured_prune(weight, 0.25, axis=1)).sum(axis=0) == 0).sum() == 2
    assert ((pruning.nm_sparsity_prune(weight).reshape(-1, 4) != 0).sum(axis=1) == 2).all()
    assert (pruning.block_prune(weight, 0.75) == 0).sum() == 48
    with pytest.raises(InputError):
        pruning.magnitude_prune(weight, 1.0)
    with pytest.raises(InputError):
        pruning.structured_prune(weight, 0.5, axis=2)


def test_sensitivity_of_layers(tmp_path):
    graph = mlp()
    x = np.random.default_rng(5).normal(size=(64, 16)).astype(np.float32)
    truth = run(graph, {"input": x}).argmax(axis=1)

    def accuracy(candidate):
        return float((run(candidate, {"input": x}).argmax(axis=1) == truth).mean())

    report = pruning.sensitivity_scan(graph, accuracy, sparsities=[0.2, 0.95])
    assert report.baseline == 1.0
    assert set(report.scores) == {"fc1.weight", "fc2.weight", "fc3.weight"}
    assert all(few > many for few, many in report.scores.values())
    assert set(report.suggest(0.0).values()) <= {0.0, 0.2}
    picture = report.plot(tmp_path / "scan.svg")
    assert picture.count("<polyline") == 3
    assert (tmp_path / "scan.svg").read_text("utf-8") == picture
    channels = pruning.sensitivity_scan(graph, accuracy, PruningConfig.structured_pruning(), [0.5])
    assert set(channels.scores) == {"fc1.weight", "fc2.weight"}  # the last layer is the output
    kept = pruning.sensitivity_scan(graph, accuracy, PruningConfig(exclude_layers=["fc1", "fc3"]), [0.5])
    assert set(kept.scores) == {"fc2.weight"}  # a prefix means what it does when pruning
    with pytest.raises(InputError, match="measure is a function"):
        pruning.sensitivity_scan(graph, (x, truth))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"granularity": PruningGranularity.NM, "per_layer_sparsity": {"fc1": 0.2}},
            "per_layer_sparsity means nothing",
        ),
        ({"granularity": PruningGranularity.NM, "schedule": PruningSchedule.CUBIC}, "no steps between"),
        ({"granularity": PruningGranularity.NM, "scope": "global"}, "each layer by itself"),
        ({"granularity": PruningGranularity.BLOCK, "scope": "global"}, "each layer by itself"),
    ],
)
def test_settings_that_a_pattern_would_ignore(changes, message):
    with pytest.raises(InputError, match=message):
        WeightPruner(dataclasses.replace(PruningConfig(), **changes))


def test_shares_may_be_numbers_of_numpy():
    share = np.float32(0.5)
    pruned = WeightPruner(PruningConfig.magnitude_pruning(share)).prune(mlp(), sparsity=share)
    assert all((w == 0).mean() == 0.5 for w in weights(pruned).values())


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 3, "half"])
def test_a_share_that_is_none(sparsity):
    with pytest.raises(InputError, match="at least 0 and below 1"):
        WeightPruner().prune(mlp(), sparsity=sparsity)


@pytest.mark.parametrize("granularity", [PruningGranularity.UNSTRUCTURED, PruningGranularity.STRUCTURED])
def test_quantized_weights_are_refused_by_name(granularity):
    graph = quantized(mlp())
    with pytest.raises(InputError, match=r"quantized weights \(.*prune the graph first"):
        WeightPruner(PruningConfig(granularity=granularity)).prune(graph)


@pytest.mark.parametrize("form", ["fp16", "bfloat16", "operators"])
def test_other_forms_of_few_bits_are_refused_by_name(form):
    """They were left as they are, as if there were nothing to prune."""
    if form == "operators":
        graph = to_operators(quantized(mlp()))
    else:
        graph = Quantizer(getattr(QuantConfig, form)()).apply(mlp()).quantized_graph
    with pytest.raises(InputError, match=r"quantized weights \(.*prune the graph first"):
        WeightPruner(PruningConfig.magnitude_pruning(0.5)).prune(graph)


@pytest.mark.parametrize("config", [PruningConfig.structured_pruning(0.5), PruningConfig.block_pruning(0.75)])
def test_pruned_and_quantized_together(config):
    graph = mlp()
    pruned = WeightPruner(config).prune(graph)
    both = quantized(pruned)
    feed = {"input": np.random.default_rng(3).normal(size=(64, 16)).astype(np.float32)}
    got, wanted = run(both, feed), run(pruned, feed)
    assert np.linalg.norm(got - wanted) < 0.05 * np.linalg.norm(wanted)
    if config.granularity is PruningGranularity.BLOCK:  # a zero stays one
        before = pruned.get_initializer("fc2.weight").numpy()
        stored = [t.numpy() for t in both.initializers.values() if t.ndim == 2 and t.dtype is DType.Int8]
        assert any(s.shape == before.shape and not s[before == 0].any() for s in stored)


def quantized(graph):
    rng = np.random.default_rng(0)
    feeds = [{"input": rng.normal(size=(32, 16)).astype(np.float32)} for _ in range(4)]
    return Quantizer(QuantConfig()).quantize_with_calibration(graph, feeds).quantized_graph
