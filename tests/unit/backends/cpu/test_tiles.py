"""Generated products and convolutions: odd sizes, paddings, epilogues, thread counts, and no access out of bounds."""

import ctypes
import mmap
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.ir.kernel_program import apply, load
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.depthwise import DepthwiseKernel
from pyflame_rt.backends.cpu.kernels.tiles.epilogue_math import FAST
from pyflame_rt.backends.cpu.kernels.tiles.packing import RowPackKernel
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Finish, Tile, rows_together, tile_for
from pyflame_rt.backends.cpu.kernels.tiles.winograd import WinogradKernel, filter_matrix
from pyflame_rt.backends.cpu.lower.tiled_products import apart_of
from pyflame_rt.backends.cpu.memory.packed_weights import channel_filters, panels, winograd_panels
from tests.tolerances import within

BIAS_RELU = Finish(apply("max", apply("add", load(0, "float32"), load(1, "float32")), 0.0), ("column",))
_SHIFTED = apply("add", load(0, "float32"), load(1, "float32"))
BIAS_SILU = Finish(apply("mul", _SHIFTED, apply("sigmoid", _SHIFTED)), ("column",))
GELU = Finish(
    apply(
        "mul",
        apply("mul", load(0, "float32"), 0.5),
        apply("add", apply("erf", apply("mul", load(0, "float32"), 0.7)), 1),
    )
)


