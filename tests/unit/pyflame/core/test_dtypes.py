"""Element types: promotion, weak scalars, creation, conversion."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
SCALARS = [True, 3, 2.5]


def torch_name(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(("a", "b"), list(itertools.product(TYPES, TYPES)))
def test_types_meet_as_in_torch(a, b):
    expected = torch_name(torch.promote_types(getattr(torch, a), getattr(torch, b)))
    assert pf.promote_types(a, b).name == expected
    assert (pf.ones([2], dtype=a) * pf.ones([2], dtype=b)).dtype.name == expected


@pytest.mark.parametrize(("a", "b"), list(itertools.product(TYPES, TYPES)))
def test_tensors_without_dimensions_are_weaker(a, b):
    expected = (torch.ones(2, dtype=getattr(torch, a)) + torch.ones((), dtype=getattr(torch, b))).dtype
    assert (pf.ones([2], dtype=a) + pf.ones([], dtype=b)).dtype.name == torch_name(expected)


@pytest.mark.parametrize(("a", "number"), list(itertools.product(TYPES, SCALARS)))
def test_numbers_are_weakest(a, number):
    x, y = pf.ones([2], dtype=a), torch.ones(2, dtype=getattr(torch, a))
    assert (x * number).dtype.name == torch_name((y * number).dtype)
    assert (number + x).dtype.name == torch_name((number + y).dtype)
    assert (x > number).dtype is pf.bool_


def test_numpy_numbers_do_not_widen():
    x = pf.ones([2])
    for number in (np.float64(2), np.float32(2), np.int64(2), 1.0 / np.sqrt(4)):
        assert (number * x).dtype is pf.float32
        assert isinstance(number * x, pf.Tensor)


@pytest.mark.parametrize("name", TYPES)
def test_division_and_sums(name):
    x, y = pf.ones([3], dtype=name), torch.ones(3, dtype=getattr(torch, name))
    assert (x / x).dtype.name == torch_name((y / y).dtype)
    assert x.sum().dtype.name == torch_name(y.sum().dtype)
    assert x.max().dtype.name == name
    assert x.sum().item() == 3


@pytest.mark.parametrize("name", TYPES)
def test_arrays_keep_their_type(name):
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    t = pf.from_numpy(np.ones((2, 3), dtype)[:, ::2])
    assert t.dtype.name == name
    assert t.tolist() == [[1, 1], [1, 1]]
    assert pf.zeros([2], dtype=name).dtype.name == name


@pytest.mark.parametrize("data", [1, True, 2.5, [1, 2], [1, 2.5], [True], [], [[1], [2]], (1, 2), [np.float64(1)],
                                  [np.int32(1)], np.zeros(2, np.int8), 2**40])  # fmt: skip
def test_data_has_the_element_type_that_torch_gives_it(data):
    assert pf.tensor(data).dtype.name == str(torch.tensor(data).dtype).removeprefix("torch.")
    assert pf.as_tensor(data).dtype.name == str(torch.as_tensor(data).dtype).removeprefix("torch.")


@pytest.mark.parametrize("args", [(3,), (1, 4), (0, 1, 0.25), (3.0,), (0, 6, 2), (5, 0, -2)])
def test_ranges_are_whole_where_their_bounds_are(args):
    ours, theirs = pf.arange(*args), torch.arange(*args)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("value", [3, 2.5, True])
def test_full_has_the_type_of_its_value(value):
    assert pf.full([2], value).dtype.name == str(torch.full([2], value).dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([1j], np.clongdouble), np.array([object()]), np.array(["2020"], "M8[Y]")]
)
def test_what_holds_no_numbers_is_refused(array):
    with pytest.raises(TypeError, match=r"not supported|does not make"):
        pf.from_numpy(array)


def test_names_across_the_packages():
    from pyflame_rt import DType

    assert pf.float32 == DType.Float32
    assert DType.BFloat16 == pf.bfloat16
    assert repr(pf.float16) == "DType.float16"
    assert (pf.dtype_size(pf.int16), pf.dtype_name("half")) == (2, "float16")
    assert pf.zeros([1], dtype=np.complex64).dtype is pf.complex64
    with pytest.raises(TypeError, match="uint16"):
        pf.zeros([1], dtype=np.uint16)
