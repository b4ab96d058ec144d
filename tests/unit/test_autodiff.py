"""Gradients against finite differences in float64, and what cannot be differentiated."""

import operator as operators

import numpy as np
import pytest

from pyflame_rt.autodiff import gradient, walk_back
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError, UndeterminedError, UnsupportedOperatorError
from pyflame_rt.ops import Context, Program, infer_types, operator
from pyflame_rt.ops.core.registry import unregister

RNG = np.random.default_rng(7)


def graph_of(op, arrays, *, constants=(), symbolic=False, **attributes):
    """One node on float64 inputs; constants follow them."""
    g = Graph("g")
    names = []
    for i, array in enumerate(arrays):
        names.append(f"x{i}")
        shape = [f"D{i}_{a}" for a in range(array.ndim)] if symbolic else array.shape
        g.add_input(f"x{i}", shape, DType.of(array.dtype))
    for i, array in enumerate(constants):
        names.append(f"c{i}")
        g.add_initializer(f"c{i}", array)
    g.add_node("node", op, names, ["y"], attributes)
    g.add_output("y", None, DType.Float64)
    return g


def run(graph, arrays, library="numpy"):
    context = Context.of(library)
    moved = [context.library.from_numpy(np.asarray(a)) for a in arrays]
    return [context.library.to_numpy(r) for r in Program(graph).run(moved, context)]


def check(graph, arrays, wrt=None, tolerance=1e-7):
    """Random weights on the output, so that no symmetry hides a mistake."""
    wrt = [f"x{i}" for i in range(len(arrays))] if wrt is None else wrt
    d = gradient(graph, ["y"], wrt, seeded=True)
    assert infer_types(d) == []
    (y,) = run(graph, arrays)
    seed = RNG.normal(size=y.shape)
    results = run(d, [*arrays, seed])
    np.testing.assert_array_equal(results[0], y)
    for name, found in zip(wrt, results[1:], strict=True):
        at = int(name[1:])
        np.testing.assert_allclose(found, numeric(graph, arrays, at, seed), rtol=1e-5, atol=tolerance)


def numeric(graph, arrays, at, seed, step=1e-6):
    result = np.zeros_like(arrays[at])
    for place in np.ndindex(result.shape):
        sides = []
        for move in (step, -step):
            moved = [a.copy() for a in arrays]
            moved[at][place] += move
            sides.append((run(graph, moved)[0] * seed).sum())
        result[place] = (sides[0] - sides[1]) / (2 * step)
    return result


def normal(*shape):
    return RNG.normal(size=shape)


def between(low, high, *shape):
    return RNG.uniform(low, high, shape)


SMOOTH = [
    *("Exp", "Erf", "Sin", "Cos", "Sinh", "Cosh", "Tanh", "Asinh", "Atan", "Neg"),
    *("Sigmoid", "Softplus", "Softsign", "Mish", "Gelu", "Swish"),
]
KINKED = [
    *("Abs", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish"),
    *("Shrink", "ThresholdedRelu", "Sign", "Floor"),
]


@pytest.mark.parametrize("op", SMOOTH)
def test_smooth_functions(op):
    check(graph_of(op, [x := normal(2, 3)]), [x])


@pytest.mark.parametrize("op", KINKED)
def test_functions_with_kinks(op):
    x = np.array([[-2.3, -0.7, -0.2], [0.3, 0.8, 2.6]])
    check(graph_of(op, [x]), [x])


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [("Log", 0.5, 2), ("Sqrt", 0.5, 2), ("Tan", -1, 1), ("Asin", -0.9, 0.9), ("Acos", -0.9, 0.9),
     ("Atanh", -0.9, 0.9), ("Acosh", 1.2, 3), ("Reciprocal", 0.5, 2)],
)  # fmt: skip
def test_functions_on_part_of_the_line(op, low, high):
    x = between(low, high, 2, 3)
    check(graph_of(op, [x]), [x])


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (4, 1, 3)), ((), (2,))])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "PRelu"])
def test_two_inputs_that_broadcast(op, shapes):
    if op == "PRelu" and shapes not in (((2, 3), (2, 3)), ((2, 3), (3,))):
        pytest.skip("slopes broadcast to the input only")
    a, b = between(0.6, 2.4, *shapes[0]), between(0.7, 1.3, *shapes[1])
    if op == "PRelu":
        a = a - 1.5
    check(graph_of(op, [a, b]), [a, b])


@pytest.mark.parametrize("op", ["Mul", "Max"])
def test_broadcasting_of_symbolic_sizes(op):
    a, b = normal(2, 3), normal(1, 3)
    check(graph_of(op, [a, b], symbolic=True), [a, b])


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max"])
def test_many_inputs(op):
    arrays = [normal(2, 3), normal(3), normal(1, 1)]
    check(graph_of(op, arrays), arrays)


