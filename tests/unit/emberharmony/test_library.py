"""Libraries: conversion from and to NumPy, what they support, how they fail."""

import builtins
import importlib
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from emberharmony import MissingExtra, UnknownBackendError, UnsupportedOpError, library
from emberharmony.dtypes import as_dtype

SHARED = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", SHARED)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_round_trip_keeps_values_and_dtype(dtype, shape, lib):
    source = (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 2).astype(as_dtype(dtype))
    made = lib.from_numpy(source)
    assert lib.is_array(made)
    assert lib.dtype(made) == source.dtype
    assert tuple(made.shape) == shape
    back = lib.to_numpy(made)
    assert back.dtype == source.dtype
    np.testing.assert_array_equal(back, source)
    assert lib.supports(dtype)


def test_strides_byte_order_and_readonly(lib):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    locked = base.copy()
    locked.flags.writeable = False
    for view in (base[::-1], base[:, ::-2], base.T, base[1:3, ::2], base.astype(">f4"), locked):
        got = lib.to_numpy(lib.from_numpy(view))
        np.testing.assert_array_equal(got, view)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(st.sampled_from([np.float32, np.int16, np.bool_]), hnp.array_shapes(max_dims=3)))
def test_transposed_round_trip(x):
    for name in ("numpy", "torch", "mlx"):
        lib = library(name)
        np.testing.assert_array_equal(lib.to_numpy(lib.transpose(lib.from_numpy(x))), x.T)


def test_results_are_arrays_also_without_axes(lib):
    x = lib.from_numpy(np.array(2.0, np.float32))
    found = [lib.add(x, x), lib.exp(x), lib.sum(x), lib.max(x), lib.argmax(x), lib.equal(x, 2), lib.isnan(x)]
    found += [lib.where(x > 0, x, x), lib.take(lib.reshape(x, (1,)), lib.as_array(0), 0), lib.round(x), lib.erf(x)]
    assert all(lib.is_array(f) and tuple(f.shape) == () for f in found)


def test_arguments_are_never_changed(lib):
    source = np.array([3.0, 1.0, 2.0], np.float32)
    x = lib.from_numpy(source.copy())
    at, new = lib.from_numpy(np.array([0, 1])), lib.from_numpy(np.array([9.0, 9.0], np.float32))
    for mode in (None, "add", "mul", "max", "min"):
        lib.index_put(x, at, new, mode)
    lib.slice_update(x, [0], new)
    lib.sort(x)
    np.testing.assert_array_equal(lib.to_numpy(x), source)


def test_bools_are_combined_as_truth(lib):
    x, at = lib.as_array([True, False]), lib.as_array([0, 1])
    new = lib.as_array([False, True])
    found = {m: lib.to_numpy(lib.index_put(x, at, new, m)).tolist() for m in ("add", "mul", "max", "min")}
    assert found == {"add": [True, True], "mul": [False, False], "max": [True, True], "min": [False, False]}


def test_wrong_mode_is_named(lib):
    x = lib.zeros((2,))
    with pytest.raises(ValueError, match="avg"):
        lib.index_put(x, lib.as_array([0]), lib.as_array([1.0]), "avg")


NARROW = {"torch": ["uint16", "uint64", "float8_e4m3fn", "int4"], "mlx": ["complex128", "int4", "float8_e5m2"]}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, ds in NARROW.items() for d in ds])
def test_narrow_support(name, dtype):
    assert not library(name).supports(dtype)


@pytest.mark.parametrize(("name", "dtype"), [("torch", "int4"), ("mlx", "complex128")])
def test_missing_dtype_is_named(name, dtype):
    with pytest.raises(UnsupportedOpError, match=f"{dtype}.*{name}") as caught:
        library(name).from_numpy(np.zeros(2, as_dtype(dtype)))
    assert library(name).is_unsupported(caught.value)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32"])
def test_torch_stores_more_than_it_computes(dtype):
    lib, source = library("torch"), np.array([1, 2]).astype(as_dtype(dtype))
    back = lib.to_numpy(lib.from_numpy(source))
    assert back.dtype == source.dtype
    np.testing.assert_array_equal(back.astype(float), [1, 2])


def raised(function, *args):
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return error
    raise AssertionError("nothing was raised")


