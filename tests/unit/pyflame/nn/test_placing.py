"""Every layer with parameters takes ``layout=``, ``device=`` and ``dtype=``, and what follows keeps them."""

import copy
import inspect
import io

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn

LAYERS = {
    "Linear": (4, 3),
    "Bilinear": (2, 3, 4),
    "Conv1d": (2, 3, 3),
    "Conv2d": (2, 3, 3),
    "Conv3d": (2, 3, 3),
    "ConvTranspose1d": (2, 3, 3),
    "ConvTranspose2d": (2, 3, 3),
    "ConvTranspose3d": (2, 3, 3),
    "BatchNorm1d": (4,),
    "BatchNorm2d": (4,),
    "BatchNorm3d": (4,),
    "InstanceNorm2d": (4, 1e-5, 0.1, True),
    "LayerNorm": (4,),
    "GroupNorm": (2, 4),
    "RMSNorm": (4,),
    "Embedding": (5, 3),
    "EmbeddingBag": (5, 3),
    "LSTM": (3, 4),
    "GRU": (3, 4),
    "RNN": (3, 4),
    "LSTMCell": (3, 4),
    "GRUCell": (3, 4),
    "RNNCell": (3, 4),
    "MultiheadAttention": (8, 2),
    "SelfAttention": (8, 2),
    "CrossAttention": (8, 8, 2),
    "TransformerEncoderLayer": (8, 2),
    "TransformerDecoderLayer": (8, 2),
    "Transformer": (8, 2, 1, 1, 16),
    "PReLU": (),
}
ROWS = pf.MeshLayout.row_partition(4)


def weights(module):
    return {n: p for n, p in module.named_parameters() if "bias" not in n.rpartition(".")[2]}


def layouts(tensors):
    return {str(t.layout) for t in tensors.values()}


@pytest.mark.parametrize("name", LAYERS)
def test_layouts_stay(name):
    module = getattr(nn, name)(*LAYERS[name], layout=ROWS)
    assert layouts(weights(module)) == {str(ROWS)}
    assert layouts(weights(copy.deepcopy(module))) == {str(ROWS)}
    state = module.state_dict()
    assert layouts({n: state[n] for n in weights(module)}) == {str(ROWS)}
    module.load_state_dict({n: v.numpy() for n, v in state.items()})
    assert layouts(weights(module)) == {str(ROWS)}


@pytest.mark.parametrize("name", LAYERS)
def test_element_types_and_devices(name):
    make = getattr(nn, name)
    module = make(*LAYERS[name], device="cpu", dtype=pf.float64)
    assert {p.dtype for p in module.parameters()} == {pf.float64}
    assert {b.dtype for b in module.buffers() if b.dtype.is_floating_point} <= {pf.float64}
    assert {p.dtype for p in make(*LAYERS[name], device=pf.device("cpu")).parameters()} == {pf.float32}
    with pytest.raises(RuntimeError, match="cuda"):
        make(*LAYERS[name], device="cuda")
    assert {"layout", "device", "dtype"} <= set(inspect.signature(make).parameters)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_optimizers_leave_weights_where_they_are(kind):
    module = nn.Sequential(nn.Linear(4, 3, layout=ROWS), nn.LayerNorm(3, layout=ROWS))
    optimizer = getattr(pf.optim, kind)(module.parameters(), lr=0.1)
    before = {n: p.numpy().copy() for n, p in module.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad()
        module(pf.rand(5, 4)).square().sum().backward()
        optimizer.step()
    assert layouts(weights(module)) == {str(ROWS)}
    assert all(not np.array_equal(p.numpy(), before[n]) for n, p in module.named_parameters())


def test_layers_within_layers_of_ones_own():
    class Wide(nn.Linear):
        def __init__(self, size, device=None, dtype=None):
            super().__init__(size, size, device=device, dtype=dtype)

    assert Wide(3, dtype=pf.float64).weight.dtype is pf.float64
    assert Wide(3).weight.dtype is pf.float32


def test_layers_that_wait_for_a_size():
    layer = nn.LazyLinear(3, layout=ROWS, dtype=pf.float64)
    assert layer(pf.ones(2, 5, dtype=pf.float64)).dtype is pf.float64
    assert layouts(weights(layer)) == {str(ROWS)}


def test_files_keep_the_values():
    module = nn.LayerNorm(4, layout=ROWS)
    file = io.BytesIO()
    pf.save(module.state_dict(), file)
    file.seek(0)
    assert pf.load(file)["weight"].tolist() == [1.0] * 4
