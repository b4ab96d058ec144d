"""Products of values made at run time, sums of columns, loops with several results: forms and odd sizes."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.cpu.jit.compiler import call
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.packing import ColumnSumKernel, PackKernel
from pyflame_rt.backends.cpu.lower.kernel_choice import choosing
from pyflame_rt.backends.cpu.lower.lowering import KernelStep
from pyflame_rt.backends.cpu.run.executable import CpuBackend
from pyflame_rt.loading import load_graph
from tests.tolerances import within


def _bytes(nodes, inputs, outputs, weights=()):
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    model = helper.make_model(
        helper.make_graph(nodes, "g", infos, outs, weights), opset_imports=[helper.make_opsetid("", 21)]
    )
    return model.SerializeToString()


def session(nodes, inputs, outputs, weights=()):
    return pyflame_rt.InferenceSession(_bytes(nodes, inputs, outputs, weights))


def run(made, feeds):
    return made.run(None, feeds)


@pytest.mark.parametrize("width", [1, 5])
def test_a_bias_that_is_one_number_of_no_axes(width):
    """One column and such a bias were a fault of the engine (an IndexError), and the product was taken by NumPy."""
    rng = np.random.default_rng(width)
    a, b = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(4, width)).astype(np.float32)
    bias = np.float32(2.5)
    made = session([helper.make_node("Gemm", ["a", "b", "c"], ["y"])], {"a": ("N", 4), "b": (4, width), "c": ()}, ["y"])
    np.testing.assert_allclose(run(made, {"a": a, "b": b, "c": np.asarray(bias)})[0], a @ b + bias, rtol=1e-5)


SIZES = [(64, 96, 160), (65, 97, 131), (7, 300, 333), (301, 1025, 5), (130, 64, 17), (1024, 33, 48)]


@pytest.mark.parametrize(("rows", "depth", "width"), SIZES)
@pytest.mark.parametrize("turned", ["none", "a", "b", "both", "result"])
def test_products_of_both_directions(rows, depth, width, turned):
    rng = np.random.default_rng(rows)
    a, b = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, width)).astype(np.float32)
    feeds = {"a": a.T.copy() if turned in ("a", "both") else a, "b": b.T.copy() if turned in ("b", "both") else b}
    nodes = []
    names = {}
    for name in "ab":
        names[name] = name
        if turned in (name, "both"):
            nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=[1, 0]))
            names[name] = f"{name}t"
    nodes.append(helper.make_node("MatMul", [names["a"], names["b"]], ["c" if turned == "result" else "y"]))
    if turned == "result":
        nodes.append(helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0]))
    made = session(nodes, {n: list(x.shape) for n, x in feeds.items()}, ["y"])
    (y,) = run(made, feeds)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y, want.T if turned == "result" else want, rtol=1e-4, atol=1e-3)
    with choosing(prefer="library"):
        again = session(nodes, {n: list(x.shape) for n, x in feeds.items()}, ["y"])
        np.testing.assert_allclose(run(again, feeds)[0], y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("constant", [False, True], ids=["moving", "constant"])
@pytest.mark.parametrize("added", [(65, 131), (131,), (65, 1), (1, 1), ()])
def test_what_is_added_to_a_product_in_every_form(added, constant):
    rng = np.random.default_rng(3)
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in (("a", (97, 65)), ("b", (97, 131)), ("c", added))}
    nodes = [helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=1)]
    weights = [numpy_helper.from_array(feeds["b"], "b")] if constant else []
    given = {n: x for n, x in feeds.items() if n != "b" or not constant}
    made = session(nodes, {n: list(x.shape) for n, x in given.items()}, ["y"], weights)
    (y,) = run(made, given)
    want = feeds["a"].T.astype(np.float64) @ feeds["b"].astype(np.float64) + feeds["c"]
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-3)


def test_a_matrix_added_to_a_product_is_no_slow_primitive_of_the_library():
    sizes = {"a": [64, 96], "b": [96, 160], "c": [64, 160]}
    feeds = {n: np.ones(s, np.float32) for n, s in sizes.items()}
    graph, _ = load_graph(_bytes([helper.make_node("Gemm", ["a", "b", "c"], ["y"])], sizes, ["y"]))
    executable = CpuBackend().compile(graph, SimpleNamespace())
    try:
        executable.run(feeds, ["y"], RunHooks())
        assert all(isinstance(step, KernelStep) for step in executable._last.lowered.steps)
    finally:
        executable.close()


def test_turned_rows_of_two_products_are_packed_once():
    rng = np.random.default_rng(8)
    sizes = {"d": [160, 70], "x": [160, 64], "h": [160, 48]}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    nodes = [
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "x"], ["wx"]),
        helper.make_node("MatMul", ["t", "h"], ["wh"]),
        # A value that is packed from another memory, though of the same sizes.
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Transpose", ["e"], ["et"], perm=[1, 0]),
        helper.make_node("MatMul", ["et", "h"], ["we"]),
    ]
    made = session(nodes, sizes, ["wx", "wh", "we"])
    found = run(made, feeds)
    d, x, h = (feeds[n].astype(np.float64) for n in "dxh")
    for one, want in zip(found, (d.T @ x, d.T @ h, np.maximum(d, 0).T @ h), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-3)
    graph, _ = load_graph(_bytes(nodes, sizes, ["wx", "wh", "we"]))
    executable = CpuBackend().compile(graph, SimpleNamespace())
    try:
        executable.run(feeds, ["wx", "wh", "we"], RunHooks())
        keys = [step.kernel.key for step in executable._last.lowered.steps if isinstance(step, KernelStep)]
    finally:
        executable.close()
    assert sum(key.startswith("pack rows") for key in keys) == 2


def test_rows_of_several_axes_with_bias_residual_and_activation():
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.normal(size=(4, 33, 72)).astype(np.float32),
        "w": rng.normal(size=(72, 90)).astype(np.float32),
        "bias": rng.normal(size=(90,)).astype(np.float32),
        "rest": rng.normal(size=(4, 33, 90)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Add", ["r", "rest"], ["y"]),
    ]
    made = session(nodes, {n: list(x.shape) for n, x in feeds.items()}, ["y"])
    (y,) = run(made, feeds)
    want = np.maximum(feeds["x"].astype(np.float64) @ feeds["w"] + feeds["bias"], 0) + feeds["rest"]
    np.testing.assert_allclose(y, want, **within("layers"))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 130, 1001])
@pytest.mark.parametrize("columns", [8, 33, 64, 1000, 2500])
def test_sums_of_columns(rows, columns, mean):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(2, rows, columns)).astype(np.float32)
    wide = np.full((2, rows, columns + 3), np.nan, np.float32)
    wide[:, :, :columns] = x
    out = np.full(2 * columns + 1, 7, np.float32)
    width, items = 96, -(-columns // 96)
    call(
        ColumnSumKernel(mean),
        [wide.ctypes.data, out.ctypes.data],
        [rows, columns, columns + 3, width, items, rows * (columns + 3)],
        0,
        2 * items,
    )
    exact = x.astype(np.float64)
    want = exact.mean(1) if mean else exact.sum(1)
    np.testing.assert_allclose(out[:-1].reshape(2, -1), want, **within("layers"))
    assert out[-1] == 7


@pytest.mark.parametrize("columns", [1, 15, 16, 40])
def test_packing_fills_the_last_panel_with_zeros(columns):
    lanes = host().lanes(4)
    x = np.random.default_rng(0).normal(size=(11, columns)).astype(np.float32)
    count = -(-columns // (2 * lanes))
    out = np.full((count, 11, 2 * lanes), 9, np.float32)
    call(PackKernel(2), [x.ctypes.data, out.ctypes.data], [11, columns, columns], 0, -(-11 // PackKernel.ROWS))
    padded = np.pad(x, ((0, 0), (0, count * 2 * lanes - columns)))
    np.testing.assert_array_equal(out, padded.reshape(11, count, 2 * lanes).transpose(1, 0, 2))


@pytest.mark.parametrize("shape", [(40, 70), (3, 40, 70), (2, 3, 17, 33)])
def test_sums_over_leading_axes(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    axes = helper.make_tensor("axes", TensorProto.INT64, [len(shape) - 1], list(range(len(shape) - 1)))
    nodes = [
        helper.make_node("Constant", [], ["axes"], value=axes),
        helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0),
    ]
    made = session(nodes, {"x": list(shape)}, ["y"])
    np.testing.assert_allclose(run(made, {"x": x})[0], x.reshape(-1, shape[-1]).sum(0), **within("layers"))


def test_a_loop_hands_out_what_it_computes_on_the_way():
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(50, 60)).astype(np.float32) for n in "pgm"}
    nodes = [
        helper.make_node("Mul", ["g", "g"], ["square"]),
        helper.make_node("Add", ["m", "square"], ["m2"]),
        helper.make_node("Sqrt", ["m2"], ["root"]),
        helper.make_node("Div", ["g", "root"], ["move"]),
        helper.make_node("Sub", ["p", "move"], ["p2"]),
        helper.make_node("Neg", ["move"], ["down"]),
        helper.make_node("ReduceSum", ["down"], ["total"], keepdims=0),
    ]
    feeds["m"] = np.abs(feeds["m"]) + 1
    made = session(nodes, {n: [50, 60] for n in feeds}, ["m2", "p2", "total"])
    m2, p2, total = run(made, feeds)
    want = feeds["m"] + feeds["g"] ** 2
    np.testing.assert_allclose(m2, want, rtol=1e-6)
    np.testing.assert_allclose(p2, feeds["p"] - feeds["g"] / np.sqrt(want), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, -(feeds["g"] / np.sqrt(want)).sum(), rtol=1e-3, atol=1e-3)
    assert len(made.explain().rows) >= 1


@pytest.mark.parametrize("perm", [(1, 0), (0, 2, 1), (2, 1, 0), (0, 3, 1, 2)])
@pytest.mark.parametrize("size", [8, 19])
def test_copies_of_transposed_values(perm, size):
    shape = tuple(range(size, size + len(perm)))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    made = session([helper.make_node("Transpose", ["x"], ["y"], perm=list(perm))], {"x": list(shape)}, ["y"])
    np.testing.assert_array_equal(run(made, {"x": x})[0], x.transpose(perm))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape", [(1, 32, 20, 24), (3, 40, 9, 5), (2, 8, 1, 2)])
def test_means_of_channels_after_a_convolution(shape, keepdims):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    filters = np.random.default_rng(1).normal(size=(shape[1], 1, 3, 3)).astype(np.float32)
    axes = np.array([2, 3], np.int64)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=shape[1], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["c", "axes"], ["y"], keepdims=keepdims),
        helper.make_node("ReduceMean", ["x", "first"], ["z"], keepdims=keepdims),
        helper.make_node("Identity", ["c"], ["kept"]),
    ]
    weights = [numpy_helper.from_array(a, n) for a, n in ((filters, "w"), (axes, "axes"), (np.array([1]), "first"))]
    made = session(nodes, {"x": list(shape)}, ["y", "z", "kept"], weights)
    y, z, kept = run(made, {"x": x})
    np.testing.assert_allclose(y, kept.astype(np.float64).mean((2, 3), keepdims=bool(keepdims)), **within("sums"))
    np.testing.assert_allclose(z, x.astype(np.float64).mean(1, keepdims=bool(keepdims)), **within("sums"))