def test_unsupported_is_told_from_wrong_shapes(lib):
    a, b = lib.zeros((2, 3)), lib.zeros((4, 5))
    assert not lib.is_unsupported(raised(lib.add, a, b))
    assert not lib.is_unsupported(raised(lib.matmul, a, b))
    assert not lib.is_unsupported(raised(lib.reshape, a, (7,)))
    assert not lib.is_unsupported(KeyError("x"))
    assert lib.is_unsupported(UnsupportedOpError("x", lib.name, "y"))


def test_unsupported_by_the_libraries_themselves():
    torch, mlx, numpy = library("torch"), library("mlx"), library("numpy")
    small = torch.from_numpy(np.zeros((2, 2), as_dtype("float8_e4m3fn")))
    import mlx.core as mx
    from torch import sin

    assert torch.is_unsupported(raised(sin, small))

    whole = mlx.zeros((2, 2), "int32")
    assert mlx.is_unsupported(raised(mx.matmul, whole, whole))
    assert numpy.is_unsupported(raised(np.sin, np.array(["a"])))


def test_unknown_and_missing_libraries(monkeypatch):
    with pytest.raises(UnknownBackendError, match=r"jax.*numpy, torch, mlx"):
        library("jax")
    from emberharmony import library as exported
    from emberharmony.library import _load

    real = importlib.import_module

    def without(module, *args):
        if module == "emberharmony.backends.torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(module, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtra, match=r"pip install 'pyflame\[torch\]'"):
        _load.__wrapped__("torch")
    assert exported is library
    assert issubclass(MissingExtra, builtins.ImportError)


def test_libraries_pickle_by_name(lib):
    assert pickle.loads(pickle.dumps(lib)) is lib  # noqa: S301
    assert repr(lib) == f"library({lib.name!r})"


class Symbol:
    """A dimension without a value."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Symbol(f"{self.text}+{getattr(other, 'text', other)}")

    def __mul__(self, other):
        return Symbol(f"{self.text}*{getattr(other, 'text', other)}")

    def __rmul__(self, other):
        return Symbol(f"{other}*{self.text}")

    def __repr__(self):
        return self.text


def test_numpy_carries_symbolic_dimensions():
    lib, n = library("numpy"), Symbol("n")
    dims, known = np.array([n, 3], object), np.array([1, 2])
    assert str(lib.add(dims, known).tolist()) == "[n+1, 5]"
    assert str(lib.multiply(dims, 2).tolist()) == "[n*2, 6]"
    assert str(lib.multiply(2, dims).tolist()) == "[2*n, 6]"
    assert str(lib.concatenate([dims, known]).tolist()) == "[n, 3, 1, 2]"
    assert lib.take(dims, np.array(0), 0).item() is n
    assert lib.stack([dims, dims]).shape == (2, 2)
    assert lib.where(np.array([True, False]), dims, known).tolist() == [n, 2]
    assert str(lib.prod(dims)) == "n*3"
    assert lib.reshape(dims, (2, 1))[0, 0] is n
    assert lib.slice(dims, [1], [None]).tolist() == [3]
    assert lib.equal(dims, dims).all()


SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]


@pytest.mark.parametrize("dtype", SMALL)
def test_numpy_computes_with_small_dtypes(dtype):
    lib = library("numpy")
    x = np.array([1, 2, 3]).astype(as_dtype(dtype))
    for op in ("add", "multiply", "maximum", "minimum", "floor_divide", "mod", "power"):
        assert getattr(lib, op)(x, x).dtype == x.dtype, op
    for op in ("abs", "sign", "floor", "sort", "cumsum", "relu"):
        assert getattr(lib, op)(x).dtype == x.dtype, op
    assert lib.argsort(x, descending=True).tolist() == [2, 1, 0]
    assert float(lib.max(x)) == 3
    assert lib.exp(x).dtype == (np.float32 if "int" in dtype else x.dtype)


def test_numpy_strings():
    lib = library("numpy")
    x = np.array(["a", "bc"])
    assert lib.concatenate([x, np.array(["def"])]).tolist() == ["a", "bc", "def"]
    assert lib.equal(x, np.array(["a", "c"])).tolist() == [True, False]
    assert lib.from_numpy(x) is x


def test_bfloat16_scalar_results():
    lib = library("numpy")
    x = np.array(1.5, ml_dtypes.bfloat16)
    assert lib.add(x, x).dtype == x.dtype
    assert lib.multiply(x, 2.0).dtype == x.dtype
