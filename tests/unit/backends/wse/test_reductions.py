"""Reductions, and what is composed of them: softmax and normalisation."""

import numpy as np
import pytest

from tests.unit.backends.wse.running import GRIDS, check, graph_of

OPS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("axes", [[0], [1], [0, 1], [-1]])
@pytest.mark.parametrize("op", OPS)
def test_reductions(op, axes, grid):
    keep = sum(axes) % 2
    check(graph_of(op, [(5, 7)], constants=[np.array(axes)], keepdims=keep), grid)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean"])
@pytest.mark.parametrize("grid", GRIDS)
def test_half_precision_is_summed_in_single(op, grid):
    check(graph_of(op, [(5, 7)], np.float16, constants=[np.array([1])]), grid)


@pytest.mark.parametrize("grid", [(1, 4), (4, 1), (2, 3)])
def test_vectors(grid):
    check(graph_of("ReduceSum", [(23,)], keepdims=0), grid)
    check(graph_of("Softmax", [(23,)]), grid)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_both_machines(arch):
    check(graph_of("ReduceMax", [(5, 7)], keepdims=0), (2, 3), arch=arch)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(axis, grid, dtype):
    plan = check(graph_of("Softmax", [(5, 7)], dtype, axis=axis), grid)
    assert len(plan.phases) == 1


@pytest.mark.parametrize("grid", GRIDS)
def test_three_dimensions(grid):
    check(graph_of("LogSoftmax", [(2, 5, 7)]), grid)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_normalisation(op, grid, dtype):
    shapes = [(5, 8), (8,), (8,)] if op[0] == "L" else [(5, 8), (8,)]
    plan = check(graph_of(op, shapes, dtype), grid, loose=1e-4 if dtype == np.float32 else 1e-2)
    assert len(plan.phases) == 1