def test_equal_winners_share():
    g = graph_of("Max", [np.ones(2), np.ones(2)])
    assert [r.tolist() for r in run(gradient(g, ["y"], ["x0", "x1"]), [np.ones(2)] * 2)[1:]] == [[0.5, 0.5]] * 2


REDUCTIONS = [
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [0, -1]], ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op, axes, keepdims, symbolic):
    x = between(0.5, 2, 2, 3, 2)
    constants = [] if axes is None else [np.array(axes)]
    check(graph_of(op, [x], constants=constants, symbolic=symbolic, keepdims=keepdims), [x])


@pytest.mark.parametrize("x", [[0.0, 2, 3], [0.0, 0, 3], [1.0, 2, 3]])
def test_products_with_zeros(x):
    check(graph_of("ReduceProd", [np.array(x)]), [np.array(x)])


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op, axis):
    x = normal(3, 4)
    check(graph_of(op, [x], axis=axis), [x])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sum(exclusive, reverse):
    x = normal(3, 4)
    g = graph_of("CumSum", [x], constants=[np.array(1)], exclusive=exclusive, reverse=reverse)
    check(g, [x])


def test_where_and_clip_and_cast():
    c = np.array([True, False, True])
    g = Graph("g")
    for name in ("x0", "x1"):
        g.add_input(name, [3], DType.Float64)
    for name, array in (("c", c), ("low", np.array(-0.4)), ("high", np.array(0.6))):
        g.add_initializer(name, array)
    g.add_node("w", "Where", ["c", "x0", "x1"], ["w"])
    g.add_node("k", "Clip", ["w", "low", "high"], ["k"])
    g.add_node("d", "Cast", ["k"], ["d"], {"to": DType.Float64.onnx})
    g.add_node("m", "Mul", ["d", "x0"], ["y"])
    g.add_output("y", [3], DType.Float64)
    check(g, [np.array([0.2, 0.5, 0.9]), np.array([0.1, -0.9, 0.3])])


def test_bounds_of_clip_have_gradients():
    x, low, high = np.array([-2.0, 0.1, 3.0]), np.array(-1.0), np.array(1.0)
    check(graph_of("Clip", [x, low, high]), [x, low, high])


def test_pow_of_zero_and_by_integers():
    g = graph_of("Pow", [np.zeros(2)], constants=[np.array([0, 2])])
    assert run(gradient(g, ["y"], ["x0"]), [np.zeros(2)])[1].tolist() == [0, 0]
    x = normal(4)
    check(graph_of("Pow", [x], constants=[np.array(3)]), [x])


@pytest.mark.parametrize("library", ["numpy", "torch", "mlx"])
def test_a_small_network_on_every_library(library):
    """Two layers and a loss, in float32: a step against the gradient makes the loss smaller."""
    g = Graph("net")
    g.add_input("x", ["N", 3], DType.Float32)
    weights = {"w": normal(3, 5), "b": normal(5), "v": normal(5, 2)}
    for name, array in weights.items():
        g.add_initializer(name, array.astype(np.float32))
    g.add_node("1", "MatMul", ["x", "w"], ["h"])
    g.add_node("2", "Add", ["h", "b"], ["hb"])
    g.add_node("3", "Gelu", ["hb"], ["a"])
    g.add_node("4", "MatMul", ["a", "v"], ["o"])
    g.add_node("5", "ReduceSumSquare", ["o"], ["loss"], {"keepdims": 0})
    g.add_output("loss", [], DType.Float32)
    x = normal(4, 3).astype(np.float32)
    d = gradient(g, ["loss"], list(weights))
    loss, *grads = run(d, [x], library)
    for name, grad in zip(weights, grads, strict=True):
        assert grad.shape == weights[name].shape
        d.add_initializer(name, g.initializers[name].raw() - 1e-4 * grad)
    assert run(d, [x], library)[0] < loss


def test_second_derivative():
    x = normal(3)
    g = graph_of("Sin", [x])
    first = gradient(g, ["y"], ["x0"])
    second = gradient(first, ["x0_grad"], ["x0"])
    np.testing.assert_allclose(run(second, [x])[1], -np.sin(x), rtol=1e-12)
    assert [o.name for o in second.outputs] == ["x0_grad", second.outputs[1].name]


def test_intermediate_values_and_values_without_influence():
    g = Graph("g")
    g.add_input("x", ["N"], DType.Float64)
    g.add_input("z", ["N"], DType.Float64)
    g.add_node("a", "Mul", ["x", "x"], ["a"])
    g.add_node("b", "Exp", ["a"], ["b"])
    g.add_output("b", ["N"], DType.Float64)
    x = normal(3)
    b, to_a, to_x, to_z = run(gradient(g, ["b"], ["a", "x", "z"]), [x, x])
    np.testing.assert_allclose(to_a, b)
    np.testing.assert_allclose(to_x, 2 * x * b)
    assert to_z.tolist() == [0, 0, 0]
    assert len(g.nodes) == 2


