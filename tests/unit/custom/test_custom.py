"""Custom operators: from functions, from Python kernels, and how they are registered."""

import pickle
import sys
import types

import numpy as np
import onnx
import pytest

import pyflame_rt
from pyflame_rt import DType, Graph, InferenceSession, OperatorRegistry, custom
from pyflame_rt.autodiff import gradient
from pyflame_rt.custom import BackendType, CustomOpBuilder, CustomOpRegistry
from pyflame_rt.ops import get_op, infer_types, primitive
from pyflame_rt.ops.core.registry import unregister
from pyflame_rt.ops.core.type_rules import same
from pyflame_rt.partition import GraphPartitioner, PartitionedExecutor

X = np.array([[-1.5, 0.25, 2.0]], np.float32)


@pytest.fixture
def registry():
    found = CustomOpRegistry.instance()
    yield found
    found.clear()


def one_node(op, inputs, domain="", attrs=None):
    graph = Graph("g")
    for name, array in inputs.items():
        graph.add_input(name, array.shape, DType.of(array.dtype))
    graph.add_node("n", op, list(inputs), ["y"], attrs, domain=domain)
    graph.add_output("y", None)
    return graph


def soft(x, *, slope=2.0):
    return get_op("Tanh")(x * slope) * x + 0.5


def test_a_function_is_native_with_shapes_and_gradient(registry):
    op = custom.register_custom_op("Soft", function=soft)
    assert op.has_gradient()
    assert op.supports_backend(BackendType.WSE)
    graph = one_node("Soft", {"x": X}, "custom", {"slope": 3.0})
    assert infer_types(graph) == []
    assert str(graph.types["y"]) == "float32[1, 3]"
    session = InferenceSession(graph)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.tanh(3 * X) * X + 0.5, rtol=1e-5)
    assert session.explain().host_step_count == 0
    slope = InferenceSession(gradient(graph, ["y"], ["x"])).run(["x_grad"], {"x": X})[0]
    wide = X.astype(np.float64)
    np.testing.assert_allclose(slope, np.tanh(3 * wide) + 3 * wide / np.cosh(3 * wide) ** 2, atol=1e-5)


def test_a_function_in_files_pickles_and_on_the_wafer(registry, tmp_path):
    custom.register_custom_op("Soft", function=soft)
    graph = one_node("Soft", {"x": X}, "custom", {"slope": 3.0})
    pyflame_rt.save_model(graph, tmp_path / "soft.pfm")
    expected = np.tanh(3 * X) * X + 0.5
    for session in (
        InferenceSession(tmp_path / "soft.pfm"),
        pickle.loads(pickle.dumps(InferenceSession(graph))),  # noqa: S301
        InferenceSession(graph, providers=["WSEExecutionProvider"]),
    ):
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)


def test_a_kernel_is_a_host_step_with_its_own_types(registry):
    custom.register_custom_op("Gelu2", input_names=["X"], kernel_fn=lambda i, a: i[0].numpy() * np.sqrt(2 / np.pi))
    for domain in ("custom", ""):
        session = InferenceSession(one_node("Gelu2", {"x": X}, domain))
        (y,) = session.run(None, {"x": X})
        assert y.dtype == np.float32  # not the float64 that NumPy's scalar makes
        np.testing.assert_allclose(y, X * np.float32(np.sqrt(2 / np.pi)), rtol=1e-6)
        assert session.explain().host_step_count == 1


def scaled_add():
    return (
        CustomOpBuilder("ScaledAdd")
        .version(3)
        .doc("x + scale * y")
        .input("X")
        .input("Y", optional=True)
        .output("Z")
        .attr_float("scale", required=True)
        .kernel(lambda i, a: [i[0].numpy() + a["scale"] * (0 if i[1] is None else i[1].numpy())], BackendType.CPU)
        .shape_inference(lambda shapes: [shapes[0]])
        .gradient(lambda i, g, a: [g[0], g[0].numpy() * a["scale"]])
    )


