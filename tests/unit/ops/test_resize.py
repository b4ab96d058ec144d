"""Resize: against ONNX Runtime, older forms, sizes known and symbolic, gradients."""

import numpy as np
import onnx
import onnx.helper as oh
import onnxruntime
import pytest

from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

X = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)


def floats(*values):
    return np.array(values, np.float32)


def infer(scales=None, sizes=None, shape=("N", 3, "H", 8), **attributes):
    op = get_op("Resize")

    def known(array):
        return None if array is None else Value("v", TensorType(DType.of(array.dtype), Shape(array.shape)), array)

    x = Value("x", TensorType(DType.Float32, None if shape is None else Shape(shape)))
    values = [x, None, known(scales), known(sizes)]
    return infer_outputs(op, values, op.signature.bind(attributes, "Resize"))[0].type.shape


@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.6, 0.7), (1, 1, 1.7, 0.5)])
@pytest.mark.parametrize("place", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest"},
        {"mode": "nearest", "nearest_mode": "ceil"},
        {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1},
    ],
    ids=str,
)
def test_scales(agrees_with_onnxruntime, scales, place, how):
    attributes = {**how, "coordinate_transformation_mode": place}
    agrees_with_onnxruntime("Resize", [X, None, floats(*scales)], attributes, domain="", opset=19)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("place", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_sizes(agrees_with_onnxruntime, mode, place):
    attributes = {"mode": mode, "coordinate_transformation_mode": place}
    agrees_with_onnxruntime("Resize", [X, None, None, np.array([1, 2, 9, 4])], attributes, domain="", opset=19)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crop(agrees_with_onnxruntime, mode):
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    roi = floats(0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3)
    agrees_with_onnxruntime("Resize", [X, roi, None, np.array([1, 2, 4, 6])], attributes, domain="", opset=13)


OLD = [
    (7, "Upsample", [X], {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]}),
    (9, "Upsample", [X, floats(1, 1, 2, 1.5)], {"mode": "nearest"}),
    (10, "Resize", [X, floats(1, 1, 2, 1.5)], {"mode": "linear"}),
    (10, "Resize", [X, floats(1, 1, 0.6, 0.7)], {"mode": "linear"}),
    (10, "Resize", [X, floats(1, 1, 2, 1.5)], {"mode": "nearest"}),
    (10, "Resize", [X, floats(1, 1, 0.6, 0.7)], {}),
    (10, "Resize", [X, floats(1, 1, 1.7, 0.3)], {"mode": "nearest"}),
    (11, "Resize", [X, floats(), floats(1, 1, 2, 1.5)], {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}),
]


@pytest.mark.parametrize(
    ("opset", "op", "arrays", "attributes"), OLD, ids=[f"{i}: {c[1]}-{c[0]}" for i, c in enumerate(OLD)]
)
def test_older_forms(opset, op, arrays, attributes):
    model = old_model(opset, op, arrays, attributes)
    (ours,) = Program(graph_from_bytes(model)).run(arrays, Context.of())
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.7), (1, 1, 1.7, 0.3), (1, 1, 1, 2)])
def test_the_nearest_of_version_10_with_scales_that_are_known(scales):
    model = onnx.load_from_string(old_model(10, "Resize", [X, floats(*scales)], {"mode": "nearest"}))
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(*scales), "x1"))
    graph = graph_from_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x0": X})
    np.testing.assert_array_equal(Program(graph).run([X], Context.of())[0], theirs)


def test_an_upsample_that_makes_smaller_takes_the_pixel_before():
    model = old_model(9, "Upsample", [X, floats(1, 1, 0.6, 0.5)], {"mode": "nearest"})
    (y,) = Program(graph_from_bytes(model)).run([X, floats(1, 1, 0.6, 0.5)], Context.of())
    np.testing.assert_array_equal(y, X[:, :, [0, 1, 3]][..., [0, 2, 4]])


def old_model(opset, op, arrays, attributes):
    infos = [oh.make_tensor_value_info(f"x{i}", 1, a.shape) for i, a in enumerate(arrays)]
    node = oh.make_node(op, [i.name for i in infos], ["y"], **attributes)
    graph = oh.make_graph([node], "g", infos, [oh.make_tensor_value_info("y", 1, None)])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8).SerializeToString()


def test_the_first_upsample_names_height_and_width():
    model = old_model(1, "Upsample", [X], {"height_scale": 2.0, "width_scale": 3.0})
    (y,) = Program(graph_from_bytes(model)).run([X], Context.of())
    np.testing.assert_array_equal(y, X.repeat(2, axis=2).repeat(3, axis=3))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.float64, np.int64])
