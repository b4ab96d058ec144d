"""Pooling: windows against ONNX Runtime, indices, unknown sizes, gradients, older opsets."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

RNG = np.random.default_rng(13)
N, H = symbol("N"), symbol("H")
LIBRARIES = ("numpy", "torch", "mlx")


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(op, *arrays, library="numpy", outputs=("y",), domain="", **attributes):
    context = Context.of(library)
    moved = [None if a is None else context.library.from_numpy(a) for a in arrays]
    results = evaluate(Node("n", op, ["x"] * len(arrays), outputs, attributes, domain), moved, context)
    return [context.library.to_numpy(r) for r in results]


def infer(op, *values, **attributes):
    found = get_op(op)
    given = [
        v if isinstance(v, Value) else Value("v", TensorType(DType.Float32, v if v is None else Shape(v)))
        for v in values
    ]
    return [v.type for v in infer_outputs(found, given, found.signature.bind(attributes, op))]


GEOMETRIES = [
    ((2, 3, 9), {"kernel_shape": [3]}),
    ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 2], "ceil_mode": 1}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 7, 8), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [0, 0, 1, 1]}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 4], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 8), {"kernel_shape": [3, 4], "strides": [2, 1], "auto_pad": "VALID"}),
    ((1, 2, 5, 4, 6), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 2], "pads": [1, 0, 1, 0, 1, 1]}),
]


@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES)
@pytest.mark.parametrize("order", [0, 1])
def test_max_pool(agrees_with_onnxruntime, shape, attributes, order):
    agrees_with_onnxruntime(
        "MaxPool", [f32(*shape)], {**attributes, "storage_order": order}, domain="", outputs=("y", "i")
    )


@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(agrees_with_onnxruntime, shape, attributes, include):
    agrees_with_onnxruntime("AveragePool", [f32(*shape)], {**attributes, "count_include_pad": include}, domain="")


@pytest.mark.parametrize(("shape", "attributes"), GEOMETRIES)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(agrees_with_onnxruntime, shape, attributes, p):
    agrees_with_onnxruntime("LpPool", [f32(*shape)], {**attributes, "p": p}, domain="", atol=1e-4)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 2, 3)])
def test_global_pools(agrees_with_onnxruntime, op, shape):
    agrees_with_onnxruntime(op, [f32(*shape)], domain="", atol=1e-4)


def test_max_pool_computes_indices_only_when_asked():
    x = f32(1, 1, 4)
    assert len(run("MaxPool", x, kernel_shape=[2])) == 1
    assert len(run("MaxPool", x, kernel_shape=[2], outputs=("y", "i"))) == 2


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float64", ml_dtypes.bfloat16])
def test_max_pool_of_every_type(library, dtype):
    x = (
        np.array([[[3, 1, 2, 5, 4]]]).astype(dtype)
        if dtype == "uint8"
        else np.array([[[-3, -1, -2, -5, -4]]]).astype(dtype)
    )
    y, i = run("MaxPool", x, kernel_shape=[2], pads=[1, 0], library=library, outputs=("y", "i"))
    places = [0, 0, 2, 3, 3] if dtype == "uint8" else [0, 1, 1, 2, 4]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(i.ravel(), places)
    np.testing.assert_array_equal(y.ravel(), x.ravel()[places])


@pytest.mark.parametrize("library", LIBRARIES)
def test_max_pool_keeps_nan_and_takes_the_first_of_equals(library):
    x = np.array([[[1.0, 1.0, np.nan, 2.0, np.nan]]], np.float32)
    y, i = run("MaxPool", x, kernel_shape=[2], library=library, outputs=("y", "i"))
    np.testing.assert_array_equal(y.ravel(), [1, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(i.ravel(), [0, 2, 2, 4])


def test_pool_shapes():
    assert [t.shape for t in infer("MaxPool", [N, 3, H, 8], kernel_shape=[3, 3], pads=[1] * 4)] == [[N, 3, H, 8]] * 2
    assert infer("MaxPool", [N, 3, H], kernel_shape=[2], strides=[2])[0].shape == [N, 3, (H - 2) // 2 + 1]
    assert infer("AveragePool", [N, 3, H], kernel_shape=[2], strides=[2], ceil_mode=1)[0].shape == [N, 3, None]
    assert infer("LpPool", [N, 3, H], kernel_shape=[2], auto_pad="SAME_UPPER")[0].shape == [N, 3, H]
    assert infer("AveragePool", None, kernel_shape=[2])[0].shape is None
    assert infer("GlobalAveragePool", [N, 3, H, 7])[0].shape == [N, 3, 1, 1]


def test_pool_errors():
    with pytest.raises(ShapeMismatchError, match="batch, channel and space"):
        infer("MaxPool", [2, 3], kernel_shape=[2])
    with pytest.raises(PyFlameRTError, match="does not fit"):
        run("MaxPool", f32(1, 1, 3), kernel_shape=[5])
    with pytest.raises(PyFlameRTError, match="kernel_shape"):
        run("AveragePool", f32(1, 1, 3), kernel_shape=[2, 2])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("shape", "attributes"), [g for g in GEOMETRIES if len(g[0]) < 5])
def test_pool_gradient(gradients_match, op, shape, attributes):
    # Far apart, so that a small step changes no maximum.
    x = RNG.permutation(np.prod(shape)).reshape(shape) * 0.1 + 0.05
    gradients_match(op, [x], attributes)


def test_global_pool_gradient(gradients_match):
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        gradients_match(op, [RNG.permutation(12).reshape(1, 2, 2, 3) * 0.1 + 0.05])


@pytest.mark.parametrize("library", LIBRARIES)
def test_max_unpool_puts_back(library):
    x = f32(2, 3, 4, 6)
    geometry = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, i = run("MaxPool", x, **geometry, outputs=("y", "i"), library=library)
    (back,) = run("MaxUnpool", y, i, **geometry, library=library)
    np.testing.assert_array_equal(back, np.where(np.isin(np.arange(x.size).reshape(x.shape), i), x, 0))
    (larger,) = run("MaxUnpool", y, i, np.array([2, 3, 5, 7]), **geometry, library=library)
    np.testing.assert_array_equal(larger[:, :, :4, :6], back)
    assert larger.shape == (2, 3, 5, 7)
    assert not larger[:, :, 4:].any()


def test_max_unpool_shapes():
    geometry = {"kernel_shape": [2], "strides": [2]}
    assert infer("MaxUnpool", [N, 3, H], [N, 3, H], **geometry)[0].shape == [N, 3, 2 * H]
    size = Value("s", TensorType(DType.Int64, Shape([3])), np.array([1, 3, 9]))
    assert infer("MaxUnpool", [N, 3, H], [N, 3, H], size, **geometry)[0].shape == [1, 3, 9]


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.7])
def test_max_roi_pool(agrees_with_onnxruntime, scale):
    rois = np.array([[0, 0, 0, 9, 9], [1, 2, 3, 5, 12], [0, 5, 5, 5, 5], [1, 20, 20, 30, 30]], np.float32)
    attributes = {"pooled_shape": [2, 3], "spatial_scale": scale}
    agrees_with_onnxruntime("MaxRoiPool", [f32(2, 3, 10, 8), rois], attributes, domain="")
    assert infer("MaxRoiPool", [N, 3, H, 8], [4, 5], **attributes)[0].shape == [4, 3, 2, 3]


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("LpPool", {"kernel_shape": [2], "p": 1.0}, [3, 5]),
        ("GlobalLpPool", {"p": 2.0}, [np.sqrt(14)]),
        ("MaxPool", {"kernel_shape": [2]}, [2, 3]),
        ("AveragePool", {"kernel_shape": [2], "pads": [1, 0]}, [1, 1.5, 2.5]),
    ],
)
def test_version_1(op, attributes, expected):
    info = oh.make_tensor_value_info("x", 1, [1, 1, 3]), oh.make_tensor_value_info("y", 1, None)
    graph = oh.make_graph([oh.make_node(op, ["x"], ["y"], **attributes)], "g", [info[0]], [info[1]])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 1)])
    (y,) = Program(graph_from_bytes(model.SerializeToString())).run([np.array([[[1, 2, 3]]], np.float32)], Context.of())
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-6)


def test_average_pool_traces_with_sizes_known_when_running():
    """Without them only windows that stick out cannot be written down."""
    from pyflame_rt.ops.core.trace import trace

    op = get_op("AveragePool")
    x = f32(2, 3, 7)
    for attributes in ({}, {"pads": [1, 0]}, {"pads": [1, 0], "count_include_pad": 1}):
        bound = op.signature.bind({"kernel_shape": [3], "strides": [2], **attributes}, "AveragePool")
        body, _ = trace(op, [Value("x", TensorType(DType.Float32, Shape([N, 3, H])))], bound)
        (y,) = Program(body).run([x], Context.of())
        np.testing.assert_array_equal(y, run("AveragePool", x, kernel_shape=[3], strides=[2], **attributes)[0])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (5, 2), (6, 2), (6, 3), (7, 3)])
def test_windows_larger_than_the_data_count_as_in_onnxruntime(agrees_with_onnxruntime, op, kernel, stride):
    attributes = {"kernel_shape": [kernel], "strides": [stride]}
    agrees_with_onnxruntime(op, [f32(2, 3, 4)], attributes, domain="", opset=22)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"), [(4, 5, 3, [0, 0]), (2, 5, 2, [1, 1]), (2, 7, 9, [0, 2])]
)
def test_means_of_a_window_larger_than_the_data(agrees_with_onnxruntime, size, kernel, stride, pads, counted):
    """What lies beyond the padding does not count (with dilations, onnxruntime takes its kernel of opset 19)."""
    attributes = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "count_include_pad": counted}
    agrees_with_onnxruntime("AveragePool", [f32(1, 2, size)], {**attributes, "dilations": [1]}, domain="")
    graph = Graph("g")
    graph.add_input("x", [None, None, None])
    graph.add_node("n", "AveragePool", ["x"], ["y"], attributes)
    graph.add_output("y", [None, None, None])
    x = f32(1, 2, size)
    found, expected = (
        InferenceSession(graph, providers=[f"{name}ExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("CPU", "Reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