def test_builder(registry):
    op = scaled_add().build()
    assert (op.name, op.domain, op.version, op.doc, op.full_name()) == (
        *("ScaledAdd", "custom", 3, "x + scale * y", "ScaledAdd"),
    )
    feeds = {"a": X, "b": X + 1}
    graph = one_node("ScaledAdd", feeds, "custom", {"scale": 0.5})
    infer_types(graph)
    assert str(graph.types["y"]) == "float32[1, 3]"
    np.testing.assert_allclose(InferenceSession(graph).run(None, feeds)[0], X + 0.5 * (X + 1))
    made = InferenceSession(gradient(graph, ["y"], ["a", "b"])).run(["a_grad", "b_grad"], feeds)
    np.testing.assert_array_equal(made[0], np.ones_like(X))
    np.testing.assert_array_equal(made[1], np.full_like(X, 0.5))
    direct = op.gradient([X, X], [np.ones_like(X)], {"scale": 4.0})
    assert [g.numpy()[0, 0] for g in direct] == [1.0, 4.0]


def test_models_that_do_not_fit_are_refused(registry):
    scaled_add().build()
    with pytest.raises(pyflame_rt.InvalidModelError, match="'scale' is required"):
        InferenceSession(one_node("ScaledAdd", {"a": X, "b": X})).run(None, {"a": X, "b": X})
    wide = X.astype(np.float64)
    with pytest.raises(pyflame_rt.DTypeMismatchError, match="'X' must be float32, got float64"):
        InferenceSession(one_node("ScaledAdd", {"a": wide}, "", {"scale": 1.0})).run(None, {"a": wide})


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda i, a: [i[0], i[0]], "2 results for 1 outputs"),
        (lambda i, a: [i[0].numpy() + 1j], "gave complex64 for output 'Y'"),
        (lambda i, a: 1 / 0, "division by zero"),
    ],
)
def test_wrong_results_are_refused(registry, kernel, message):
    op = custom.register_custom_op("Wrong", kernel_fn=kernel)
    with pytest.raises(pyflame_rt.PyFlameRTError, match=message):
        op.execute([X])


def test_wrong_gradients_are_refused(registry):
    op = custom.register_custom_op("Bent", kernel_fn=lambda i, a: i[0], gradient=lambda i, g: [g[0].numpy()[0]])
    with pytest.raises(pyflame_rt.BackendError, match="gradient of input 0 has shape"):
        op.gradient([X], [X])
    plain = custom.register_custom_op("Flat", kernel_fn=lambda i, a: i[0])
    assert not plain.has_gradient()
    graph = one_node("Flat", {"x": X})
    graph.add_node("m", "ReduceSum", ["y"], ["s"])
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="has no gradient"):
        gradient(graph, ["s"], ["x"])


def test_registry(registry):
    assert registry.size() == 0
    custom.register_custom_op("mine::Half", function=lambda x: x * 0.5)
    custom.register_custom_op("Half", function=lambda x: x * 0.25)
    assert registry.list() == ["Half", "mine::Half"]
    assert registry.get("Half").domain == "custom"
    assert registry.get("mine::Half").execute([X])[0].numpy()[0, 2] == 1.0
    assert OperatorRegistry.instance().has("mine::Half")
    registry.unregister("custom::Half")
    assert registry.get("Half").domain == "mine"
    assert not OperatorRegistry.instance().has("Half")
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="Registered: mine::Half"):
        registry.get("Third")


