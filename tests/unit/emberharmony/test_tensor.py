"""EmberTensor, control flow, devices and gradients."""

import warnings

import numpy as np
import pytest

from emberharmony import EmberTensor, UnsupportedOpError, library, ops, use_backend
from emberharmony.guards import places


@pytest.fixture
def tensor(lib):
    return EmberTensor(lib.from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)))


def test_operators(tensor):
    values = tensor.numpy()
    cases = [
        (tensor + 1, values + 1),
        (1 - tensor, 1 - values),
        (2 * tensor / 4, values / 2),
        (tensor // 2, values // 2),
        (7 % tensor, 7 % values),
        (tensor**2, values**2),
        (2**tensor, 2**values),
        (tensor @ tensor, values @ values),
        (-tensor, -values),
        (+tensor, values),
        (abs(-tensor), values),
        (tensor > 2, values > 2),
        (tensor == 2, values == 2),
        (tensor != 2, values != 2),
        ((tensor > 1) & (tensor < 4), (values > 1) & (values < 4)),
        (~(tensor > 2), values <= 2),
        (np.float64(2) * tensor, 2 * values),
        (tensor.T, values.T),
        (tensor[0], values[0]),
        (tensor[:, 1:], values[:, 1:]),
    ]
    for got, want in cases:
        assert isinstance(got, EmberTensor)
        np.testing.assert_allclose(got.numpy(), want)
    assert (np.float64(2) * tensor).dtype == np.float32


def test_methods_and_attributes(tensor, lib):
    assert tensor.shape == (2, 2)
    assert (tensor.ndim, tensor.size, len(tensor)) == (2, 4, 2)
    assert tensor.dtype == np.float32
    assert tensor.device.startswith("cpu")
    assert tensor.mean().item() == 2.5
    assert tensor.sum(axis=0).tolist() == [4, 6]
    assert tensor.reshape((4,)).shape == (4,)
    assert tensor.astype("int32").dtype == np.int32
    assert [row.tolist() for row in tensor] == [[1, 2], [3, 4]]
    assert isinstance(tensor.split(2)[0], EmberTensor)
    assert float(tensor[0, 0]) == 1.0
    assert int(tensor[1, 1]) == 4
    assert bool(tensor[0, 0])
    assert [5, 6][EmberTensor(lib.as_array(1))] == 6
    np.testing.assert_array_equal(np.asarray(tensor), tensor.numpy())
    assert "EmberTensor(" in repr(tensor)
    with pytest.raises(AttributeError, match="nothing_such"):
        tensor.nothing_such()


def test_operations_take_tensors(tensor, lib):
    for got in (
        ops.add(tensor, 1),
        ops.stack([tensor, tensor]),
        ops.sum(x=tensor),
        ops.reshape(tensor, (4,)),
    ):
        assert lib.is_array(got)
    with use_backend(lib.name):
        assert lib.is_array(EmberTensor([1.5]).array)
        assert EmberTensor(tensor, "float16").dtype == np.float16


def test_control_flow(lib):
    one = lib.as_array(1)
    assert ops.cond(lib.as_array(True), lambda: "yes", lambda: "no") == "yes"
    assert ops.switch(lib.as_array(9), [lambda x: x, lambda x: -x], 3) == -3
    assert int(ops.while_loop(lambda i: i < 5, lambda i: i + 1, one)) == 5
    pair = ops.while_loop(lambda i, j: i < 9, lambda i, j: (i + 1, j * 2), (one, one), maximum_iterations=3)
    assert [int(v) for v in pair] == [4, 8]
    assert int(ops.fori_loop(0, 4, lambda i, v: ops.add(v, i), lib.as_array(0))) == 6
    xs = lib.from_numpy(np.array([1.0, 2.0, 3.0], np.float32))
    carry, rows = ops.scan(lambda c, x: (ops.add(c, x), ops.multiply(c, 2)), lib.as_array(0.0), xs)
    assert float(carry) == 6
    assert lib.to_numpy(rows).tolist() == [0, 2, 6]
    _, rows = ops.scan(lambda c, x: (ops.add(c, x), c), lib.as_array(0.0), xs, reverse=True)
    assert lib.to_numpy(rows).tolist() == [5, 3, 0]
    assert float(ops.scan(lambda c, x: (c + 1, None), lib.as_array(0.0), length=4)[0]) == 4
    with pytest.raises(ValueError, match="length"):
        ops.scan(lambda c, x: (c, None), 0)
    assert lib.to_numpy(ops.map(lambda x: ops.square(x), xs)).tolist() == [1, 4, 9]
    both = ops.vectorized_map(lambda pair: (pair[0], ops.add(*pair)), [xs, xs])
    assert lib.to_numpy(both[1]).tolist() == [2, 4, 6]


def test_devices(lib):
    x = lib.ones((2,))
    assert "cpu" in lib.get_available_devices()
    assert lib.is_array(ops.to_device(x, "cpu"))
    assert ops.get_device(x).startswith("cpu")
    assert lib.memory_usage()["allocated"] > 0
    with pytest.raises(ValueError, match="available: cpu"):
        ops.to_device(x, "tpu", strict=True)


def test_unknown_device_warns_once(name):
    places._warned.clear()
    x = library(name).ones((2,))
    with pytest.warns(UserWarning, match="no device 'tpu'"):
        assert ops.to_device(x, "tpu") is x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.to_device(x, "tpu")


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_gradients_of_functions(name):
    lib = library(name)
    x, y = lib.from_numpy(np.array([1.0, 2.0], np.float32)), lib.from_numpy(np.array([3.0, 4.0], np.float32))
    got = ops.gradients(lambda a: ops.sum(ops.square(a)), x)
    assert lib.to_numpy(got).tolist() == [2, 4]
    both = ops.gradients(lambda a, b: ops.sum(ops.multiply(a, ops.stop_gradient(ops.square(b)))), [x, y])
    assert [lib.to_numpy(g).tolist() for g in both] == [[9, 16], [0, 0]]


def test_gradients_of_tensors():
    import torch

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert ops.gradients(ops.sum(ops.exp(ops.log(x))), x).tolist() == pytest.approx([1, 1])
    with pytest.raises(UnsupportedOpError, match="give the function"):
        ops.gradients(library("mlx").ones((2,)), library("mlx").ones((2,)))
    with pytest.raises(UnsupportedOpError, match="torch or mlx"):
        ops.gradients(lambda v: v, np.ones(2))


def test_activations_by_name():
    assert ops.get_activation("relu") is ops.relu
    assert ops.get_activation(None) is ops.linear
    with pytest.raises(ValueError, match=r"unknown activation 'nope'.*relu"):
        ops.get_activation("nope")


def test_bad_arguments_are_named(lib):
    x = lib.zeros((2, 3))
    for match, call in {
        "5 equal parts": lambda: lib.split(x, 5),
        "add up to 4": lambda: lib.split(x, [1, 3]),
        "squeeze axis 0": lambda: lib.squeeze(x, 0),
        "axis 7": lambda: lib.expand_dims(x, 7),
        "axis 9": lambda: lib.sum(x, 9),
        "length 3": lambda: lib.cross(x[:, :2], x[:, :2]),
        "kind is one of": lambda: lib.reduce_window(x, [2], kind="mean"),
        "not 9": lambda: lib.unstack(x, 9),
        "quantile method": lambda: lib.quantile(x, 0.5, method="best"),
        "conditions": lambda: lib.select([x > 0], []),
        "widths differ": lambda: lib.bitcast(x, "int8"),
        "order 7": lambda: lib.norm(x, 7),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
