"""Losses against torch, and dropout."""

import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest
import torch

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(29)
N = symbol("N")
LIBRARIES = ("numpy", "torch", "mlx")


def run(op, *arrays, library="numpy", outputs=("y",), **attributes):
    context = Context.of(library)
    moved = [None if a is None else context.library.from_numpy(np.asarray(a)) for a in arrays]
    results = evaluate(Node("n", op, ["x"] * len(arrays), outputs, attributes), moved, context)
    return [context.library.to_numpy(r) for r in results]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -5])
def test_losses(library, reduction, shape, weighted, ignore):
    scores = RNG.normal(size=shape).astype(np.float32)
    labels = RNG.integers(0, 3, (shape[0], *shape[2:]))
    if ignore is not None:
        labels.flat[0] = ignore
    weight = np.array([0.2, 1.5, 0.7], np.float32) if weighted else None
    given = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    loss, log_prob = run(
        "SoftmaxCrossEntropyLoss", scores, labels, weight, library=library, outputs=("y", "p"), **given
    )
    options = {"weight": None if weight is None else torch.tensor(weight), "reduction": reduction}
    options |= {} if ignore is None else {"ignore_index": ignore}
    expected = torch.nn.functional.cross_entropy(torch.tensor(scores), torch.tensor(labels), **options)
    np.testing.assert_allclose(loss, expected.numpy(), **within("elements"))
    np.testing.assert_allclose(log_prob, torch.log_softmax(torch.tensor(scores), 1).numpy(), **within("elements"))
    (again,) = run("NegativeLogLikelihoodLoss", log_prob, labels.astype(np.int32), weight, library=library, **given)
    np.testing.assert_allclose(again, loss, rtol=1e-6, atol=1e-7)


def test_loss_errors_and_types():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match="median"):
        run("NegativeLogLikelihoodLoss", x, np.array([0, 1]), reduction="median")
    with pytest.raises(ShapeMismatchError):
        run("NegativeLogLikelihoodLoss", x, np.array([[0, 1]]))
    op = get_op("SoftmaxCrossEntropyLoss")
    values = [
        Value("v", TensorType(DType.Float32, Shape([N, 3, 4]))),
        Value("v", TensorType(DType.Int64, Shape([N, 4]))),
    ]
    kinds = [v.type for v in infer_outputs(op, values, op.signature.bind({"reduction": "none"}, "x"))]
    assert [str(k) for k in kinds] == ["float32[N, 4]", "float32[N, 3, 4]"]


def test_loss_gradient(gradients_match):
    labels = np.array([[0, 2], [1, 1]])
    weight = np.array([0.2, 1.5, 0.7])
    gradients_match("SoftmaxCrossEntropyLoss", [RNG.normal(size=(2, 3, 2)), labels, weight], {"ignore_index": 2})


# ---------------------------------------------------------------------- dropout


@pytest.mark.parametrize("library", LIBRARIES)
def test_dropout_changes_nothing_unless_training(library):
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    for more in ([], [np.float32(0.3)], [np.float32(0.3), np.asarray(False)], [np.float32(0.0), np.asarray(True)]):
        y, mask = run("Dropout", x, *more, library=library, outputs=("y", "m"))
        np.testing.assert_array_equal(y, x)
        assert mask.all()
        assert mask.dtype == np.bool_


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_dropout_while_training(library, dtype):
    x = np.ones((100, 100), dtype)
    y, mask = run("Dropout", x, np.float32(0.25), np.asarray(True), library=library, outputs=("y", "m"))
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(float), mask / 0.75, rtol=1e-3)
    assert 0.72 < mask.mean() < 0.78


def test_dropout_with_a_seed_is_the_same_everywhere():
    masks = [
        run(
            "Dropout",
            np.ones(50, np.float32),
            np.float32(0.5),
            np.asarray(True),
            seed=3,
            library=name,
            outputs=("y", "m"),
        )[1]
        for name in LIBRARIES
    ]
    assert (masks[0] == masks[1]).all()
    assert (masks[0] == masks[2]).all()
    unseeded = [
        run("Dropout", np.ones(50, np.float32), None, np.asarray(True), outputs=("y", "m"))[1] for _ in range(2)
    ]
    assert (unseeded[0] != unseeded[1]).any()


def test_dropout_of_everything():
    (y,) = run("Dropout", np.ones(5, np.float32), np.float32(1.0), np.asarray(True))[:1]
    np.testing.assert_array_equal(y, 0)


def test_dropout_whose_mode_is_known_late():
    """Traced without contents, the body must serve both modes."""
    op = get_op("Dropout")
    kinds = [
        TensorType(DType.Float16, Shape([N, 3])),
        TensorType(DType.Float32, Shape([])),
        TensorType(DType.Bool, Shape([])),
    ]
    found = infer_outputs(op, [Value("v", k) for k in kinds], op.signature.bind({}, "Dropout"))
    assert [str(v.type) for v in found] == ["float16[N, 3]", "bool[N, 3]"]


@pytest.mark.parametrize(
    ("opset", "attributes", "drops"),
    [
        (1, {"is_test": 1, "ratio": 0.9, "consumed_inputs": [0]}, False),
        (6, {"ratio": 0.9}, True),
        (6, {"is_test": 1}, False),
        (7, {"ratio": 0.9}, False),
        (10, {}, False),
        (11, {"ratio": 0.9}, False),
    ],
)
def test_old_dropout(opset, attributes, drops):
    x = np.ones((20, 20), np.float32)
    node = oh.make_node("Dropout", ["x"], ["y", "m"], **attributes)
    outputs = [oh.make_tensor_value_info("y", 1, None), oh.make_tensor_value_info("m", 1 if opset < 10 else 9, None)]
    graph = oh.make_graph([node], "g", [oh.make_tensor_value_info("x", 1, x.shape)], outputs)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
    y, mask = Program(graph_from_bytes(model.SerializeToString())).run([x], Context.of())
    assert mask.dtype == (np.float32 if opset < 10 else np.bool_)
    assert ((y == 0).mean() > 0.5) == drops
    if drops:
        assert (y[mask.astype(bool)] != 0).all()
    else:
        assert not mask.any()
        if opset >= 7:
            (_, theirs) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
            np.testing.assert_array_equal(mask, theirs)