def test_registering_again_replaces_with_a_warning(registry):
    scaled_add().build()
    with pytest.warns(UserWarning, match="custom::ScaledAdd was registered before") as caught:
        custom.register_custom_op("ScaledAdd", function=lambda x: x * 7.0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not OperatorRegistry.instance().has("ScaledAddGradient")
    np.testing.assert_array_equal(InferenceSession(one_node("ScaledAdd", {"a": X})).run(None, {"a": X})[0], X * 7)


def test_a_built_in_is_replaced_only_when_asked(registry):
    ops = OperatorRegistry.instance()
    built_in = ops.get("Relu")
    with pytest.raises(pyflame_rt.InputError, match=r"Relu is built in.*override=True"):
        ops.register_op("Relu", lambda inputs, ctx: inputs[0])
    with pytest.raises(pyflame_rt.InputError, match="Relu is built in"):
        custom.register_custom_op("Relu", domain="", function=lambda x: x)
    assert registry.size() == 0
    with pytest.raises(pyflame_rt.InputError, match="Relu is built in and cannot be unregistered"):
        ops.unregister_op("Relu")
    custom.register_custom_op("Relu", function=lambda x: x + 9.0)  # in a domain of its own: both are there
    assert ops.get("Relu") is built_in
    ops.register_op("Relu", lambda inputs, ctx: inputs[0].numpy() * 2, override=True)
    try:
        np.testing.assert_array_equal(InferenceSession(one_node("Relu", {"x": X})).run(None, {"x": X})[0], X * 2)
    finally:
        ops.unregister_op("Relu")
    assert ops.get("Relu") is built_in


@pytest.mark.parametrize("way", ["function", "kernel"])
@pytest.mark.parametrize("name", ["Flatten", "Softmax", "Transpose", "Identity", "Dropout", "Relu", "Exp"])
def test_one_that_was_replaced_is_not_what_kernels_and_rewrites_know(registry, name, way):
    given = (
        {"function": lambda x: x * 3.0}
        if way == "function"
        else {"kernel_fn": lambda inputs, ctx: inputs[0].numpy() * 3}
    )
    graph = one_node("Neg", {"x": X})
    graph.add_node("first", name, [graph.inputs[0].name], ["k1"])
    graph.add_node("second", name, ["k1"], ["k2"])
    graph.add_output("k2", None)
    custom.register_custom_op(name, domain="", override=True, **given)
    np.testing.assert_allclose(InferenceSession(graph).run(["k2"], {"x": X})[0], X * 9, rtol=1e-6)


def test_a_replaced_product_is_not_fused(registry):
    graph = Graph("g")
    graph.add_input("x", ["N", 3])
    graph.add_initializer("w", np.eye(3, dtype=np.float32))
    graph.add_initializer("b", np.ones(3, np.float32))
    graph.add_node("p", "MatMul", ["x", "w"], ["h"])
    graph.add_node("a", "Add", ["h", "b"], ["y"])
    graph.add_output("y", None)
    ops = OperatorRegistry.instance()
    ops.register_op("MatMul", lambda inputs, ctx: inputs[0].numpy() * 2, override=True)
    try:
        x = np.float32([[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(InferenceSession(graph).run(None, {"x": x})[0], x * 2 + 1)
    finally:
        ops.unregister_op("MatMul")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either a function over operators or a Python kernel"),
        ({"function": abs, "kernel_fn": abs}, "either a function"),
        ({"kernel_fn": 3}, "3 cannot be called"),
        ({"function": soft, "input_names": ["x"]}, "read from the function"),
        ({"function": soft, "gradient": abs}, "follow from the function"),
        ({"kernel_fn": abs, "output_names": []}, "needs its outputs"),
        ({"kernel_fn": abs, "version": 0}, "a version is a whole number from 1, got 0"),
        ({"kernel_fn": abs, "version": "2"}, "a version is a whole number from 1, got '2'"),
        ({"kernel_fn": abs, "output_dtypes": [None, None]}, "2 output_dtypes for 1 outputs"),
    ],
)
def test_statements_that_make_no_operator(registry, given, message):
    with pytest.raises(pyflame_rt.InputError, match=message):
        custom.register_custom_op("Odd", **given)
    assert not registry.has("Odd")


@pytest.mark.parametrize("name", ["MatMul", "Gemm", "Conv"])
def test_a_product_of_another_domain_is_not_onnx_s(registry, name):
    """The engine took it for ONNX's where a loop follows it."""
    shape = (1, 4, 3, 3) if name == "Conv" else (4, 4)
    weights = 5 * np.eye(4, dtype=np.float32).reshape((4, 4, 1, 1) if name == "Conv" else (4, 4))
    custom.register_custom_op(
        name, input_names=["X", "W"], kernel_fn=lambda i, a: i[0].numpy() * 2, shape_inference=lambda shapes: shapes[:1]
    )
    graph = Graph("g")
    graph.add_input("x", shape)
    graph.add_initializer("w", weights)
    graph.add_node("product", name, ["x", "w"], ["h"], domain="custom")
    graph.add_node("loop", "Relu", ["h"], ["y"])
    graph.add_output("y", shape)
    x = np.ones(shape, np.float32)
    np.testing.assert_array_equal(InferenceSession(graph).run(None, {"x": x})[0], 2 * x)


def test_a_function_of_another_domain_is_not_a_post_op_of_the_library():
    @primitive(since=1, domain="example", infer=same, types="T > T", scalar="neg")
    def Tanh(ops, X, /):
        """Minus X."""
        return ops.negative(X)

    graph = Graph("g")
    graph.add_input("x", [1, 2, 4, 4, 4])
    graph.add_initializer("w", np.random.default_rng(0).standard_normal((3, 2, 3, 3, 3)).astype(np.float32))
    graph.add_node("conv", "Conv", ["x", "w"], ["h"])
    graph.add_node("other", "Tanh", ["h"], ["y"], domain="example")
    graph.add_output("y", [1, 3, 2, 2, 2])
    x = np.ones((1, 2, 4, 4, 4), np.float32)
    try:
        y, h = InferenceSession(graph).run(None, {"x": x}, taps=["h"])
        again = InferenceSession(graph).run(None, {"x": x})[0]
    finally:
        unregister("Tanh", "example")
    np.testing.assert_array_equal(y, -h)
    np.testing.assert_allclose(again, -h, rtol=1e-5)


def test_python_kernels_run_on_the_host_only():
    with pytest.raises(pyflame_rt.InputError, match="not on WSE"):
        CustomOpBuilder("Far").kernel(abs, BackendType.WSE)


def test_functions_are_inlined_in_onnx_files(registry, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    custom.register_custom_op("Soft", function=soft)
    graph = one_node("Soft", {"x": X}, "custom", {"slope": 3.0})
    path = tmp_path / "soft.onnx"
    pyflame_rt.export_onnx(graph, path)
    assert not {node.domain for node in onnx.load(path).graph.node} - {"", "ai.onnx"}
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.tanh(3 * X) * X + 0.5, rtol=1e-5)


def test_kernels_keep_their_domain_in_onnx_files_or_are_refused(registry, tmp_path):
    custom.register_custom_op("Twice", input_names=["X"], kernel_fn=lambda inputs, attrs: inputs[0].numpy() * 2)
    path = tmp_path / "twice.onnx"
    pyflame_rt.export_onnx(one_node("Twice", {"x": X}, "custom"), path)
    np.testing.assert_array_equal(InferenceSession(path).run(None, {"x": X})[0], X * 2)
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match=r"node 'n' \(Twice\) .* domain of its own"):
        pyflame_rt.export_onnx(one_node("Twice", {"x": X}), path)


def test_models_of_an_older_version_of_the_domain_are_refused(registry, tmp_path):
    custom.register_custom_op("Twice", "acme", ["X"], kernel_fn=lambda i, a: i[0].numpy() * 2, version=3)
    path = tmp_path / "twice.onnx"
    pyflame_rt.export_onnx(one_node("Twice", {"x": X}, "acme"), path)
    model = onnx.load(path)
    (asked,) = [entry for entry in model.opset_import if entry.domain == "acme"]
    assert asked.version == 3
    for version in (3, 7):
        asked.version = version
        np.testing.assert_array_equal(InferenceSession(model.SerializeToString()).run(None, {"x": X})[0], X * 2)
    asked.version = 2
    with pytest.raises(
        pyflame_rt.UnsupportedOperatorError, match=r"version 2 of domain 'acme'.*acme::Twice.*version 3"
    ):
        InferenceSession(model.SerializeToString())


def test_gradients_agree_with_finite_differences(registry):
    custom.register_custom_op("Soft", function=soft)
    graph = one_node("Soft", {"x": X}, "custom", {"slope": 0.7})
    slope = InferenceSession(gradient(graph, ["y"], ["x"])).run(["x_grad"], {"x": X})[0]
    wide, step = X.astype(np.float64), 1e-6

    def value(x):
        return np.tanh(0.7 * x) * x + 0.5

    np.testing.assert_allclose(slope, (value(wide + step) - value(wide - step)) / (2 * step), atol=1e-4)


def test_sessions_look_operators_up_again_for_new_shapes(registry):
    custom.register_custom_op("Scaled", function=lambda x: x * 2.0)
    graph = one_node("Scaled", {"x": np.ones(2, np.float32)}, "custom")
    graph.inputs[0].shape = ["N"]
    session = InferenceSession(graph)
    assert session.run(None, {"x": np.ones(2, np.float32)})[0][0] == 2
    with pytest.warns(UserWarning, match="look it up again for others: make them anew"):
        custom.register_custom_op("Scaled", function=lambda x: x * 5.0)
    assert session.run(None, {"x": np.ones(2, np.float32)})[0][0] == 2
    assert session.run(None, {"x": np.ones(9, np.float32)})[0][0] == 5
    assert InferenceSession(graph).run(None, {"x": np.ones(2, np.float32)})[0][0] == 5


def test_packages_bring_operators(registry, tmp_path, monkeypatch):
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pyflame_rt.operators]\nbrought = brought_operators:register\n")
    (tmp_path / "brought_operators.py").write_text(
        "from pyflame_rt import custom\n"
        "def register():\n"
        "    custom.register_custom_op('Brought', domain='brought', function=lambda x: x * 7.0)\n"
    )
    graph = one_node("Brought", {"x": X}, "brought")
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="brought::Brought"):
        InferenceSession(graph)
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_allclose(InferenceSession(graph).run(None, {"x": X})[0], X * 7, rtol=1e-6)
    assert "brought" in custom.load_plugins()  # and not a second time, which would warn
    (info / "entry_points.txt").write_text("[pyflame_rt.operators]\nbroken = brought_operators:nothing\n")
    with pytest.raises(pyflame_rt.BackendError, match=r"package 'brought': operators 'broken'"):
        custom.load_plugins()


