"""torch.compile with our backend: torch's numbers, forward and backward."""

import copy
import importlib
import tomllib
import warnings
from collections import Counter
from pathlib import Path

import pytest

from tests.tolerances import within
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
    torch.testing.assert_close(got, want, **within("sums"))
    for mine, theirs in zip(mirror.parameters(), model.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, **within("rounded"))
    for mine, theirs in zip(mirror.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, **within("sums"))


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


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_constants_inside_a_function(train):
    def function(x):
        return x * torch.tensor([2.0, 3.0]) - torch.tensor(5) + x.new_tensor(0.5)

    x = torch.randn(3, 2, requires_grad=train)
    got = torch.compile(function, backend=backend.pyflame_backend)(x)
    torch.testing.assert_close(got, function(x))
    if train:
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(function(x).sum(), x))


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
    before = Counter(backend.fallbacks())

    def function(x):
        return torch.histc(x * 2, 4, 0, 4) + 1

    x = torch.rand(3, 3)
    torch.testing.assert_close(torch.compile(function, backend=backend.pyflame_backend)(x), function(x))
    assert dict(Counter(backend.fallbacks()) - before) == {"aten.histc": 1}


def test_a_form_that_is_not_lowered_is_run_by_torch_alone():
    """An operator with a lowering, of arguments that it refuses: what is before and after stays ours."""
    edges = torch.arange(6.0).reshape(2, 3)

    def search(x):
        found = torch.searchsorted(edges, (x * 2).relu())
        return found.sum(1) + x.exp().sum(1)

    x, before = torch.rand(2, 4) * 3, Counter(backend.fallbacks())
    torch.testing.assert_close(torch.compile(search, backend=backend.pyflame_backend)(x), search(x))
    assert dict(Counter(backend.fallbacks()) - before) == {"aten.searchsorted.Tensor": 1}


def test_memory_is_shared():
    x = torch.randn(4)
    assert backend._array(x).ctypes.data == x.data_ptr()
    array = backend._array(x).copy()
    assert backend._tensor(array).data_ptr() == array.ctypes.data
    half = torch.randn(3).to(torch.bfloat16)
    assert backend._array(half).ctypes.data == half.data_ptr()
    assert torch.equal(backend._tensor(backend._array(half).copy()), half)


def test_views_are_made_by_torch_and_take_no_memory():
    """A transposed weight that is kept for the backward pass is the weight; a view of a result is that result."""

    def function(x, w):
        y = x @ w
        return w.t(), y, y.view(-1), x.permute(2, 0, 1)[1:]

    x, w = torch.randn(2, 3, 4), torch.randn(4, 5)
    module = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(x, w)
    run = backend._runner(module)
    turned, y, flat, part = run(x, w)
    assert turned.data_ptr() == w.data_ptr()
    assert turned.stride() == (1, 5)
    assert part.storage_offset() == 1
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert flat.data_ptr() == y.data_ptr()
    torch.testing.assert_close([turned, y, flat, part], list(function(x, w)))


def test_inputs_and_results_keep_their_order_in_memory():
    def function(x):
        return torch.relu(x) * 2

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    module = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(x)
    lowered = importlib.import_module("pyflame_rt.importers.torch_fx").lower_fx(module)
    assert lowered.inputs[0].order == [0, 2, 3, 1]
    (y,) = backend._runner(module)(x)
    assert y.stride() == x.stride()
    torch.testing.assert_close(y, function(x))
    plain = x.contiguous()  # other strides than those it was traced with
    torch.testing.assert_close(backend._runner(module)(plain)[0], function(plain))


def test_options_are_refused():
    with pytest.raises(TypeError, match="fast"):
        backend.pyflame_backend(None, [], fast=True)


def test_the_name_is_registered():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["pyflame"].partition(":")
    assert getattr(importlib.import_module(module), name) is backend.pyflame_backend


IMAGES = {
    "padded": nn.Conv2d(3, 6, 3, stride=2, padding=1),
    "grouped": nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False),
    "depthwise": nn.Conv2d(4, 4, 5, stride=3, padding=2, groups=4),
    "transposed": nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
    "one axis": nn.Conv1d(3, 5, 4, stride=3, padding=2),
    "three axes": nn.Conv3d(2, 3, 2),
    "max": nn.MaxPool2d(3, 2, 1),
    "max, ceil": nn.MaxPool2d(2, 3, ceil_mode=True),
    "average": nn.AvgPool2d(3, 2, 1),
    "average, inside": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average, ceil": nn.AvgPool2d(2, 3, ceil_mode=True),
    "adaptive": nn.AdaptiveAvgPool2d(3),
    "adaptive, one": nn.AdaptiveAvgPool2d(1),
}


@pytest.mark.parametrize("name", IMAGES)
def test_gradients_of_images_are_ours(name):
    layer = IMAGES[name]
    channels, axes = getattr(layer, "in_channels", 4), {"one axis": 1, "three axes": 3}.get(name, 2)
    size = 6 if name == "adaptive" else 9
    x = torch.randn(2, channels, *[size] * axes)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    mirror = copy.deepcopy(layer)
    before = backend.fallbacks()
    got, want = torch.compile(mirror, backend=backend.pyflame_backend)(mine), layer(theirs)
    torch.testing.assert_close(got, want, **within("sums"))
    for out in (got, want):
        (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, **within("sums"))
    for a, b in zip(mirror.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, **within("layers"))
    assert backend.fallbacks() == before


@pytest.mark.parametrize("layer", [nn.AdaptiveAvgPool2d(3), nn.AdaptiveAvgPool3d(3), nn.AdaptiveAvgPool3d((3, 2, 6))])
def test_gradients_of_one_image_are_ours(layer):
    """Without a batch axis, a volume has as many axes as a batch of images."""
    x = torch.randn(4, *[6] * (3 if isinstance(layer, nn.AdaptiveAvgPool3d) else 2))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    before = backend.fallbacks()
    for out in (torch.compile(layer, backend=backend.pyflame_backend)(mine), layer(theirs)):
        (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, **within("sums"))
    assert backend.fallbacks() == before


@pytest.mark.parametrize("how", ["plain", "causal", "scaled", "added", "hidden", "all hidden", "nothing added"])
def test_gradients_of_attention_are_ours(how):
    made = [torch.randn(2, 3, 5 if i == 0 or how == "causal" else 7, 8) for i in range(3)]
    more = {"causal": {"is_causal": True}, "scaled": {"scale": 0.3}}.get(how, {})
    if how == "added":
        more["attn_mask"] = torch.randn(2, 1, 5, 7)
    if how == "hidden":
        more["attn_mask"] = torch.rand(2, 1, 5, 7) > 0.3
        more["attn_mask"][..., 0] = True
    if how == "all hidden":  # a row that sees nothing
        more["attn_mask"] = torch.arange(5)[:, None] > torch.arange(7)
    if how == "nothing added":
        more["attn_mask"] = torch.where(torch.arange(5)[:, None] > torch.arange(7), 0.5, -torch.inf)

    def attend(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, **more)

    before = backend.fallbacks()
    grads = []
    for function in (torch.compile(attend, backend=backend.pyflame_backend), attend):
        leaves = [t.clone().requires_grad_() for t in made]
        out = function(*leaves)
        (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum().backward()
        grads.append([out.detach(), *[leaf.grad for leaf in leaves]])
    torch.testing.assert_close(grads[0], grads[1], **within("sums"))
    assert backend.fallbacks() == before