def test_types_stay(dtype):
    x = np.array([[0, 100]], dtype)
    node = Node("n", "Resize", ["x", "", "s"], ["y"], {"mode": "linear"})
    (y,) = evaluate(node, [x, None, floats(1, 2)])
    assert y.dtype == dtype
    assert y.tolist() == [[0, 25, 75, 100]]


def test_strings_can_be_repeated():
    node = Node("n", "Resize", ["x", "", "s"], ["y"])
    (y,) = evaluate(node, [np.array(["a", "b"], object), None, floats(2)])
    assert y.tolist() == ["a", "a", "b", "b"]


def test_inference_multiplies_symbols():
    n, h = symbol("N"), symbol("H")
    assert infer(floats(1, 1, 2, 0.5)) == (n, 3, h * 2, 4)
    assert infer(floats(1, 1, 0.5, 1)) == (n, 3, h // 2, 8)
    assert infer(floats(1, 1, 0.3, 1)) == (n, 3, None, 8)
    assert infer(floats(3, 3), axes=[2, 3]) == (n, 3, h * 3, 24)
    assert infer(sizes=np.array([5, 6]), axes=[-1, 1]) == (n, 6, h, 5)
    assert infer(sizes=np.array([4, 4]), axes=[2, 3], keep_aspect_ratio_policy="not_larger") == (n, 3, None, None)
    assert infer(floats(1), shape=None) is None


def test_scaled_sizes_round_as_float32_does():
    # 10 * float32(0.7) is below 7 in float64, and 7 in float32.
    assert infer(floats(0.7), shape=(10,)) == (7,)


def test_mistakes():
    def run(*arrays, **attributes):
        return evaluate(Node("n", "Resize", ["x"] * len(arrays), ["y"], attributes), arrays)

    with pytest.raises(InputError, match="exactly one"):
        run(X)
    with pytest.raises(ShapeMismatchError, match="2 entries, 4 axes"):
        run(X, None, floats(1, 2))
    with pytest.raises(InputError, match="mode is 'area'"):
        run(X, None, floats(1, 1, 2, 2), mode="area")
    with pytest.raises(InputError, match="not known"):
        run(X, None, floats(1, 1, 2, 2), coordinate_transformation_mode="middle")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_gradient_sums_the_weights(mode):
    g = Graph("g")
    g.add_input("x", [1, 3], DType.Float64)
    g.add_initializer("s", floats(1, 2))
    g.add_node("r", "Resize", ["x", "", "s"], ["y"], {"mode": mode})
    g.add_output("y", [1, 6], DType.Float64)
    x = np.array([[0.3, -1.0, 2.0]])
    _, slope = Program(gradient(g, ["y"], ["x"])).run([x], Context.of())
    for i in range(3):
        step = np.zeros_like(x)
        step[0, i] = 1e-3
        up, down = (Program(g).run([x + d], Context.of())[0].sum() for d in (step, -step))
        np.testing.assert_allclose(slope[0, i], (up - down) / 2e-3, rtol=1e-6)


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_are_above_0(number, policy):
    node = Node("n", "Resize", ["x", "", "", "s"], ["y"], {"keep_aspect_ratio_policy": policy})
    with pytest.raises(InputError, match=rf"sizes is {number} at \[3\].*above 0"):
        evaluate(node, [X, None, None, np.array([1, 2, 5, number])], Context.of("numpy"))
    with pytest.raises(InputError, match="above 0"):
        infer(sizes=np.array([1, 3, 5, number]))


@pytest.mark.parametrize("number", [0.0, -1.0, np.nan, np.inf])
def test_scales_are_above_0(number):
    with pytest.raises(InputError, match=r"scales is .* at \[2\].*above 0"):
        evaluate(Node("n", "Resize", ["x", "", "s"], ["y"]), [X, None, floats(1, 1, number, 1)], Context.of("numpy"))


def test_no_images_stay_none():
    node = Node("n", "Resize", ["x", "", "", "s"], ["y"])
    assert evaluate(node, [X[:0], None, None, np.array([0, 2, 10, 7])], Context.of("numpy"))[0].shape == (0, 2, 10, 7)


@pytest.mark.parametrize("policy", ["stretch", "not_larger"])
def test_nothing_cannot_be_made_larger(policy):
    """It was a division by zero."""
    node = Node("n", "Resize", ["x", "", "", "s"], ["y"], {"keep_aspect_ratio_policy": policy})
    with pytest.raises(InputError, match=r"sizes is 10 at \[2\], but axis 2 of the input has no elements"):
        evaluate(node, [X[:, :, :0], None, None, np.array([1, 2, 10, 7])], Context.of("numpy"))
