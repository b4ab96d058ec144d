"""Random numbers: known bits, equal on every library, distributions."""

import ml_dtypes
import numpy as np
import pytest

from emberharmony import library
from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.onnx.random import manual_seed, threefry
from tests.tolerances import within

LIBRARIES = ("numpy", "torch", "mlx")


def run(op, *arrays, lib="numpy", domain="", **attributes):
    context = Context.of(lib)
    moved = [to_library(a, context.library) for a in arrays]
    (made,) = evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes, domain), moved, context)
    return to_host(made, context.library)


# Known answers of Threefry-2x32-20 from the Random123 distribution (kat_vectors).
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_published_vectors(key, counter, words, lib):
    ops = library(lib)
    low = ops.from_numpy(np.array([counter[0]], np.int64))
    got = tuple(int(ops.to_numpy(word)[0]) for word in threefry(ops, key, low, counter[1]))
    assert got == words


@pytest.mark.parametrize("lib", LIBRARIES)
def test_equal_seeds_give_equal_bits_everywhere(lib):
    shape = np.array([3, 5])
    reference = run("RandomBits", shape, domain="pyflame", seed=4.5, bits=24)
    got = run("RandomBits", shape, domain="pyflame", seed=4.5, bits=24, lib=lib)
    np.testing.assert_array_equal(got, reference)
    assert got.dtype == np.int32
    assert got.min() >= 0
    assert got.max() < 2**24
    other = run("RandomBits", shape, domain="pyflame", seed=5.0, bits=24, lib=lib)
    assert (other != got).any()


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
def test_seeded_draws_agree_between_libraries(op):
    first, *others = (run(op, shape=[50], seed=1.0, lib=lib) for lib in LIBRARIES)
    for other in others:
        np.testing.assert_allclose(other, first, **within("elements"))


def test_draws_without_a_seed_differ_unless_a_global_one_is_set():
    assert (run("RandomUniform", shape=[9]) != run("RandomUniform", shape=[9])).any()
    try:
        manual_seed(3)
        first, second = run("RandomNormal", shape=[9]), run("RandomNormal", shape=[9])
        manual_seed(3)
        np.testing.assert_array_equal(run("RandomNormal", shape=[9]), first)
        assert (first != second).any()
    finally:
        manual_seed(None)


@pytest.mark.parametrize("kind", [DType.Float16, DType.BFloat16, DType.Float32, DType.Float64])
def test_uniform(kind):
    x = run("RandomUniform", shape=[20000], dtype=kind.onnx, low=-2.0, high=4.0, seed=7.0)
    assert x.dtype == kind.numpy
    x = x.astype(np.float64)
    assert x.min() >= -2
    assert x.max() < 4
    assert abs(x.mean() - 1) < 0.05
    assert abs(x.std() - 6 / np.sqrt(12)) < 0.05


@pytest.mark.parametrize("kind", [DType.Float16, DType.Float32, DType.Float64])
def test_normal(kind):
    x = run("RandomNormal", shape=[20000], dtype=kind.onnx, mean=3.0, scale=2.0, seed=7.0).astype(np.float64)
    z = (x - 3) / 2
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03
    assert abs((np.abs(z) < 1).mean() - 0.6827) < 0.02


def test_like_takes_shape_and_type():
    x = np.zeros((2, 3), ml_dtypes.bfloat16)
    assert run("RandomUniformLike", x).dtype == ml_dtypes.bfloat16
    assert run("RandomNormalLike", x, dtype=DType.Float64.onnx).dtype == np.float64
    assert run("RandomNormalLike", x).shape == (2, 3)


def test_bernoulli():
    p = np.repeat([0.0, 0.25, 1.0], 4000).astype(np.float32)
    x = run("Bernoulli", p, seed=1.0, dtype=DType.Bool.onnx)
    assert x.dtype == np.bool_
    means = x.reshape(3, -1).mean(axis=1)
    assert (means[0], means[2]) == (0, 1)
    assert abs(means[1] - 0.25) < 0.03
    assert run("Bernoulli", p.astype(np.float64)).dtype == np.float64


def test_multinomial():
    chances = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    with np.errstate(divide="ignore"):
        x = run("Multinomial", np.log(chances).astype(np.float32), sample_size=5000, seed=2.0, dtype=DType.Int64.onnx)
    assert (x.shape, x.dtype) == ((2, 5000), np.int64)
    shares = np.stack([(x == k).mean(axis=1) for k in range(3)], axis=1)
    np.testing.assert_allclose(shares, chances, atol=0.03)
    assert run("Multinomial", np.zeros((1, 1), np.float32)).dtype == np.int32


def test_bits_are_limited():
    with pytest.raises(InputError, match="1 to 31 bits"):
        run("RandomBits", np.array([1]), domain="pyflame", bits=32)


def test_shapes():
    op = get_op("RandomNormalLike")
    x = Value("x", TensorType(DType.Float16, Shape(["N", 3])))
    (made,) = infer_outputs(op, [x], op.signature.bind({}, "n"))
    assert made.type == TensorType(DType.Float16, Shape([symbol("N"), 3]))
    assert op.random
