"""Pruned weights on the wafer: lists of what is kept go round, and take fewer cycles than tiles."""

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.backends.wse.plan.predict import predict_scale
from pyflame_rt.backends.wse.simulate import simulate
from pyflame_rt.graph import Graph
from pyflame_rt.pruning import PruningConfig, WeightPruner
from tests.unit.backends.wse.running import check, feeds_for, planned

BLOCKS, ONE_OF_FOUR = PruningConfig.block_pruning(0.75, (8, 1)), PruningConfig.nm_sparsity(1, 4)


def layer(shape, width, *, seed=0):
    """A product with a constant, ``[out, in]`` as linear layers store it."""
    graph, depth = Graph("layer"), shape[-1]
    graph.add_input("x", list(shape))
    weight = np.random.default_rng(seed).standard_normal((width, depth), np.float32)
    if len(shape) == 2:
        graph.add_initializer("w", weight)
        graph.add_node("fc", "Gemm", ["x", "w"], ["y"], {"transB": 1})
    else:
        graph.add_initializer("w", np.ascontiguousarray(weight.T))
        graph.add_node("fc", "MatMul", ["x", "w"], ["y"])
    graph.add_output("y", None)
    return graph


def pruned(graph, config):
    return WeightPruner(config).prune(graph)


def lists(plan):
    return [k.kept.by for k in plan.kernels if getattr(k, "kept", None) is not None]


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("grid", [(2, 2), (3, 3), (3, 1)])
@pytest.mark.parametrize(("shape", "config", "by"), [((6, 40), BLOCKS, "rows"), ((42, 23), ONE_OF_FOUR, "elements")])
def test_lists_give_what_tiles_give(grid, shape, config, by, arch):
    """Sizes that the grid does not divide, weights of another width than depth."""
    graph = pruned(layer(shape, 16 if grid[1] != 3 else 24), config)
    plan = check(graph, grid, arch=arch)
    assert lists(plan) == [by]
    (name,) = [n for n in plan.constants if "kept" in n]
    assert plan.constants[name].nbytes < graph.get_initializer("w").numpy().nbytes
    assert "w" not in plan.constants


def test_a_list_may_be_empty_and_another_full():
    graph = layer((32, 32), 32)
    weight = graph.get_initializer("w").numpy().copy()
    weight[:, 6:] = 0  # the second row of PEs keeps nothing
    weight[:16, :3] = 0
    graph.add_initializer("w", weight)
    assert lists(check(graph, (2, 2)))


def test_infinities_meet_only_what_is_kept():
    graph = pruned(layer((16, 32), 16), ONE_OF_FOUR)
    feeds = feeds_for(graph)
    feeds["x"][3, 5] = np.inf
    kept = graph.get_initializer("w").numpy()[:, 5] != 0
    sources, manifest, plan = planned(graph, (2, 2), target="wse3")
    assert lists(plan) == ["elements"]
    got = simulate(sources, manifest, {**plan.constants, **feeds}, "wse3")["y"]
    np.testing.assert_array_equal(np.isfinite(got[3]), ~kept)
    assert np.isfinite(np.delete(got, 3, axis=0)).all()
    assert not np.isnan(got).any()


@pytest.mark.parametrize("config", [BLOCKS, ONE_OF_FOUR])
def test_batches_share_their_weights(config):
    assert lists(check(pruned(layer((3, 16, 32), 16), config), (2, 2)))


def test_a_convolution_that_slides_says_that_it_multiplies_zeros():
    graph = Graph("conv")
    graph.add_input("x", [1, 32, 6, 6])
    weight = np.random.default_rng(1).standard_normal((16, 32, 1, 1)).astype(np.float32)
    graph.add_initializer("w", weight)
    graph.add_node("conv", "Conv", ["x", "w"], ["y"])
    graph.add_output("y", None)
    graph = pruned(graph, ONE_OF_FOUR)
    assert "every PE slides all of them" in check(graph, (2, 2)).notes["conv"]


def explained(graph, **settings):
    options = {"rows": 2, "cols": 2, **settings}
    session = InferenceSession(graph, providers=[("WSEExecutionProvider", options)])
    session.run(None, feeds_for(graph))
    return session.explain().nodes[0].reason


def test_explain_says_what_was_done_and_why_not():
    assert explained(layer((8, 16), 8)) == "simulated"
    assert "lists by elements hold 25%" in explained(pruned(layer((32, 32), 32), ONE_OF_FOUR))
    few_rows = explained(pruned(layer((2, 32), 32), ONE_OF_FOUR))
    assert "75% of the weights are zero, taken as dense: lists of what is kept would take" in few_rows
    assert "a product with a vector" in explained(pruned(layer((1, 32), 32), ONE_OF_FOUR))
    assert "the grid is 1 x 2" in explained(pruned(layer((32, 32), 32), ONE_OF_FOUR), rows=1)
    assert not lists(planned(pruned(layer((32, 32), 32), ONE_OF_FOUR), (2, 2), products="broadcast")[2])


@pytest.mark.parametrize(
    ("rows", "config"), [(64, PruningConfig.block_pruning(0.75, (32, 1))), (64, ONE_OF_FOUR)], ids=["blocks", "1:4"]
)
def test_three_quarters_gone_take_at_least_a_third_less_cycles(rows, config):
    """A layer of 256 x 256 on 8 x 8 PEs, all of it simulated."""
    dense = layer((rows, 256), 256)
    cycles = [predict_scale(g, [(8, 8)]).grids[0].simulated_cycles for g in (dense, pruned(dense, config))]
    assert cycles[0] / cycles[1] >= 1.5


def test_what_does_not_fit_as_tiles_fits_as_lists():
    """Tiles of this layer need two passes over the host on 4 x 4 PEs."""
    dense = layer((64, 256), 256)
    whole = planned(dense, (4, 4))[2]
    assert whole.fold is not None
    assert whole.fold.passes == 2
    assert planned(pruned(dense, ONE_OF_FOUR), (4, 4))[2].fold is None


def test_predictions_count_every_pass():
    found = predict_scale(layer((64, 256), 256), [(4, 4)]).grids[0]
    assert abs(found.error) < 0.05


def test_lists_are_predicted_as_the_fullest_one_takes():
    found = predict_scale(pruned(layer((64, 64), 64), ONE_OF_FOUR), [(4, 4)]).grids[0]
    assert abs(found.error) < 0.05


def test_nothing_is_listed_without_optimisation():
    plan = planned(pruned(layer((32, 32), 32), ONE_OF_FOUR), (2, 2), optimize=False)[2]
    assert not lists(plan)
    assert not plan.notes
