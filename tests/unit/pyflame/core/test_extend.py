"""Custom operators and plugins."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import extend
from pyflame_rt import Graph, InferenceSession, custom
from pyflame_rt.autodiff import gradient
from pyflame_rt.graph.errors import InputError


@pytest.fixture(autouse=True)
def _clean():
    yield
    extend.clear_custom_ops()


def test_custom_operators():
    op = extend.register_custom_op("scale", lambda x, by=2.0: x * by, lambda ctx, g: g * 7, schema={"by": "float"})
    x = pf.tensor([1.0], requires_grad=True)
    op(x, by=3.0).backward()
    assert x.grad.item() == 7
    assert extend.get_custom_op("scale").schema == {"by": "float"}

    @extend.custom_op(name="plain")
    def plain(v):
        return v * v

    x.grad = None
    plain(x).backward()
    assert x.grad.item() == 2
    assert extend.list_custom_ops() == ["plain", "scale"]
    extend.unregister_custom_op("plain")
    with pytest.raises(KeyError, match="scale"):
        extend.get_custom_op("plain")
    with pytest.raises(TypeError, match="callable"):
        extend.register_custom_op("bad", 3)
    with pytest.raises(ValueError, match="name"):
        extend.register_custom_op("", abs)


def test_plugins():
    events = []

    class Half(extend.Plugin):
        def get_info(self):
            return extend.PluginInfo("half", "1.0", dependencies=["base"])

        def on_load(self):
            events.append("load")

        def on_unload(self):
            events.append("unload")

        def get_custom_ops(self):
            return {"halve": (lambda x: x / 2, lambda ctx, g: g / 2)}

    class Base(extend.Plugin):
        def get_info(self):
            return extend.PluginInfo("base")

    manager = extend.PluginManager()
    manager.register(Half())
    manager.register(Base())
    with pytest.raises(RuntimeError, match="needs base"):
        manager.load("half")
    manager.load("base")
    manager.load("half")
    manager.load("half")
    assert extend.get_custom_op("halve")(pf.tensor([4.0])).item() == 2
    manager.unload("half")
    assert events == ["load", "unload"]
    assert extend.list_custom_ops() == []
    assert [info.name for info in manager.list()] == ["base", "half"]
    assert manager.discover_plugins() == []
    with pytest.raises(KeyError, match="half"):
        manager.get("other")


def test_context_keeps_tensors_only():
    ctx = extend.FunctionContext()
    with pytest.raises(TypeError, match="attribute"):
        ctx.save_for_backward(3)
    with pytest.raises(NotImplementedError, match="forward"):
        extend.AutogradFunction.apply(pf.ones([1]))


def one_node(op, x, domain="custom", attrs=None):
    graph = Graph("g")
    graph.add_input("x", x.shape)
    graph.add_node("n", op, ["x"], ["y"], attrs, domain=domain)
    graph.add_output("y", None)
    return graph


def softly(x, *, slope=2.0):
    return pf.tanh(x * slope) * x


X = np.array([[-1.5, 0.25, 2.0]], np.float32)


def test_models_use_functions_on_tensors():
    extend.register_custom_op("softly", softly)
    session = InferenceSession(one_node("softly", X, attrs={"slope": 3.0}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.tanh(3 * X) * X, rtol=1e-5)
    assert session.explain().host_step_count == 0
    graph = one_node("softly", X)
    graph.inputs[0].shape = ["N", 3]  # traced when sizes are known
    session = InferenceSession(graph)
    for rows in (1, 4):
        x = np.repeat(X, rows, 0)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(2 * x) * x, rtol=1e-5)
    slope = InferenceSession(gradient(one_node("softly", X), ["y"], ["x"])).run(["x_grad"], {"x": X})[0]
    wide, step = X.astype(np.float64), 1e-6

    def value(x):
        return np.tanh(2 * x) * x

    np.testing.assert_allclose(slope, (value(wide + step) - value(wide - step)) / (2 * step), atol=1e-4)


def test_a_gradient_of_its_own_holds_in_models_too():
    op = extend.register_custom_op("straight", lambda x: pf.round(x), lambda ctx, g: g * ctx.saved_tensors[0] + 1)
    x = pf.tensor(X, requires_grad=True)
    op(x).sum().backward()
    made = InferenceSession(gradient(one_node("straight", X), ["y"], ["x"])).run(["x_grad"], {"x": X})[0]
    np.testing.assert_array_equal(made, x.grad.numpy())
    np.testing.assert_array_equal(made, X + 1)


def scaled(x, y=None, z=None):
    return x * 2 + z * 3


def slopes(name):
    """Gradients of x and z with y left out: of tensors, and of a model."""
    x, z = pf.ones(2, requires_grad=True), pf.ones(2, requires_grad=True)
    extend.get_custom_op(name)(x, None, z).sum().backward()
    yield x.grad.tolist(), z.grad.tolist()
    graph = Graph("g")
    graph.add_input("x", [2])
    graph.add_input("z", [2])
    graph.add_node("n", name, ["x", "", "z"], ["y"], domain="custom")
    graph.add_output("y", None)
    ones = np.ones(2, np.float32)
    made = InferenceSession(gradient(graph, ["y"], ["x", "z"])).run(["x_grad", "z_grad"], {"x": ones, "z": ones})
    yield tuple(g.tolist() for g in made)


def test_gradients_are_those_of_the_arguments_in_their_places():
    extend.register_custom_op("scaled", scaled, lambda ctx, g: (g * 2, None, g * 3))
    assert list(slopes("scaled")) == [([2.0, 2.0], [3.0, 3.0])] * 2


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_gradients_is_refused(count):
    extend.register_custom_op("scaled", scaled, lambda ctx, g: (g * 2,) * count)
    with pytest.raises(RuntimeError, match=f"scaled.backward gave {count} gradients for 3 arguments"):
        next(slopes("scaled"))
    extend.register_custom_op("pair", lambda x, z: x + z, lambda ctx, g: (g,) * (count - 1))
    graph = one_node("pair", X)
    graph.nodes[0].inputs = ["x", "x"]
    with pytest.raises(RuntimeError, match=f"pair.backward gave {count - 1} gradients for 2 arguments"):
        gradient(graph, ["y"], ["x"])


def test_tensors_use_operators_of_the_runtime():
    custom.register_custom_op("Cubed", function=lambda x, *, by=1.0: x * x * x * by)
    op = extend.get_custom_op("Cubed")
    x = pf.tensor(X, requires_grad=True)
    y = op(x, by=2.0)
    np.testing.assert_allclose(y.numpy(), 2 * X**3, rtol=1e-6)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * X**2, rtol=1e-6)
    custom.register_custom_op(
        "Host", kernel_fn=lambda i, a: i[0].numpy() * 5, shape_inference=lambda s: [s[0]], gradient=lambda i, g: [g[0]]
    )
    x.grad = None
    z = extend.get_custom_op("Host")(x)
    np.testing.assert_array_equal(z.numpy(), X * 5)
    z.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones_like(X))
    assert extend.list_custom_ops() == ["Cubed", "Host"]
    compiled = pf.compile(lambda t: extend.get_custom_op("Cubed")(t) + 1)
    for _ in range(3):
        np.testing.assert_allclose(compiled(pf.tensor(X)).numpy(), X**3 + 1, rtol=1e-6)


def test_there_is_one_registry():
    extend.register_custom_op("same", softly)
    with pytest.warns(UserWarning, match="custom::same was registered before") as caught:
        custom.register_custom_op("same", function=lambda x: x * 2.0)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(extend.get_custom_op("same")(pf.tensor(X)).numpy(), X * 2)
    with pytest.warns(UserWarning, match="custom::same was registered before") as caught:
        extend.register_custom_op("same", softly)
    assert caught[0].filename == __file__
    with pytest.raises(InputError, match=r"Relu is built in.*override=True"):
        extend.register_custom_op("Relu", softly, domain="")
    extend.register_custom_op("Relu", lambda x: x * 9, domain="", override=True)
    np.testing.assert_array_equal(InferenceSession(one_node("Relu", X, "")).run(None, {"x": X})[0], X * 9)
    extend.clear_custom_ops()
    np.testing.assert_array_equal(InferenceSession(one_node("Relu", X, "")).run(None, {"x": X})[0], np.maximum(X, 0))
