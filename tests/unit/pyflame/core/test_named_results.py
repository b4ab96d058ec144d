"""Small things that people who know torch reach for."""

import numpy as np
import pytest
import torch

import pyflame as pf


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median"])
def test_values_and_indices_have_names(name):
    data = np.array([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]], np.float32)
    options = {"sort": {}, "topk": {"k": 2}, "kthvalue": {"k": 2}, "median": {"dim": 1}}[name]
    ours = getattr(pf.tensor(data), name)(**options)
    theirs = getattr(torch.from_numpy(data), name)(**options)
    assert ours.values.tolist() == theirs.values.tolist()
    assert ours.indices.tolist() == theirs.indices.tolist()


def test_both_ends_have_names():
    found = pf.tensor([3.0, 1.0, 2.0]).aminmax()
    assert (found.min.item(), found.max.item()) == (1.0, 3.0)


def test_named_results_pass_through_compiled_functions():
    top = pf.compile(lambda x: pf.topk(x, 1))
    for _ in range(2):
        assert top(pf.tensor([1.0, 7.0])).indices.tolist() == [1]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_of_floats(name):
    ours, theirs = pf.finfo(name), torch.finfo(getattr(torch, name))
    for field in ("eps", "min", "max", "tiny", "bits", "smallest_normal"):
        assert float(getattr(ours, field)) == float(getattr(theirs, field))
    assert pf.finfo().bits == 32
    with pytest.raises(TypeError, match="use finfo"):
        pf.iinfo(name)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8"])
def test_limits_of_integers(name):
    assert (pf.iinfo(name).min, pf.iinfo(name).max) == (
        torch.iinfo(getattr(torch, name)).min,
        torch.iinfo(getattr(torch, name)).max,
    )
    with pytest.raises(TypeError, match="use iinfo"):
        pf.finfo(name)


def test_strides_and_memory_of_torch():
    assert pf.zeros(2, 3, 4).stride() == torch.zeros(2, 3, 4).stride()
    assert pf.zeros(2, 3).stride(0) == 3
    source = torch.ones(2)
    assert pf.from_torch(source).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="not a torch tensor"):
        pf.from_torch(np.ones(2))


def test_layers_without_inputs():
    assert pf.nn.Linear(0, 3)(pf.zeros(2, 0)).shape == [2, 3]