def times_three(inputs, attrs):
    return inputs[0].numpy() * 3


def test_operators_go_to_worker_processes(registry):
    custom.register_custom_op("Soft", function=soft)
    custom.register_custom_op("Thrice", input_names=["X"], kernel_fn=times_three, shape_inference=lambda s: [s[0]])
    graph = one_node("Soft", {"x": X}, "custom", {"slope": 3.0})
    plan = GraphPartitioner().partition_model_parallel(graph, 1)
    with PartitionedExecutor(plan, "processes") as executor:
        np.testing.assert_allclose(executor.execute({"x": X})["y"], np.tanh(3 * X) * X + 0.5, rtol=1e-5)
    plan = GraphPartitioner().partition_model_parallel(one_node("Thrice", {"x": X}, "custom"), 1)
    with pytest.raises(
        pyflame_rt.UnsupportedOperatorError, match=r"Thrice.*pickled"
    ):  # its rule for shapes has no name
        PartitionedExecutor(plan, "processes")


def test_a_function_that_is_not_there_is_named(registry, monkeypatch):
    """A module of this process alone: neither workers nor whoever unpickles a session can import it."""
    module = types.ModuleType("only_here")
    module.thrice = types.FunctionType(times_three.__code__, globals(), "thrice")
    module.thrice.__module__, module.thrice.__qualname__ = module.__name__, "thrice"
    monkeypatch.setitem(sys.modules, "only_here", module)
    custom.register_custom_op("Thrice", input_names=["X"], kernel_fn=module.thrice)
    graph = one_node("Thrice", {"x": X}, "custom")
    plan = GraphPartitioner().partition_model_parallel(graph, 1)
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="custom::Thrice, whose functions are not here"):
        PartitionedExecutor(plan, "processes")
    data = pickle.dumps(InferenceSession(graph))
    registry.clear()
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="custom::Thrice, whose functions are not here"):
        pickle.loads(data)  # noqa: S301