def test_long_chains_need_no_stack():
    g = Graph("chain")
    g.add_input("x", [1], DType.Float32)
    for i in range(3000):
        g.add_node(f"n{i}", "Neg", [f"v{i - 1}" if i else "x"], [f"v{i}"])
    g.add_output("v2999", [1], DType.Float32)
    d = gradient(g, ["v2999"], ["x"])
    assert run(d, [np.ones(1, np.float32)])[1].tolist() == [1]


def test_names_do_not_depend_on_the_run():
    g = graph_of("ReduceL2", [normal(2)])
    assert str(gradient(g, ["y"], ["x0"])) == str(gradient(g, ["y"], ["x0"]))


def test_paths_through_integers_carry_nothing():
    g = Graph("g")
    g.add_input("x", [3], DType.Float64)
    g.add_node("a", "ArgMax", ["x"], ["i"])
    g.add_node("c", "Cast", ["i"], ["f"], {"to": DType.Float64.onnx})
    g.add_node("m", "Mul", ["f", "x"], ["y"])
    g.add_output("y", [3], DType.Float64)
    x = np.array([1.0, 5.0, 2.0])
    assert run(gradient(g, ["y"], ["x"]), [x])[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("zeros", [[], [1], [1, 3], [0]], ids=str)
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_products_with_zeros_among_the_factors(reverse, zeros):
    x = between(0.5, 2, 2, 5)
    x[:, zeros] = 0
    check(graph_of("CumProd", [x], constants=[np.array(1)], reverse=reverse), [x])


def test_determinants():
    x = normal(2, 3, 3) + 3 * np.eye(3)
    check(graph_of("Det", [x]), [x])


def test_tiling_nothing():
    x = normal(0, 2)
    check(graph_of("Tile", [x], constants=[np.array([2, 3])]), [x])


def test_an_operator_without_a_rule_is_named():
    g = graph_of("DFT", [normal(1, 4, 1)])
    with pytest.raises(UnsupportedOperatorError, match=r"node 'node'.*DFT has no gradient"):
        gradient(g, ["y"], ["x0"])


def test_wrong_names_and_types():
    g = graph_of("Neg", [normal(3)])
    with pytest.raises(InputError, match="no value 'nope'"):
        gradient(g, ["y"], ["nope"])
    g.add_node("i", "IsNaN", ["x0"], ["b"])
    with pytest.raises(InputError, match=r"'b'.*bool"):
        gradient(g, ["b"], ["x0"])


def test_a_composition_may_pass_its_input_on():
    @operator(since=1, domain="test")
    def Twice(x, /):
        return x, x + x

    g = Graph("g")
    g.add_input("x", [2], DType.Float64)
    g.add_node("t", "Twice", ["x"], ["a", "b"], domain="test")
    g.add_node("m", "Mul", ["a", "b"], ["y"])
    g.add_output("y", [2], DType.Float64)
    try:
        x = np.array([1.0, 3.0])
        np.testing.assert_allclose(run(gradient(g, ["y"], ["x"]), [x])[1], 4 * x)
    finally:
        unregister("Twice", "test")


def test_unknown_ranks_are_refused_by_name():
    @operator(since=1, domain="test")
    def Ranked(x, /):
        return x * float(x.rank)

    g = Graph("g")
    g.add_input("x", None, DType.Float64)
    g.add_node("r", "Ranked", ["x"], ["y"], domain="test")
    g.add_output("y", None, DType.Float64)
    try:
        with pytest.raises(UndeterminedError, match=r"node 'r'.*rank"):
            gradient(g, ["y"], ["x"])
    finally:
        unregister("Ranked", "test")


def test_the_walk_goes_over_values_of_any_kind():
    steps = [("double", ["x"], ["y"]), ("unread", ["x"], ["z"]), ("product", ["y", "x"], ["p", "q"])]
    slopes = {"double": [2.0], "product": [5.0, 7.0]}  # no rule is asked for where nothing arrives
    seen = {}

    def rule(step, arrived):
        name, inputs, _ = step
        seen[name] = arrived
        return [(key, slope * arrived[0]) for key, slope in zip(inputs, slopes[name], strict=True)]

    found = walk_back([("p", 1.0), ("p", 2.0), ("w", 4.0)], steps, lambda step: step[2], rule, operators.add)
    assert seen == {"product": [3.0, None], "double": [15.0]}
    assert found == {"x": 3.0 * 7 + 15.0 * 2, "w": 4.0}
