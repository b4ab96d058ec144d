"""Every layer against PyTorch, on the samples of PyTorch's own database of modules: results and gradients."""

from itertools import islice

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from torch.testing._internal.common_modules import module_db  # noqa: E402

# Advice of torch's that has nothing to do with results, and "mean" of divergences, of which both sides warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*reduction.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:linear_cross_entropy. ``options`` ignored:UserWarning"),
]
INFOS = {info.name.removeprefix("nn."): info for info in module_db}
FEW = 4
FUNCTIONS = {torch.nn.functional.gelu: pf.nn.functional.gelu, torch.nn.functional.relu: pf.nn.functional.relu}
ENCODER = ("dropout", "activation", "layer_norm_eps", "batch_first", "norm_first")


def convert(value):
    if isinstance(value, torch.Tensor):
        made = pf.from_numpy(value.detach().numpy().copy())
        return made.requires_grad_() if value.requires_grad else made
    if isinstance(value, torch.dtype):
        return pf.dtypes.to_dtype(value)
    if isinstance(value, torch.nn.LinearCrossEntropyOptions):
        return pf.nn.LinearCrossEntropyOptions(value.batch_chunk_size, value.chunking_method)
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return encoder_layer(value)
    if isinstance(value, (list, tuple)):
        return type(value)(convert(item) for item in value)
    if isinstance(value, dict):
        return {key: convert(item) for key, item in value.items() if key != "device"}
    return FUNCTIONS.get(value, value) if callable(value) else value


def encoder_layer(layer):
    attention = layer.self_attn
    return pf.nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        layer.linear1.out_features,
        layer.dropout.p,
        convert(layer.activation),
        layer.norm1.eps,
        attention.batch_first,
        layer.norm_first,
        layer.linear1.bias is not None,
    ).to(pf.float64)


def tensors(value):
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in tensors(item)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return [value] if hasattr(value, "requires_grad") else []


def twins(name, sample, training):
    """The layer of each side, with the same weights."""
    args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
    theirs = INFOS[name].module_cls(*args, **kwargs).to(torch.float64).train(training)
    ours = getattr(pf.nn, name)(*convert(args), **convert(kwargs)).to(pf.float64).train(training)
    return theirs, ours


def check(name, sample, training):
    theirs, ours = twins(name, sample, training)
    given = sample.forward_input
    if name.startswith("Lazy"):
        theirs(*given.args, **given.kwargs)
    ours.load_state_dict({key: value.numpy().copy() for key, value in theirs.state_dict().items()})
    args, kwargs = convert(given.args), convert(given.kwargs)
    want, got = tensors(theirs(*given.args, **given.kwargs)), tensors(ours(*args, **kwargs))
    assert [tuple(t.shape) for t in got] == [tuple(t.shape) for t in want]
    for a, b in zip(got, want, strict=True):
        assert str(a.dtype).split(".")[-1] == str(b.dtype).split(".")[-1]
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10)
    pairs = [(a, b) for a, b in zip(got, want, strict=True) if b.requires_grad]
    if pairs:
        check_gradients(pairs, (theirs, given.args, given.kwargs), (ours, args, kwargs))


def check_gradients(pairs, theirs, ours):
    weights = [torch.randn(b.shape, dtype=torch.float64) for _, b in pairs]
    inputs = [
        (a, b)
        for a, b in zip(tensors([*ours[1:]]), tensors([*theirs[1:]]), strict=True)
        if b.requires_grad and b.is_leaf
    ]
    for _, b in inputs:
        b.grad = None
    theirs[0].zero_grad()
    torch.autograd.backward([b for _, b in pairs], weights)
    pf.backward(sum((a * pf.from_numpy(w.numpy())).sum() for (a, _), w in zip(pairs, weights, strict=True)))
    named = dict(theirs[0].named_parameters())
    inputs += [(parameter, named[key]) for key, parameter in ours[0].named_parameters()]
    for a, b in inputs:
        if b.grad is not None:
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-9)


def sweep(name, number):
    info = INFOS[name]
    checked = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        if "Dropout" in name and training:
            continue  # other random numbers
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        )
        for sample in islice(samples, number):
            check(name, sample, training)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", sorted(INFOS))
def test_results_and_gradients(name):
    sweep(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INFOS))
def test_results_and_gradients_of_every_sample(name):
    sweep(name, None)


def test_every_layer_of_the_database_is_there():
    assert [name for name in INFOS if not hasattr(pf.nn, name)] == []
