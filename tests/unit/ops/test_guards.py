"""What operators require of sizes, indices and lengths, by the interpreter, natively and in checked mode."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import SessionOptions
from pyflame_rt.graph import AnyType, DType, Graph, TensorInfo
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops import get_op
from pyflame_rt.ops.core.guards import enforce
from pyflame_rt.ops.core.value import Value

F32 = np.float32
PARTS = [("Split", ["x", "s"], ["y", "z"], {})]
DIVIDED = [("Div", ["x", "z"], ["y"], {})]
WAYS = ["Reference", "CPU", "checked"]


def f32(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(F32)


def i64(*values: object):
    return np.array(values, np.int64)


def run(way, nodes, feeds, constants=(), outputs=("y",)):
    """Outputs of a graph of named nodes: (operator, inputs, outputs, attributes)."""
    graph = Graph("g")
    for name, value in feeds.items():
        graph.add_input(name, [None] * value.ndim, DType.of(value.dtype))
    for name, value in dict(constants).items():
        graph.add_initializer(name, np.asarray(value))
    for op, inputs, made, attributes in nodes:
        domain, _, name = op.rpartition("::")
        graph.add_node(f"my_{name}" if op != "Cast" else made[0], name, inputs, made, attributes, domain=domain)
    for name in outputs:
        graph.add_output(TensorInfo(name, type=AnyType()))
    provider = "Reference" if way == "Reference" else "CPU"
    options = SessionOptions() if way == "Reference" else SessionOptions(num_threads=1, checked=way == "checked")
    session = pyflame_rt.InferenceSession(graph, options, providers=[f"{provider}ExecutionProvider"])
    return session.run(None, feeds)


W, R = f32(1, 16, 3), f32(1, 16, 4)
LSTM = [("LSTM", ["x", "w", "r", "", "lens", "h"], ["y"], {"hidden_size": 4})]
SEQUENCE = {"x": f32(5, 2, 3), "lens": np.array([5, 3], np.int32), "h": f32(1, 2, 4)}
WEIGHTS = {"w": W, "r": R}
GQA = [
    ("com.microsoft::GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lens", "total"], ["y", "nk", "nv"],
     {"num_heads": 2, "kv_num_heads": 1}),
]  # fmt: skip
GROUPS = {
    "q": f32(2, 1, 16), "k": f32(2, 1, 8), "v": f32(2, 1, 8), "pk": f32(2, 1, 3, 8), "pv": f32(2, 1, 3, 8),
    "lens": np.array([3, 3], np.int32), "total": np.array(4, np.int32),
}  # fmt: skip
TURN = [("com.microsoft::RotaryEmbedding", ["x", "p", "c", "s"], ["y"], {})]
ANGLES = {"x": f32(1, 2, 3, 8), "p": i64(2), "c": f32(6, 4), "s": f32(6, 4)}

REFUSED = [
    ("parts that are too many", PARTS, {"x": f32(6)}, {"s": i64(4, 9)}, "13, but must be 6"),
    ("parts that are too few", PARTS, {"x": f32(6)}, {"s": i64(2, 3)}, "5, but must be 6"),
    ("parts when running", PARTS, {"x": f32(6), "s": i64(4, 9)}, {}, "13, but must be 6"),
    ("a batch of states", LSTM, {**SEQUENCE, "h": f32(1, 1, 4)}, WEIGHTS, r"\[1, 1, 4\], but must have \[1, 2, 4\]"),
    ("a width of states", LSTM, {**SEQUENCE, "h": f32(1, 2, 3)}, WEIGHTS, r"\[1, 2, 3\], but must have \[1, 2, 4\]"),
    ("long sequences", LSTM, {**SEQUENCE, "lens": np.array([2, 9], np.int32)}, WEIGHTS, r"9 at \[1\].* from 0 to 5"),
    ("negative sequences", LSTM, {**SEQUENCE, "lens": np.array([-1, 2], np.int32)}, WEIGHTS, r"-1 at \[0\].* 0 to 5"),
    ("few lengths", LSTM, {**SEQUENCE, "lens": np.array([5], np.int32)}, WEIGHTS, r"\[1\], but must have \[2\]"),
    ("a constant index", [("Gather", ["x", "i"], ["y"], {})], {"x": f32(6)}, {"i": np.array(7)}, "7, .* from -6 to 5"),
    ("an index", [("Gather", ["x", "i"], ["y"], {})], {"x": f32(6), "i": i64(7)}, {}, "7 at .* from -6 to 5"),
    ("an axis", [("CumSum", ["x", "a"], ["y"], {})], {"x": f32(6)}, {"a": np.array(1)}, "axis 1 is out of range"),
    ("an axis when running", [("CumSum", ["x", "a"], ["y"], {})], {"x": f32(6), "a": np.array(3)}, {}, "axis 3"),
    ("a short scale", [("BatchNormalization", ["x", "s", "t", "t", "t"], ["y"], {})], {"x": f32(1, 3, 2)},
     {"s": np.ones(1, F32), "t": np.ones(3, F32)}, r"scale has shape \[1\], but must have \[3\]"),
    ("a short bias", [("Conv", ["x", "w", "b"], ["y"], {})], {"x": f32(1, 2, 5), "b": f32(1)}, {"w": f32(3, 2, 3)},
     r"B has shape \[1\], but must have \[3\]"),
    ("a length of the cache", GQA, {**GROUPS, "lens": np.array([3, 9], np.int32)}, {}, r"seqlens_k is 9 at .* 0 to 3"),
    ("a total length", GQA, {**GROUPS, "total": np.array(9, np.int32)}, {}, "total_sequence_length is 9.* from 1 to 4"),
    ("lengths of the cache", GQA, {**GROUPS, "lens": np.array([3], np.int32)}, {}, r"seqlens_k has shape \[1\]"),
    ("a position", TURN, {**ANGLES, "p": i64(5)}, {}, "position_ids is 5.* from 0 to 3"),
    ("a negative position", TURN, {**ANGLES, "p": i64(-1)}, {}, "position_ids is -1.* from 0 to 3"),
    ("another cache", TURN, {**ANGLES, "s": f32(6, 3)}, {}, r"sin_cache has shape \[6, 3\]"),
    ("division by zero", DIVIDED, {"x": i64(1, 2), "z": i64(1, 0)}, {}, r"B is 0 at \[1\].* not be 0"),
    ("division by a constant zero", DIVIDED, {"x": i64(1)}, {"z": i64(0)}, "not be 0"),
    ("a remainder by zero", [("Mod", ["x", "z"], ["y"], {})], {"x": i64(1, 2), "z": i64(1, 0)}, {}, r"B is 0 at \[1\]"),
    ("a length to reverse", [("ReverseSequence", ["x", "n"], ["y"], {})], {"x": f32(4, 2), "n": i64(4, 5)}, {},
     r"sequence_lens is 5 at \[1\].* from 0 to 4"),
    ("a place in a cache", [("TensorScatter", ["x", "u", "p"], ["y"], {})],
     {"x": f32(2, 3, 1), "u": f32(2, 1, 1), "p": i64(0, 3)}, {}, r"write_indices is 3 at \[1\].* from 0 to 2"),
    ("Gemm's C is wider than the product", [("Gemm", ["x", "w", "c"], ["y"], {})],
     {"x": f32(4, 3), "w": f32(3, 1), "c": f32(2)}, {}, r"C has shape \[2\], which does not broadcast to \[4, 1\]"),
    ("PRelu's slope is wider than X", [("PRelu", ["x", "s"], ["y"], {})],
     {"x": f32(3, 1), "s": f32(2)}, {}, r"slope has shape \[2\]"),
    ("sizes in a matrix", [("Reshape", ["x", "s"], ["y"], {})], {"x": f32(6), "s": i64([2, 3])}, {}, "not a vector"),
    ("Expand to -1", [("Expand", ["x", "s"], ["y"], {})],
     {"x": f32(2, 3), "s": i64(-1, 3)}, {}, r"shape is -1 at \[0\]"),
    ("Tile -1 times", [("Tile", ["x", "s"], ["y"], {})],
     {"x": f32(2, 3), "s": i64(1, -1)}, {}, r"repeats at \[1\] is -1"),
    ("ConstantOfShape of -2", [("ConstantOfShape", ["s"], ["y"], {})], {"s": i64(3, -2)}, {}, r"input at \[1\] is -2"),
    ("MaxUnpool before the first", [("MaxUnpool", ["x", "i"], ["y"], {"kernel_shape": [2], "strides": [2]})],
     {"x": f32(1, 1, 2), "i": i64([[0, -1]])}, {}, r"I is -1 at \[0, 0, 1\].* from 0 to 3"),
    ("RoiAlign of an image that is not there", [("RoiAlign", ["x", "r", "b"], ["y"], {})],
     {"x": f32(2, 1, 4, 4), "r": f32(1, 4), "b": i64(-1)}, {}, "batch_indices is -1 .* from 0 to 1"),
    ("RoiAlign of three numbers", [("RoiAlign", ["x", "r", "b"], ["y"], {})],
     {"x": f32(2, 1, 4, 4), "r": f32(1, 3), "b": i64(1)}, {}, r"rois has shape \[1, 3\]"),
    ("NonMaxSuppression of other batches", [("NonMaxSuppression", ["b", "s"], ["y"], {})],
     {"b": f32(1, 3, 4), "s": f32(2, 1, 3)}, {}, r"scores has shape \[2, 1, 3\]"),
    ("DeformConv's bias", [("DeformConv", ["x", "w", "o", "b"], ["y"], {})],
     {"x": f32(1, 1, 3, 3), "w": f32(1, 1, 2, 2), "o": f32(1, 8, 2, 2), "b": f32(2)}, {}, r"B has shape \[2\]"),
    ("zero points for another axis", [("QuantizeLinear", ["x", "s", "z"], ["y"], {"axis": 1})],
     {"x": f32(2, 1), "s": f32(1), "z": np.zeros(2, np.uint8)}, {}, "the number of zero points is 2"),
    ("scales for another axis", [("DequantizeLinear", ["x", "s"], ["y"], {"axis": 1})],
     {"x": np.ones((2, 1), np.uint8), "s": f32(2)}, {}, "the number of scales is 2, but must be 1"),
    ("a window of -1", [("HannWindow", ["n"], ["y"], {})], {"n": np.array(-1)}, {}, "size is -1"),
    ("values of fewer heads than keys", [("Attention", ["q", "k", "v"], ["y"], {})],
     {"q": f32(1, 2, 3, 4), "k": f32(1, 2, 3, 4), "v": f32(1, 1, 3, 4)}, {}, "the number of heads of V is 1"),
    ("keys of another batch", [("Attention", ["q", "k", "v"], ["y"], {})],
     {"q": f32(2, 2, 3, 4), "k": f32(1, 2, 3, 4), "v": f32(1, 2, 3, 4)}, {}, "the batch of K is 1"),
    ("BiasGelu by one number", [("com.microsoft::BiasGelu", ["x", "b"], ["y"], {})],
     {"x": f32(3, 2), "b": f32(1)}, {}, r"bias has shape \[1\]"),
    ("QGemm's C", [("com.microsoft::QGemm", ["x", "xs", "xz", "w", "ws", "wz", "c"], ["y"], {})],
     {"x": np.ones((4, 3), np.uint8), "w": np.ones((3, 1), np.uint8), "c": np.ones(2, np.int32), "xs": f32(),
      "ws": f32(), "xz": np.array(1, np.uint8), "wz": np.array(1, np.uint8)}, {}, r"C has shape \[2\]"),
    ("MatMulIntegerToFloat's bias",
     [("com.microsoft::MatMulIntegerToFloat", ["x", "w", "s", "t", "", "", "b"], ["y"], {})],
     {"x": np.ones((4, 3), np.uint8), "w": np.ones((3, 2), np.uint8), "s": f32(), "t": f32(), "b": f32(1)}, {},
     r"bias has shape \[1\]"),
    ("a ring written before its first place", [("TensorScatter", ["x", "u", "p"], ["y"], {"mode": "circular"})],
     {"x": f32(2, 3, 1), "u": f32(2, 1, 1), "p": i64(0, -1)}, {}, r"write_indices is -1 at \[1\]"),
    ("ConvTranspose of nothing", [("ConvTranspose", ["x", "w"], ["y"], {"strides": [2]})],
     {"x": f32(1, 1, 0), "w": f32(1, 1, 3)}, {}, "the size of axis 2 of X is 0"),
    ("more taken away than there is", [("Pad", ["x", "p"], ["y"], {})],
     {"x": f32(5), "p": i64(-3, -3)}, {}, r"axis 0 of \[5\] with pads \[-3, -3\] is -1"),
    ("an axis with nothing in it", [("MaxPool", ["x"], ["y"], {"kernel_shape": [1, 2], "pads": [0, 1, 0, 1]})],
     {"x": f32(1, 1, 0, 4)}, {}, "axis 2 of the input is empty"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("nodes", "feeds", "constants", "said"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_the_refusal_names_node_value_and_limit(way, nodes, feeds, constants, said):
    outputs = [name for name in nodes[0][2] if name]
    name = nodes[0][0].rpartition("::")[2]
    with pytest.raises((InputError, ShapeMismatchError), match=f"^node 'my_{name}' .*{said}"):
        run(way, nodes, feeds, constants, outputs)


@pytest.mark.parametrize("way", WAYS)
def test_text_between_numbers(way):
    nodes = [("Cast", ["x"], ["s"], {"to": 8}), ("Cast", ["s"], ["y"], {"to": 7})]
    np.testing.assert_array_equal(run(way, nodes, {"x": np.arange(6, dtype=F32)})[0], np.arange(6))


@pytest.mark.parametrize("way", WAYS)
def test_answers_at_the_edges(way):
    slicing = [("Slice", ["x", "s", "e", "a", "t"], ["y"], {})]
    bounds = {"s": i64(-9), "e": i64(-99), "a": i64(0), "t": i64(-1)}
    np.testing.assert_array_equal(run(way, slicing, {"x": np.arange(5, dtype=F32)}, bounds)[0], [0.0])
    whole = run(way, [("ReduceSum", ["x"], ["y"], {"keepdims": 0})], {"x": np.zeros((0, 3), F32)})[0]
    assert (whole.shape, float(whole)) == ((), 0.0)
    pooled = run(way, [("AveragePool", ["x"], ["y"], {"kernel_shape": [2, 2]})], {"x": np.zeros((0, 3, 4, 4), F32)})[0]
    assert pooled.shape == (0, 3, 3, 3)
    kept = run(way, [("Compress", ["x", "c"], ["y"], {"axis": 0})], {"x": f32(4), "c": np.ones(9, bool)})[0]
    np.testing.assert_array_equal(kept, f32(4))
    least = np.iinfo(np.int32).min
    feeds = {"x": np.array([least], np.int32), "z": np.array([-1], np.int32)}
    assert run(way, [("Div", ["x", "z"], ["y"], {})], feeds)[0].tolist() == [least]
    assert run(way, [("Mod", ["x", "z"], ["y"], {})], feeds)[0].tolist() == [0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pads", [(2, -7), (-6, 3), (-5, 0), (3, -6), (-2, -3)])
def test_what_is_cropped_may_have_been_padded(way, pads):
    """An axis of 5: a crop may reach into what the other end adds. onnxruntime says the same."""
    (y,) = run(way, [("Pad", ["x", "p"], ["y"], {})], {"x": np.arange(1, 6, dtype=F32), "p": i64(*pads)})
    whole = np.pad(np.arange(1, 6, dtype=F32), [max(0, p) for p in pads])
    np.testing.assert_array_equal(y, whole[max(0, -pads[0]) : len(whole) - max(0, -pads[1])])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_one_pixel_of_half_pixels_is_the_first(way, mode):
    """The text of ONNX, and onnxruntime: where one element is left it is the one at 0."""
    how = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    x = f32(1, 1, 5)
    (y,) = run(way, [("Resize", ["x", "", "", "s"], ["y"], how)], {"x": x}, {"s": i64(1, 1, 1)})
    np.testing.assert_allclose(y.ravel(), x.ravel()[:1], rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_align_corners_goes_by_whole_sizes(way):
    nodes = [("Resize", ["x", "", "s"], ["y"], {"mode": "linear", "coordinate_transformation_mode": "align_corners"})]
    x = np.arange(5, dtype=F32).reshape(1, 1, 5)
    (y,) = run(way, nodes, {"x": x}, {"s": np.array([1, 1, 1.5], F32)})
    np.testing.assert_allclose(y.ravel(), np.linspace(0, 4, 7), rtol=1e-6)


def test_one_session_goes_on_after_a_refusal():
    graph = Graph("g")
    graph.add_input("x", [None], DType.Float32)
    graph.add_input("i", [None], DType.Int64)
    graph.add_node("pick", "Gather", ["x", "i"], ["y"])
    graph.add_output("y", [None])
    session = pyflame_rt.InferenceSession(graph)
    for _ in range(3):
        with pytest.raises(InputError, match=r"node 'pick' \(Gather\): indices is 4 at \[1\]"):
            session.run(None, {"x": f32(3), "i": i64(0, 4)})
        np.testing.assert_array_equal(session.run(None, {"x": f32(3), "i": i64(-1, 0)})[0], f32(3)[[-1, 0]])


def test_what_only_running_tells_is_left_open():
    op = get_op("ReverseSequence")
    values = [Value("x", TensorInfo("x", ["T", "N", 2]).type), Value("n", TensorInfo("n", ["N"], DType.Int64).type)]
    (need,) = enforce(op, values, {"batch_axis": 1, "time_axis": 0})
    assert (need.name, need.low, str(need.high)) == ("sequence_lens", 0, "T")
