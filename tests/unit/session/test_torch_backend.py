"""torch.compile with our backend: torch's numbers, forward and backward."""

import copy
import importlib
import tomllib
import warnings
from pathlib import Path

import pytest

from tests.unit.importers.torchscript import networks
from tests.unit.importers.torchscript.modules import MODULES
from tests.unit.importers.torchscript.saving import torch

nn = torch.nn
backend = importlib.import_module("pyflame_rt.torch_backend")
SAMPLE = sorted({*list(MODULES)[2::7], "BatchNorm2d", "TransformerEncoderLayer", "Conv2d"})


@pytest.fixture(autouse=True)
def quiet():
    """Graphs of one test are not those of another; torch warns of itself while it compiles."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, (tuple, list)) else []


def _ran(model, inputs, train):
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        out = _tensors(model(*inputs))
    if train and any(t.requires_grad for t in out):
        sum((t * t).sum() for t in out if t.requires_grad).backward()
    return out


def _compare(model, inputs, train):
    model.train(train)
    mirror = copy.deepcopy(model)
    want = _ran(model, inputs, train)
    got = _ran(torch.compile(mirror, backend=backend.pyflame_backend), inputs, train)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(mirror.parameters(), model.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(mirror.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", SAMPLE)
def test_modules(name, train):
    torch.manual_seed(0)
    model, inputs = MODULES[name]()
    _compare(model, inputs, train)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_transformer(train):
    torch.manual_seed(0)
    _compare(networks.GptLike(), (torch.randint(0, 40, (2, 6)),), train)


def test_sizes_that_change_make_no_new_graph():
    seen = []

    def counted(module, inputs):
        seen.append(module)
        return backend.pyflame_backend(module, inputs)

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    compiled = torch.compile(model, backend=counted, dynamic=True)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(seen) == 1


def test_graph_breaks():
    def function(x):
        y = torch.relu(x) + 1
        if y.sum() > 3:
            return y * 2
        return y - 1

    compiled = torch.compile(function, backend=backend.pyflame_backend)
    for x in (torch.ones(3), -torch.ones(2)):
        torch.testing.assert_close(compiled(x), function(x))


def test_what_torch_runs_is_named():
    before = backend.fallbacks().get("aten.linalg_inv_ex.default", 0)

    def function(x):
        return torch.linalg.inv(x * 2) + 1

    x = torch.eye(3) + 0.1
    torch.testing.assert_close(torch.compile(function, backend=backend.pyflame_backend)(x), function(x))
    named = backend.fallbacks()
    assert any("inv" in name for name in named)
    assert not any("mul" in name for name in named)
    assert before <= sum(named.values())


def test_memory_is_shared():
    x = torch.randn(4)
    assert backend._array(x).ctypes.data == x.data_ptr()
    array = backend._array(x).copy()
    assert backend._tensor(array).data_ptr() == array.ctypes.data
    half = torch.randn(3).to(torch.bfloat16)
    assert backend._array(half).ctypes.data == half.data_ptr()
    assert torch.equal(backend._tensor(backend._array(half).copy()), half)


def test_options_are_refused():
    with pytest.raises(TypeError, match="fast"):
        backend.pyflame_backend(None, [], fast=True)


def test_the_name_is_registered():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["pyflame"].partition(":")
    assert getattr(importlib.import_module(module), name) is backend.pyflame_backend
