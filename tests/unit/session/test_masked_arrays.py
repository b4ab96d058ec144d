"""Masked arrays: refused wherever arrays come in, where something in them is masked; never taken without their mask."""

import numpy as np
import pytest

import pyflame as pf
from emberharmony import MaskedArrayError, library, ops
from pyflame_rt import Graph, InferenceSession, OrtValue, Tensor
from pyflame_rt.graph.errors import InputError

MASKED = np.ma.masked_array(np.arange(4, dtype=np.float32), [0, 1, 0, 0])
NOTHING_MASKED = np.ma.masked_array(np.arange(4, dtype=np.float32))


def _session():
    graph = Graph("g")
    graph.add_input("x", [4])
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", [4])
    return InferenceSession(graph)


def _bound(value):
    session = _session()
    binding = session.io_binding()
    binding.bind_cpu_input("x", value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def _loaded(value):
    layer = pf.nn.Linear(4, 1, bias=False)
    layer.load_state_dict({"weight": value.reshape(1, 4)})
    return layer.weight.detach().numpy()[0]


def _assigned(value):
    made = pf.zeros([4])
    made[:] = value
    return made.numpy()


ENTRIES = {
    "feed": lambda value: _session().run(None, {"x": value})[0],
    "OrtValue": lambda value: _session().run(None, {"x": OrtValue.ortvalue_from_numpy(value)})[0],
    "binding": _bound,
    "initializer": lambda value: Graph("g").add_initializer("w", value).raw(),
    "Tensor": lambda value: Tensor(value).raw(),
    "pf.tensor": lambda value: pf.tensor(value).numpy(),
    "pf.tensor of a list": lambda value: pf.tensor([value, value]).numpy()[0],
    "pf.from_numpy": lambda value: pf.from_numpy(value).numpy(),
    "an operand": lambda value: (pf.zeros([4]) + value).numpy(),
    "an argument": lambda value: pf.relu(value).numpy(),
    "an assignment": _assigned,
    "load_state_dict": _loaded,
    "TensorDataset": lambda value: pf.utils.data.TensorDataset(value)[:][0],
    "collate": lambda value: pf.utils.data.default_collate([value])[0].numpy(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_masked_is_refused(entry):
    with pytest.raises(InputError, match="masked"):
        ENTRIES[entry](MASKED)


@pytest.mark.parametrize("entry", ENTRIES)
def test_without_a_masked_element_they_are_arrays(entry):
    found = ENTRIES[entry](NOTHING_MASKED)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, np.arange(4))


@pytest.mark.parametrize("name", ["numpy", "torch", "mlx"])
def test_array_functions_refuse_them(name):
    for call in (library(name).convert_to_tensor, library(name).from_numpy):
        with pytest.raises(MaskedArrayError, match="filled"):
            call(MASKED)


@pytest.mark.parametrize("value", [MASKED, NOTHING_MASKED], ids=["masked", "nothing masked"])
def test_functions_refuse_them_by_their_type(value):
    for call in (ops.sum, ops.log, lambda v: ops.add(v, 1), lambda v: ops.concatenate([v, v])):
        with pytest.raises(MaskedArrayError, match="filled"):
            call(value)
