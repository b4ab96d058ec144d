"""The steps of recurrent layers: gradients by finite differences, of first and second order, and shapes."""

import numpy as np
import pytest

from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op, infer_types
from pyflame_rt.ops.core.trace import infer_outputs

RNG = np.random.default_rng(23)
T, N, H = 3, 2, 3
OUTPUTS = {"LSTM": 5, "GRU": 3, "RNN": 2}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def inputs(kind, directions):
    gates = GATES[kind]
    shapes = [(T, N, directions * gates * H), (directions, gates * H, H)]
    shapes += {"GRU": [(directions, H)]}.get(kind, [])
    shapes += [(directions, N, H)] * (2 if kind == "LSTM" else 1)
    return [RNG.normal(size=shape) * 0.6 for shape in shapes]


def graph_of(kind, arrays, used, **attributes):
    """The sum of the given outputs, each weighed elementwise by a constant."""
    g = Graph("g")
    for i, array in enumerate(arrays):
        g.add_input(f"x{i}", array.shape, DType.Float64)
    outputs = [f"o{k}" for k in range(OUTPUTS[kind])]
    g.add_node("steps", f"{kind}Steps", [f"x{i}" for i in range(len(arrays))], outputs, attributes, domain="pyflame")
    infer_types(g)
    parts = []
    for k in used:
        shape = tuple(int(d) for d in g.types[f"o{k}"].shape)
        g.add_initializer(f"w{k}", RNG.normal(size=shape))
        g.add_node(f"m{k}", "Mul", [f"o{k}", f"w{k}"], [f"m{k}"])
        g.add_node(f"s{k}", "ReduceSum", [f"m{k}"], [f"s{k}"], {"keepdims": 0})
        parts.append(f"s{k}")
    g.add_node("y", "Sum", parts, ["y"])
    g.add_output("y", [], DType.Float64)
    return g


def program(graph):
    made, context = Program(graph), Context.of("numpy")
    return lambda arrays: [np.asarray(r) for r in made.run(arrays, context)]


def check(found, function, arrays, rtol=1e-6):
    """Every gradient along some random ways, against what the function does along them."""
    for at, got in enumerate(found):
        for _ in range(3):
            way, step = RNG.normal(size=got.shape), 1e-5
            sides = [
                function([a + move * way if i == at else a for i, a in enumerate(arrays)]) for move in (step, -step)
            ]
            want = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose((got * way).sum(), want, rtol=rtol, atol=1e-8)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("used", ["first", "last", "all"])
def test_gradients_by_finite_differences(kind, direction, used):
    arrays = inputs(kind, 2 if direction == "bidirectional" else 1)
    count = OUTPUTS[kind]
    chosen = {"first": [0], "last": [count - 1], "all": list(range(count))}[used]
    g = graph_of(kind, arrays, chosen, direction=direction)
    names = [f"x{i}" for i in range(len(arrays))]
    forward = program(g)
    check(program(gradient(g, ["y"], names))(arrays)[1:], lambda a: forward(a)[0], arrays)


@pytest.mark.parametrize("kind", GATES)
def test_gradients_of_gradients(kind):
    arrays = inputs(kind, 1)
    g = graph_of(kind, arrays, [0, 1])
    names = [f"x{i}" for i in range(len(arrays))]
    first = gradient(g, ["y"], names)
    weights = [RNG.normal(size=a.shape) for a in arrays]

    outputs = [info.name for info in first.outputs][1:]
    for name, w in zip(outputs, weights, strict=True):
        first.add_initializer(f"{name}_w", w)
        first.add_node(f"{name}_m", "Mul", [name, f"{name}_w"], [f"{name}_m"])
        first.add_node(f"{name}_s", "ReduceSum", [f"{name}_m"], [f"{name}_s"], {"keepdims": 0})
    first.add_node("total", "Sum", [f"{name}_s" for name in outputs], ["total"])
    first.add_output("total", [], DType.Float64)
    second = gradient(first, ["total"], names)
    once = program(first)
    check(program(second)(arrays)[1:], lambda a: once(a)[-1], arrays, rtol=1e-5)


def test_relu_steps():
    arrays = inputs("RNN", 1)
    g = graph_of("RNN", arrays, [0, 1], activation="relu")
    forward = program(g)
    check(program(gradient(g, ["y"], ["x0", "x1", "x2"]))(arrays)[1:], lambda a: forward(a)[0], arrays)


def test_sizes_may_be_symbolic():
    steps, batch = symbol("T"), symbol("N")
    gates = Value("g", TensorType(DType.Float32, Shape([steps, batch, 40])))
    recurrent = Value("r", TensorType(DType.Float32, Shape([2, 20, 5])))
    state = Value("h", TensorType(DType.Float32, Shape([2, batch, 5])))
    made = infer_outputs(
        get_op("LSTMSteps", "pyflame"), [gates, recurrent, state, state], {"direction": "bidirectional"}
    )
    shapes = [tuple(v.tensor_type.shape) for v in made]
    assert shapes == [
        (steps, batch, 10), (2, batch, 5), (2, batch, 5), (steps, batch, 40), (steps, batch, 10),
    ]  # fmt: skip


@pytest.mark.parametrize(("attribute", "value"), [("direction", "sideways"), ("activation", "gelu")])
def test_unknown_words_are_named(attribute, value):
    arrays = inputs("RNN", 1)
    node = Node("n", "RNNSteps", ["a", "b", "c"], ["y", "h"], {attribute: value}, domain="pyflame")
    with pytest.raises(InputError, match=value):
        evaluate(node, arrays)
