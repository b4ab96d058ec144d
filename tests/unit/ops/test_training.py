"""Optimizer steps against torch's, and the Gradient operator."""

import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.graph import Node
from pyflame_rt.graph.errors import InputError, InvalidModelError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, evaluate

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(0)


def run(op, *arrays, **attributes):
    node = Node("n", op, ["x"] * len(arrays), ["y"], attributes, DOMAIN)
    return evaluate(node, [np.asarray(a) for a in arrays])


def test_adam_as_torch_does_it():
    torch = pytest.importorskip("torch")
    x, g = RNG.standard_normal((2, 3)), RNG.standard_normal((4, 3))
    theirs = torch.tensor(x[0], requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.99), eps=0)
    ours, mean, squares = x[0], np.zeros(3), np.zeros(3)
    for step, slope in enumerate(g, start=1):
        theirs.grad = torch.tensor(slope)
        optimizer.step()
        inputs = (np.float64(0.1), np.int64(step), ours, slope, mean, squares)
        ours, mean, squares = run("Adam", *inputs, alpha=0.9, beta=0.99, epsilon=0.0)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum_as_torch_does_it(mode):
    torch = pytest.importorskip("torch")
    x, g = RNG.standard_normal(3), RNG.standard_normal((3, 3))
    theirs = torch.tensor(x, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, nesterov=mode == "nesterov")
    ours, velocity = x, np.zeros(3)
    for step, slope in enumerate(g):
        theirs.grad = torch.tensor(slope)
        optimizer.step()
        ours, velocity = run(
            "Momentum", np.float64(0.1), np.int64(step), ours, slope, velocity,
            alpha=0.9, beta=1.0, mode=mode, norm_coefficient=0.0,
        )  # fmt: skip
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-6)


def test_groups_must_be_whole():
    with pytest.raises(InputError, match="groups of 3"):
        run("Adagrad", np.float32(0.1), np.int64(0), np.ones(2, np.float32), np.ones(2, np.float32))


def gradient_model(xs, y, zs=(), inputs=None, outputs=None):
    """d = (a + b) * a, differentiated as asked."""
    info = oh.make_tensor_value_info
    nodes = [oh.make_node("Add", ["a", "b"], ["c"]), oh.make_node("Mul", ["c", "a"], ["d"])]
    outputs = outputs or [f"g_{x}" for x in xs]
    attributes = {"xs": list(xs), "y": y} | ({"zs": list(zs)} if zs else {})
    nodes.append(oh.make_node("Gradient", inputs or [*xs, *zs], outputs, domain=DOMAIN, **attributes))
    given = [info(n, 1, []) for n in ("a", "b", "q")]
    graph = oh.make_graph(nodes, "g", given, [info(o, 1, []) for o in outputs if o])
    opsets = [oh.make_opsetid("", 17), oh.make_opsetid(DOMAIN, 1)]
    return graph_from_bytes(oh.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def slopes(graph, a=2.0, b=3.0, q=5.0):
    return [float(v) for v in Program(graph).run([np.float32(v) for v in (a, b, q)], Context.of())]


def test_gradient_of_inputs():
    assert slopes(gradient_model(["a", "b"], "d")) == [7.0, 2.0]


def test_gradient_of_an_intermediate_value():
    assert slopes(gradient_model(["c"], "d", zs=["a"])) == [2.0]


def test_gradient_at_other_values_than_the_graph_has():
    # a is q here: d = (a + b) * a has slope 2 a + b.
    assert slopes(gradient_model(["a"], "d", inputs=["q"])) == [13.0]


def test_gradient_outputs_may_be_left_out():
    assert slopes(gradient_model(["a", "b"], "d", outputs=["", "g"])) == [2.0]


def test_gradient_inputs_must_match():
    with pytest.raises(InvalidModelError, match="1 inputs for xs and zs"):
        gradient_model(["a", "b"], "d", inputs=["a"])
