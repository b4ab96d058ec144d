"""Recurrent layers against ONNX Runtime: directions, activations, lengths, states, layouts."""

import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(19)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
T, B, F, H = 3, 2, 3, 2


def f32(*shape):
    return (RNG.normal(size=shape) * 0.7).astype(np.float32)


def inputs(op, count=1, *, bias=True, lengths=None, state=True, peepholes=True, steps=T):
    gates = GATES[op]
    arrays = [f32(steps, B, F), f32(count, gates * H, F), f32(count, gates * H, H)]
    arrays += [f32(count, 2 * gates * H) if bias else None, lengths, f32(count, B, H) if state else None]
    if op == "LSTM":
        arrays += [f32(count, B, H) if state else None, f32(count, 3 * H) if peepholes else None]
    while arrays[-1] is None:
        arrays.pop()
    return arrays


def names(op):
    return ("y", "h", "c") if op == "LSTM" else ("y", "h")


def run(op, *arrays, **attributes):
    return evaluate(Node("n", op, ["x"] * len(arrays), names(op), attributes), arrays)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bare", [False, True])
def test_directions(agrees_with_onnxruntime, op, direction, bare):
    count = 2 if direction == "bidirectional" else 1
    arrays = inputs(op, count, bias=not bare, state=not bare, peepholes=not bare)
    agrees_with_onnxruntime(op, arrays, {"hidden_size": H, "direction": direction}, domain="", outputs=names(op))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths(agrees_with_onnxruntime, op, direction):
    count = 2 if direction == "bidirectional" else 1
    arrays = inputs(op, count, lengths=np.array([3, 1], np.int32))
    agrees_with_onnxruntime(op, arrays, {"hidden_size": H, "direction": direction}, domain="", outputs=names(op))


@pytest.mark.parametrize(
    ("op", "extra"),
    [
        ("GRU", {"linear_before_reset": 1}),
        ("LSTM", {"input_forget": 1}),
        ("GRU", {"clip": 0.3}),
        ("RNN", {"clip": 0.3}),
    ],
)
def test_options(agrees_with_onnxruntime, op, extra):
    agrees_with_onnxruntime(op, inputs(op), {"hidden_size": H, **extra}, domain="", outputs=names(op))


@pytest.mark.parametrize(
    ("names_of", "alpha", "beta"),
    [
        (["Affine", "ScaledTanh"], [0.5, 0.8], [0.1, 1.2]),
        (["LeakyRelu", "HardSigmoid"], [0.2, 0.3], [0.4]),
        (["Sigmoid", "Elu"], [0.6], []),
        (["Softsign", "ThresholdedRelu"], [0.2], []),
        (["Relu", "Softplus"], [], []),
        (["HardSigmoid", "LeakyRelu"], [], []),
    ],
)
def test_activations(agrees_with_onnxruntime, names_of, alpha, beta):
    attributes = {"hidden_size": H, "activations": names_of}
    attributes |= {k: v for k, v in (("activation_alpha", alpha), ("activation_beta", beta)) if v}
    agrees_with_onnxruntime("GRU", inputs("GRU"), attributes, domain="", outputs=("y", "h"))


def test_clip_bounds_the_input_of_every_activation():
    """Also of the last one of LSTM, as the specification says (ONNX Runtime leaves that one out)."""
    arrays = inputs("LSTM", steps=1)
    arrays[6] = np.full((1, B, H), 50, np.float32)
    _, h, _ = run("LSTM", *arrays, clip=0.25)
    assert np.abs(h).max() <= np.tanh(0.25)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("library", ["numpy", "torch", "mlx"])
def test_batchwise_layout(op, library):
    arrays = inputs(op, 2, lengths=np.array([3, 2], np.int32))
    plain = run(op, *arrays, direction="bidirectional")
    turned = [a.transpose(1, 0, 2) if i in (0, 5, 6) else a for i, a in enumerate(arrays)]
    context = Context.of(library)
    moved = [context.library.from_numpy(np.ascontiguousarray(a)) for a in turned]
    node = Node("n", op, ["x"] * len(moved), names(op), {"direction": "bidirectional", "layout": 1})
    batched = [context.library.to_numpy(r) for r in evaluate(node, moved, context)]
    np.testing.assert_allclose(batched[0], plain[0].transpose(2, 0, 1, 3), **within("elements"))
    for got, want in zip(batched[1:], plain[1:], strict=True):
        np.testing.assert_allclose(got, want.transpose(1, 0, 2), **within("elements"))


@pytest.mark.parametrize("op", GATES)
def test_no_steps_at_all(op):
    y, *states = run(op, *inputs(op, steps=0))
    assert y.shape == (0, 1, B, H)
    assert states[0].shape == (1, B, H)


def test_shapes():
    op, s, n = get_op("LSTM"), symbol("S"), symbol("N")
    values = [Value("v", TensorType(DType.Float32, Shape(d))) for d in ([s, n, 3], [2, 8, 3], [2, 8, 2])]
    for layout, y, h in ((0, [s, 2, n, 2], [2, n, 2]), (1, [n, s, 2, 2], [n, 2, 2])):
        given = values if not layout else [Value("v", TensorType(DType.Float32, Shape([n, s, 3]))), *values[1:]]
        bound = op.signature.bind({"direction": "bidirectional", "layout": layout}, "LSTM")
        assert [v.type.shape for v in infer_outputs(op, given, bound)] == [y, h, h]


def test_errors():
    arrays = inputs("RNN")
    with pytest.raises(InputError, match="sideways"):
        run("RNN", *arrays, direction="sideways")
    with pytest.raises(InputError, match="Gelu"):
        run("RNN", *arrays, activations=["Gelu"])
    with pytest.raises(InputError, match="2 activations"):
        run("GRU", *inputs("GRU"), activations=["Tanh"])
    with pytest.raises(ShapeMismatchError, match="three axes"):
        run("RNN", arrays[0][0], *arrays[1:])


@pytest.mark.parametrize(("op", "extra"), [("RNN", {}), ("GRU", {"linear_before_reset": 1}), ("GRU", {}), ("LSTM", {})])
def test_gradients(gradients_match, op, extra):
    gates = GATES[op]
    arrays = [RNG.normal(size=s) for s in ((2, 1, 2), (1, gates * 2, 2), (1, gates * 2, 2), (1, gates * 4))]
    gradients_match(op, arrays, {"hidden_size": 2, **extra})


@pytest.mark.parametrize("op", GATES)
def test_version_1(op):
    arrays = inputs(op, bias=False, state=False, peepholes=False)
    info = [oh.make_tensor_value_info(f"x{i}", 1, a.shape) for i, a in enumerate(arrays)]
    node = oh.make_node(op, ["x0", "x1", "x2"], ["y"], hidden_size=H, output_sequence=1)
    graph = oh.make_graph([node], "g", info, [oh.make_tensor_value_info("y", 1, None)])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 1)])
    (y,) = Program(graph_from_bytes(model.SerializeToString())).run(arrays, Context.of())
    np.testing.assert_array_equal(y, run(op, *arrays)[0])