class Guarded:
    """Floats that end where the memory ends: reading or writing one more is a fault."""

    def __init__(self, values):
        size = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(-1, size + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        self.array = np.frombuffer(self.map, np.float32, values.size, size - values.nbytes).reshape(values.shape)
        self.array[...] = values
        self.address = self.array.ctypes.data


def lanes():
    return host().lanes(4)


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's mprotect")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(1, 70),
    st.sampled_from(["relu", "gelu"]),
    st.integers(0, 2**32 - 1),
)
def test_products_stay_in_bounds(rows, depth, columns, ending, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((rows, depth), dtype=np.float32), rng.standard_normal((depth, columns), dtype=np.float32)
    bias = rng.standard_normal(columns, dtype=np.float32)
    tile = tile_for(host(), columns)
    width = tile.vectors * lanes()
    packed = panels(w, width)
    source, shift, out = Guarded(x), Guarded(bias), Guarded(np.zeros((rows, columns), np.float32))
    finish = BIAS_RELU if ending == "relu" else GELU
    operands = [shift.address] if ending == "relu" else []
    buffers = [source.address, packed.ctypes.data, *operands, out.address]
    block = 2 * tile.rows
    blocks = -(-rows // block)
    params = [rows, columns, depth, block, blocks, depth, columns]
    call(ProductKernel("rows", tile, finish), buffers, params, 0, blocks * len(packed))
    exact = torch.tensor(x.astype(np.float64) @ w)
    expected = (
        torch.relu(exact + torch.tensor(bias)) if ending == "relu" else exact * 0.5 * (1 + torch.erf(exact * 0.7))
    )
    np.testing.assert_allclose(out.array, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (7, 5), (40, 3), (64, 33)])
def test_packed_filters_are_rounded_once(edge, columns, depth):
    rng = np.random.default_rng(columns)
    width = 2 * lanes()
    data = np.zeros(columns * depth * 9 * 4 + 1, np.uint8)[1:]  # at an odd address, as in a file
    weights = data.view(np.float32).reshape(columns, depth, 3, 3)
    weights[...] = rng.standard_normal(weights.shape)
    packed = winograd_panels(weights, edge, width)
    exact = np.einsum("pt,oit->pio", filter_matrix(edge), weights.reshape(columns, depth, 9).astype(np.float64))
    found = packed.transpose(1, 2, 0, 3).reshape(len(exact), depth, -1)[:, :, :columns]
    np.testing.assert_allclose(found, exact, rtol=2e-7, atol=1e-12)


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's mprotect")
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 130), st.integers(1, 80), st.integers(1, 70), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_turned_rows_stay_in_bounds(rows, depth, columns, apart, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((depth, rows + apart), dtype=np.float32)
    w = rng.standard_normal((depth, columns), dtype=np.float32)
    tile = tile_for(host(), columns)
    packed, wide = panels(w, tile.vectors * lanes()), rows_together(tile)
    # The last line ends where its rows do, as that of a part of a matrix may.
    source, out = Guarded(x.ravel()[: x.size - apart]), Guarded(np.zeros((rows, columns), np.float32))
    lines = Guarded(np.full((-(-rows // wide), depth, wide), np.nan, np.float32))
    call(
        RowPackKernel(wide), [source.address, lines.address], [depth, rows, rows + apart], 0,
        -(-depth // RowPackKernel.ROWS),
    )  # fmt: skip
    block = 2 * tile.rows
    blocks = -(-rows // block)
    params = [rows, columns, depth, block, blocks, 0, columns]
    buffers = [lines.address, packed.ctypes.data, out.address]
    call(ProductKernel("panels", tile), buffers, params, 0, blocks * len(packed))
    exact = x[:, :rows].astype(np.float64).T @ w
    np.testing.assert_allclose(out.array, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's mprotect")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 13),
    st.integers(1, 13),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(0, 2),
    st.sampled_from([2, 4]),
    st.integers(0, 2**32 - 1),
)
def test_winograd_stays_in_bounds(images, height, width, vectors, columns, pad, edge, seed):
    rng = np.random.default_rng(seed)
    depth = vectors * lanes()
    out_height, out_width = height + 2 * pad - 2, width + 2 * pad - 2
    if min(out_height, out_width) < 1:
        return
    x = rng.standard_normal((images, height, width, depth), dtype=np.float32)
    w = rng.standard_normal((columns, depth, 3, 3), dtype=np.float32) * np.float32(0.1)
    bias = rng.standard_normal(columns, dtype=np.float32)
    source, shift, zeros = Guarded(x), Guarded(bias), Guarded(np.zeros(depth, np.float32))
    out = Guarded(np.full((images, out_height, out_width, columns), np.nan, np.float32))
    tile = tile_for(host(), columns)
    kernel = WinogradKernel(tile, edge, BIAS_RELU)
    packed = winograd_panels(w, edge, tile.vectors * lanes())
    down, across = -(-out_height // edge), -(-out_width // edge)
    tiles = images * down * across
    block = min(2 * tile.rows, tiles)
    items, slot = -(-tiles // block) * len(packed), kernel.slot(lanes(), block, depth)
    scratch = Guarded(np.zeros(slot, np.float32))
    params = [
        depth, columns, height, width, out_height, out_width, down, across, tiles, block, len(packed), 1, len(packed),
        pad, pad, height * width * depth, width * depth, depth, slot, items,
        out_height * out_width * columns, out_width * columns, columns, 0, 0, 0,
    ]  # fmt: skip
    buffers = [source.address, zeros.address, packed.ctypes.data, scratch.address, shift.address, out.address]
    call(kernel, buffers, params, 0, items)
    image = torch.tensor(x.astype(np.float64)).permute(0, 3, 1, 2)
    exact = torch.conv2d(image, torch.tensor(w.astype(np.float64)), torch.tensor(bias.astype(np.float64)), padding=pad)
    np.testing.assert_allclose(out.array, torch.relu(exact).permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's mprotect")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(1, 12), st.integers(1, 19)),
    st.integers(1, 9),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(4, 7),
    st.sampled_from([BIAS_RELU, BIAS_SILU]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**32 - 1),
)
def test_depthwise_stays_in_bounds(images, size, vectors, taps, stride, pad, pixels, finish, block, group, seed):
    rng = np.random.default_rng(seed)
    channels, (height, width) = vectors * lanes(), size
    out = [(n + 2 * pad - taps) // stride + 1 for n in size]
    if min(size) + 2 * pad < taps:
        return
    x = rng.standard_normal((images, height, width, channels), dtype=np.float32)
    w = rng.standard_normal((channels, group, taps, taps), dtype=np.float32)
    bias = rng.standard_normal(channels, dtype=np.float32)
    source, filters, shift = Guarded(x), Guarded(channel_filters(w)), Guarded(bias)
    result = Guarded(np.full((images, *out, channels), np.nan, np.float32))
    params = [
        channels, height, width, *out, taps, stride, pad, pad, height * width * channels, width * channels, channels,
        out[0] * out[1] * channels, out[1] * channels, channels, block * lanes(), -(-vectors // block),
    ]  # fmt: skip
    buffers = [source.address, filters.address, shift.address, result.address]
    items = images * out[0] * -(-vectors // block)
    call(DepthwiseKernel(taps, stride, pixels, lanes(), finish, group), buffers, params, 0, items)
    image = torch.tensor(x.astype(np.float64)).permute(0, 3, 1, 2)
    exact = torch.conv2d(
        image,
        torch.tensor(w).double(),
        torch.tensor(bias).double(),
        stride=stride,
        padding=pad,
        groups=channels // group,
    )
    wanted = (torch.relu if finish is BIAS_RELU else torch.nn.functional.silu)(exact)
    np.testing.assert_allclose(result.array, wanted.permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAST)
def test_short_functions_keep_their_bounds(name):
    dense = np.concatenate([np.linspace(-95, 95, 200_001), np.linspace(-6, 6, 200_001), np.logspace(-30, 1, 5_000)])
    x = np.concatenate([dense, -dense, [np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30]]).astype(np.float32)
    exact = {"erf": torch.erf, "tanh": torch.tanh, "sigmoid": torch.sigmoid}[name](torch.tensor(x).double()).numpy()
    got = finished(name, x)
    bound = np.abs(exact) * 3.5e-7 + (2e-38 if name == "sigmoid" else 1e-45)
    assert (np.abs(got - exact) <= bound).all()
    assert np.isnan(finished(name, np.float32([np.nan])))[0]


GATES = {
    "silu": (lambda x: apply("mul", x, apply("sigmoid", x)), lambda x, s: x * s),
    "turned": (lambda x: apply("mul", apply("sigmoid", x), x), lambda x, s: x * s),
    "plus": (lambda x: apply("add", apply("mul", x, apply("sigmoid", x)), 3.0), lambda x, s: x * s + 3),
    "squared": (lambda x: apply("mul", apply("sigmoid", x), apply("sigmoid", x)), lambda x, s: s * s),
    "with one more": (
        lambda x: apply("add", apply("mul", x, apply("sigmoid", x)), apply("mul", x, 0.5)),
        lambda x, s: x * s + x * 0.5,
    ),
}


@pytest.mark.parametrize("form", GATES)
def test_products_with_a_sigmoid_keep_their_bounds(form):
    x = np.concatenate([np.linspace(-80, 80, 100_001), np.linspace(-4, 4, 50_001), [0.0, -0.0, 1e30]]).astype(
        np.float32
    )
    expression, exact = GATES[form]
    s = torch.sigmoid(torch.tensor(x).double()).numpy()
    wanted = exact(x.astype(np.float64), s)
    parts = np.abs(x) + 3 if form in ("plus", "with one more") else np.abs(wanted)
    bound = 3.5e-7 * (2 if form == "squared" else 1) + 1.2e-7  # of each sigmoid, and two roundings
    assert (np.abs(finished(expression(load(0, "float32")), x) - wanted) <= parts * bound + 1e-37).all()
    assert np.isnan(finished(expression(load(0, "float32")), np.float32([np.nan])))[0]


def finished(value, x):
    """A function at the end of a product with one."""
    if isinstance(value, str):
        value = apply(value, load(0, "float32"))
    finish, tile = Finish(value), tile_for(host(), 1)
    packed, out = panels(np.ones((1, 1), np.float32), tile.vectors * lanes()), np.empty_like(x)
    buffers = [x.ctypes.data, packed.ctypes.data, out.ctypes.data]
    block = -(-len(x) // tile.rows) * tile.rows
    call(ProductKernel("rows", tile, finish), buffers, [len(x), 1, 1, block, 1, 1, 1], 0, 1)
    return out


# ---------------------------------------------------------------------- through the engine


def network(nodes, weights, shape):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info(
                "y", TensorProto.INT32 if nodes[-1].op_type == "Cast" else TensorProto.FLOAT, None
            )
        ],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def native(data, x, **options):
    given = pyflame_rt.SessionOptions(**{"num_threads": 2, **options})
    session = pyflame_rt.InferenceSession(data, given, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    report = session.explain()
    session.close()
    return y, report


def oracle(data, x):
    session = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    return session.run(None, {"x": x})[0]


TAILS = {
    "none": [helper.make_node("Identity", ["z"], ["y"])],
    "relu": [helper.make_node("Relu", ["z"], ["y"])],
    "residual": [helper.make_node("Add", ["r", "z"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
    "column": [helper.make_node("Mul", ["z", "c"], ["y"])],
    "silu": [helper.make_node("Sigmoid", ["z"], ["s"]), helper.make_node("Mul", ["z", "s"], ["y"])],
    "gelu": [helper.make_node("Gelu", ["z"], ["y"])],
    "hardswish": [helper.make_node("HardSwish", ["z"], ["y"])],
    "compared": [helper.make_node("Greater", ["z", "r"], ["g"]), helper.make_node("Where", ["g", "z", "r"], ["y"])],
    "to integers": [helper.make_node("Cast", ["z"], ["y"], to=TensorProto.INT32)],
}
CONVOLUTIONS = [
    # channels in and out, kernel, height and width, attributes
    (16, 16, 3, (9, 9), {"pads": [1, 1, 1, 1]}),
    (24, 20, 3, (7, 10), {"pads": [1, 1, 1, 1]}),
    (32, 9, 3, (12, 5), {}),
    (16, 33, 3, (6, 6), {"pads": [2, 0, 1, 2]}),
    (16, 17, 1, (5, 7), {}),
    (3, 8, 1, (4, 4), {}),
    (40, 24, 1, (1, 9), {}),
    (16, 16, 3, (9, 9), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    (16, 16, 3, (9, 9), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    (16, 16, 3, (9, 9), {"pads": [1, 1, 1, 1], "group": 4}),
    (16, 16, 1, (8, 9), {"strides": [2, 2]}),
    (16, 16, 5, (9, 9), {"auto_pad": "SAME_UPPER"}),
    (16, 16, 3, (9, 8), {"auto_pad": "SAME_LOWER"}),
    (16, 16, 3, (9, 9), {"group": 16, "pads": [1, 1, 1, 1]}),
    (24, 24, 3, (8, 11), {"group": 24, "pads": [1, 0, 0, 2], "strides": [2, 2]}),
    (12, 12, 5, (9, 17), {"group": 12, "pads": [2, 2, 2, 2]}),
    (8, 8, 7, (5, 3), {"group": 8, "pads": [3, 3, 3, 3]}),
    (8, 8, 3, (9, 9), {"group": 8, "dilations": [2, 2]}),
    (6, 6, 3, (9, 9), {"group": 6}),
    (8, 16, 3, (9, 9), {"group": 8}),
    (16, 24, 2, (8, 9), {"strides": [2, 2]}),
    (8, 17, 3, (11, 9), {"dilations": [2, 2]}),
    (8, 9, 3, (9, 10), {"dilations": [2, 1], "strides": [1, 2]}),
]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_equal_the_reference(case, tail):
    depth, columns, kernel, size, attributes = case
    rng = np.random.default_rng(depth * 100 + columns)
    weights = {
        "w": rng.standard_normal((columns, depth // attributes.get("group", 1), kernel, kernel)) * 0.1,
        "b": rng.standard_normal(columns),
        "c": rng.standard_normal((1, columns, 1, 1)),
    }
    conv = helper.make_node("Conv", ["x", "w", "b"], ["z"], **attributes)
    x = rng.standard_normal((2, depth, *size)).astype(np.float32)
    plain = network([conv, *TAILS["none"]], weights, x.shape)
    weights["r"] = rng.standard_normal(oracle(plain, x).shape)
    data = network([conv, *TAILS[tail]], weights, x.shape)
    expected = oracle(data, x)
    y, report = native(data, x)
    assert report.host_step_count == 0
    if tail == "to integers":
        assert (y == expected).mean() > 0.99
        return
    np.testing.assert_allclose(y, expected, **within("sums"))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(2, 5, 3), (7, 33, 17), (64, 48, 24), (300, 65, 40), (13, 1, 1), (6, 700, 130)]
)
def test_dense_layers_equal_the_reference(rows, depth, columns, tail):
    rng = np.random.default_rng(rows)
    weights = {
        "w": rng.standard_normal((depth, columns)) * 0.1,
        "c": rng.standard_normal(columns),
        "r": rng.standard_normal((rows, columns)),
    }
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    data = network([helper.make_node("MatMul", ["x", "w"], ["z"]), *TAILS[tail]], weights, x.shape)
    y, report = native(data, x)
    assert report.host_step_count == 0
    if tail == "to integers":
        assert (y == oracle(data, x)).mean() > 0.99
        return
    np.testing.assert_allclose(y, oracle(data, x), **within("sums"))


@pytest.mark.parametrize("bias", ["none", "row", "full", "one"])
@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"transA": 1}, {"alpha": 0.5}, {"beta": 2.0, "transB": 1}])
def test_general_products_equal_the_reference(bias, attributes):
    rng = np.random.default_rng(3)
    shape = (12, 20) if attributes.get("transB") else (20, 12)
    weights = {"w": rng.standard_normal(shape)}
    sizes = {"row": (12,), "full": (9, 12), "one": (1,)}
    inputs = ["x", "w"]
    if bias != "none":
        weights["b"] = rng.standard_normal(sizes[bias])
        inputs.append("b")
    x = rng.standard_normal((20, 9) if attributes.get("transA") else (9, 20)).astype(np.float32)
    data = network([helper.make_node("Gemm", inputs, ["y"], **attributes)], weights, x.shape)
    y, _ = native(data, x)
    np.testing.assert_allclose(y, oracle(data, x), **within("sums"))


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((40, 24, 3, 3)) * 0.1,
        "w2": rng.standard_normal((72, 40, 1, 1)) * 0.1,
        "w3": rng.standard_normal((72, 60)) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["b"]),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["t", "w3"], ["y"]),
    ]
    x = rng.standard_normal((2, 24, 37, 41)).astype(np.float32)
    data = network(nodes, weights, x.shape)
    results = [native(data, x, num_threads=n)[0] for n in (1, 2, 3, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
def test_calls_under_way_have_slots_of_their_own(threads):
    for items in (1, 2, 5, 64, 1000, 1024, 3000, 5000, 70_001):
        apart = apart_of(SimpleNamespace(threads=threads), items)
        for chunks in range(1, min(threads, items) + 1):
            down = 64 if items >= chunks * 1024 else 1  # as the driver divides rows
            begins = [items * c // chunks // down * down for c in range(chunks)]
            assert len({b // apart for b in begins}) == chunks
            assert max(begins) // apart < -(-items // apart)


def test_large_images_do_not_share_scratch_memory():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16, 3, 3)) * 0.1}
    x = rng.standard_normal((1, 16, 800, 800)).astype(np.float32)
    data = network([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], weights, x.shape)
    alone, shared = (native(data, x, num_threads=n)[0] for n in (1, 2))
    np.testing.assert_array_equal(alone, shared)


def test_products_of_two_branches_meet_in_one_sum():
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((16, 16, 3, 3)) * 0.1, "w2": rng.standard_normal((16, 16, 1, 1)) * 0.1}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "w2"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    x = rng.standard_normal((1, 16, 10, 10)).astype(np.float32)
    data = network(nodes, weights, x.shape)
    np.testing.assert_allclose(native(data, x)[0], oracle(data, x), **within("sums"))


@pytest.mark.parametrize("shape", [(24, 6, 7), (24, 1, 7), (24, 6, 1), (24, 1, 1), (1, 24, 6, 7)])
@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("fed", [True, False])
def test_an_operand_of_lower_rank_beside_one_image(shape, taps, fed):
    """As large as the result, though it has no batch: also where every size but the channels is one."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((24, 16, taps, taps)) * 0.1, "c": rng.standard_normal(shape)}
    inputs = ["a", "d"] if fed else ["a", "c"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[taps // 2] * 4),
        helper.make_node("Mul", inputs, ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    if fed:
        nodes.insert(0, helper.make_node("Exp", ["c"], ["d"]))
    for size in ((6, 7), (1, 1), (1, 7), (6, 1)):
        if np.broadcast_shapes(shape, (1, 24, *size)) != (1, 24, *size):
            continue
        x = rng.standard_normal((1, 16, *size)).astype(np.float32)
        data = network(nodes, weights, x.shape)
        np.testing.assert_allclose(native(data, x)[0], oracle(data, x), **within("sums"))


def test_winograd_is_about_as_exact_as_a_plain_sum(monkeypatch):
    monkeypatch.setenv("PYFLAME_FAST_MATH", "1")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 128, 3, 3)).astype(np.float32) * np.float32(0.03)
    x = np.maximum(rng.standard_normal((1, 128, 28, 28)), 0).astype(np.float32)
    data = network([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], {"w": w}, x.shape)
    exact = torch.conv2d(torch.tensor(x).double(), torch.tensor(w).double(), padding=1).numpy()
    pixels = torch.nn.functional.unfold(torch.tensor(x), 3, padding=1).numpy()[0]
    sums = np.array([np.add.accumulate(f.reshape(-1, 1) * pixels)[-1] for f in w])  # one product after the other
    error, usual = np.abs(native(data, x)[0] - exact), np.abs(sums.reshape(exact.shape) - exact)
    assert error.max() < 6 * usual.max()
    assert np.sqrt((error**2).mean()) < 4 * np.sqrt((usual**2).mean())


def test_tiles_fit_the_registers():
    for columns in (1, 16, 24, 100):
        tile = tile_for(host(), columns)
        assert tile.rows * tile.vectors + tile.vectors + 1 <= host().registers
    assert Tile(6, 2).small == 4


def test_operands_as_large_as_the_result_are_asked_for_before_they_are_read():
    tile = tile_for(host(), 64)
    added = apply("add", load(0, "float32"), load(1, "float32"))
    asked = [
        ProductKernel("rows", tile, Finish(added, (reach,))).emit("k").count("call void @llvm.prefetch")
        for reach in ("full", "column")
    ]
    lines = -(-tile.vectors * host().lanes(4) // 16)
    assert asked[0] - asked[1] == (tile.rows + tile.small) * lines


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("kind", ["FLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL"])
def test_results_of_another_type_than_the_convolution(kind, group):
    rng = np.random.default_rng(5)
    weights = {"w": rng.standard_normal((16, 16 // group, 3, 3)) * 0.1, "b": np.linspace(1, 40, 16)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["z"], pads=[1, 1, 1, 1], group=group),
        helper.make_node("Cast", ["z"], ["c"], to=getattr(TensorProto, kind)),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    x = rng.standard_normal((2, 16, 9, 9)).astype(np.float32)
    data = network(nodes, weights, x.shape)
    y, report = native(data, x)
    assert report.host_step_count == 0
    assert (np.abs(y - oracle(data, x)) < 1e-3).mean() > 0.99
