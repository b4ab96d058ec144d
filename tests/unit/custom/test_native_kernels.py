"""Kernels that are machine code or write into arrays, operators in pickles, and plans that do not outlive them."""

import ctypes
import ctypes.util
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import helper

import pyflame_rt
from pyflame_rt import DType, Graph, InferenceSession, OperatorRegistry, custom
from pyflame_rt.autodiff import gradient
from pyflame_rt.cache.store import current_store
from pyflame_rt.custom import CustomOpBuilder, CustomOpRegistry

X = np.array([[0.5, 0.25, 2.0], [1.0, 3.0, 0.125]], np.float32)
BUFFERS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture
def registry():
    found = CustomOpRegistry.instance()
    yield found
    found.clear()


@pytest.fixture
def powf():
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("no C mathematics library")
    found = ctypes.CDLL(name).powf
    found.restype, found.argtypes = ctypes.c_float, [ctypes.c_float, ctypes.c_float]
    return found


def between(op, inputs, domain="custom"):
    """The operator between two native ones, so that a stop at the host would show."""
    graph = Graph("g")
    for name, array in inputs.items():
        graph.add_input(name, array.shape, DType.of(array.dtype))
    graph.add_node("before", "Abs", ["x"], ["abs"])
    graph.add_node("n", op, ["abs", *[name for name in inputs if name != "x"]], ["v"], domain=domain)
    graph.add_node("after", "Neg", ["v"], ["y"])
    graph.add_output("y", None)
    return graph


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 1), (3,), (), (1,), (4, 2, 3)])
def test_a_function_of_elements_is_called_natively(registry, powf, shape):
    op = custom.register_custom_op("Powf", kernel_fn=powf, signature="float32(float32, float32)")
    assert op.is_native()
    e = np.linspace(0.5, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    session = InferenceSession(between("Powf", {"x": X, "e": e}))
    np.testing.assert_allclose(session.run(None, {"x": X, "e": e})[0], -np.power(X, e), rtol=1e-6)
    told = session.explain()
    assert told.host_step_count == 0
    assert "Powf (call)" in str(told)
    np.testing.assert_allclose(op.execute([X, e])[0].numpy(), np.power(X, e), rtol=1e-6)


def test_sizes_may_change_and_many_elements_are_shared_out(registry, powf):
    custom.register_custom_op("Powf", kernel_fn=powf, signature="float32(float32, float32)")
    graph = between("Powf", {"x": X, "e": np.float32(2)})
    graph.inputs[0].shape = ["N", "M"]
    session = InferenceSession(graph)
    for n in (1, 7, 200, 300):
        x = np.random.default_rng(n).random((n, n), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x, "e": np.float32(2)})[0], -(x**2), rtol=1e-6)


def test_an_address_alone(registry, powf):
    address = ctypes.cast(powf, ctypes.c_void_p).value
    custom.register_custom_op("P", kernel_fn=address, signature="float32(float32,float32)", gradient=power_gradient)
    graph = between("P", {"x": X, "e": X})
    made = InferenceSession(gradient(graph, ["y"], ["x"])).run(["x_grad"], {"x": X, "e": X})[0]
    np.testing.assert_allclose(made, -X * X ** (X - 1), rtol=1e-5)


def power_gradient(inputs, grads):
    x, e, g = inputs[0].numpy(), inputs[1].numpy(), grads[0].numpy()
    return [g * e * x ** (e - 1), None]


def test_a_function_of_buffers_is_called_natively(registry):
    seen = []

    @BUFFERS
    def transposed(inputs, outputs, sizes):
        source, target = (ctypes.cast(p, ctypes.POINTER(ctypes.c_void_p))[0] for p in (inputs, outputs))
        numbers = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))[:6]
        seen.append(list(numbers))
        rows, columns = numbers[1:3]
        a = np.ctypeslib.as_array(ctypes.cast(source, ctypes.POINTER(ctypes.c_float)), (rows, columns))
        np.ctypeslib.as_array(ctypes.cast(target, ctypes.POINTER(ctypes.c_float)), (columns, rows))[:] = a.T

    op = custom.register_custom_op(
        "Turn", input_names=["X"], kernel_fn=transposed, signature="buffers", shape_inference=lambda s: [s[0][::-1]]
    )
    session = InferenceSession(between("Turn", {"x": X}))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X.T)
    assert session.explain().host_step_count == 0
    np.testing.assert_array_equal(op.execute([X])[0].numpy(), X.T)
    assert seen == [[2, 2, 3, 2, 3, 2]] * 2


def test_arrays_are_written_on_the_host_and_explain_says_so(registry):
    def twice(inputs, outputs):
        np.multiply(inputs[0], 2, out=outputs[0])

    op = (
        CustomOpBuilder("Twice")
        .input("X")
        .output("Y")
        .kernel(twice, signature="arrays")
        .shape_inference(lambda shapes: [shapes[0]])
        .build()
    )
    session = InferenceSession(between("Twice", {"x": X}))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -2 * X)
    told = session.explain()
    assert told.host_step_count == 1
    assert [p.reason for p in told.nodes if p.host_step] == ["a Python kernel (inputs, outputs)"]
    assert not op.is_native()

    def careless(inputs, outputs):
        inputs[0][:] = 0

    spoilt = custom.register_custom_op("C", kernel_fn=careless, signature="arrays", shape_inference=lambda s: [s[0]])
    with pytest.raises(pyflame_rt.PyFlameRTError, match="read-only"):
        spoilt.execute([X])


def test_numba(registry):
    numba = pytest.importorskip("numba")

    @numba.cfunc("float32(float32)")
    def cube(x):
        return x * x * x

    custom.register_custom_op("Cube", kernel_fn=cube, signature="float32(float32)")
    session = InferenceSession(between("Cube", {"x": X}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], -(X**3), rtol=1e-6)
    assert session.explain().host_step_count == 0
    with pytest.raises(pyflame_rt.InputError, match="but the function has float32"):
        custom.register_custom_op("Wrong", kernel_fn=cube, signature="float64(float64)")
    with pytest.raises(pyflame_rt.InputError, match="state the signature"):
        custom.register_custom_op("Wrong", kernel_fn=cube)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"signature": "float32"}, "not understood"),
        ({"signature": "float32(float16)"}, "not understood"),
        ({"signature": "float32(float32)"}, r"has float32\(float32, float32\)"),
        ({"signature": "buffers", "shape_inference": abs}, r"has float32\(float32, float32\)"),
        ({"signature": "float32(float32,float32)", "input_names": ["x"]}, "1 inputs and 1 outputs were stated"),
        ({"signature": "float32(float32,float32)", "shape_inference": abs}, "shape follows"),
        ({"signature": "float32(float32,float32)", "output_dtypes": [DType.Int64]}, "'Y' is one float32"),
        ({}, "state the signature"),
        ({"signature": "arrays", "kernel_fn": abs}, "needs shape_inference"),
        ({"signature": "arrays"}, "state the signature"),
        ({"signature": "float32(float32,float32)", "kernel_fn": abs}, "signature of machine code"),
        ({"signature": "float32(float32,float32)", "kernel_fn": True}, "signature of machine code"),
        ({"signature": "float32(float32,float32)", "kernel_fn": 0}, "no address"),
        ({"signature": "float32(float32,float32)", "kernel_fn": 2**70}, "no address"),
        ({"signature": "buffers", "shape_inference": abs, "kernel_fn": ctypes.PyDLL(None).Py_IsInitialized}, "the GIL"),
        ({"signature": "arrays", "kernel_fn": None, "function": abs}, "for kernels only"),
    ],
)
def test_statements_that_do_not_fit_the_function(registry, powf, given, message):
    with pytest.raises(pyflame_rt.InputError, match=message):
        custom.register_custom_op("Odd", **{"kernel_fn": powf, **given})
    assert not registry.has("Odd")


def test_a_result_that_ctypes_makes_by_a_function(registry):
    found = ctypes.CDLL(None).abs
    found.argtypes, found.restype = [ctypes.c_int], str
    with pytest.raises(pyflame_rt.InputError, match=r"the function has str\(int32\)"):
        custom.register_custom_op("Odd", kernel_fn=found, signature="int32(int32)")
    found.restype = lambda number: number
    with pytest.raises(pyflame_rt.InputError, match="the function has what <function"):
        custom.register_custom_op("Odd", kernel_fn=found, signature="int32(int32)")


def test_an_array_that_is_returned_and_not_written(registry):
    rule = {"signature": "arrays", "shape_inference": lambda shapes: shapes[:1]}
    custom.register_custom_op("Returned", kernel_fn=lambda x, y: [x[0] * 2], **rule)
    custom.register_custom_op("Written", kernel_fn=lambda x, y: np.multiply(x[0], 2, out=y[0]), **rule)
    with pytest.raises(pyflame_rt.BackendError, match="Returned returned an array"):
        InferenceSession(between("Returned", {"x": X})).run(None, {"x": X})
    np.testing.assert_array_equal(InferenceSession(between("Written", {"x": X})).run(None, {"x": X})[0], -2 * X)


def test_strings_are_no_buffers(registry):
    code = BUFFERS(lambda inputs, outputs, sizes: None)
    custom.register_custom_op("Copy", kernel_fn=code, signature="buffers", shape_inference=lambda shapes: shapes[:1])
    graph = Graph("g")
    graph.add_input("x", [1], DType.String)
    graph.add_node("n", "Copy", ["x"], ["y"], domain="custom")
    graph.add_output("y", None)
    with pytest.raises(pyflame_rt.DTypeMismatchError, match="strings are objects of Python"):
        InferenceSession(graph).run(None, {"x": ["a"]})


def test_models_that_do_not_fit_the_signature_are_refused(registry, powf):
    custom.register_custom_op("Powf", kernel_fn=powf, signature="float32(float32, float32)")
    wide = X.astype(np.float64)
    with pytest.raises(pyflame_rt.DTypeMismatchError, match="'x0' must be float32, got float64"):
        InferenceSession(between("Powf", {"x": wide, "e": wide})).run(None, {"x": wide, "e": wide})
    long = np.ones(5, np.float32)
    with pytest.raises(pyflame_rt.ShapeMismatchError, match="broadcast"):
        InferenceSession(between("Powf", {"x": X, "e": long})).run(None, {"x": X, "e": long})


# ---------------------------------------------------------------------- pickles and processes


def test_sessions_take_their_operators_along(registry, tmp_path):
    """Another process, in which nobody registered them."""
    (tmp_path / "carried_kernels.py").write_text(
        "def thrice(inputs, attrs):\n    return inputs[0].numpy() * 3\n"
        "def scaled(x, *, by=2.0):\n    return x * by\n"
        "def plus(inputs, context):\n    return inputs[0].numpy() + context.node.get_attr('by', 1)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import carried_kernels  # ty: ignore
    finally:
        sys.path.pop(0)
    custom.register_custom_op("Thrice", input_names=["X"], kernel_fn=carried_kernels.thrice)
    custom.register_custom_op("Scaled", domain="mine", function=carried_kernels.scaled)
    OperatorRegistry.instance().register_op("Plus", carried_kernels.plus)
    graph = between("Thrice", {"x": X})
    graph.add_node("m", "Scaled", ["y"], ["z"], {"by": 4.0}, domain="mine")
    graph.add_node("p", "Plus", ["z"], ["w"], {"by": 5.0})
    graph.add_output("w", None)
    (tmp_path / "session").write_bytes(pickle.dumps(InferenceSession(graph)))
    code = (
        "import pickle, sys, numpy as np\n"
        "session = pickle.loads(open('session', 'rb').read())\n"
        "print(session.run(['w'], {'x': np.ones((2, 3), np.float32)})[0][0, 0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "-7.0", done.stderr


def test_what_cannot_be_pickled_is_named(registry):
    custom.register_custom_op("Local", function=lambda x: x * 2.0)
    data = pickle.dumps(InferenceSession(between("Local", {"x": X})))
    np.testing.assert_array_equal(pickle.loads(data).run(None, {"x": X})[0], -2 * X)  # noqa: S301
    registry.clear()
    with pytest.raises(
        pyflame_rt.UnsupportedOperatorError, match=r"custom::Local, whose functions could not be pickled"
    ):
        pickle.loads(data)  # noqa: S301


def test_an_address_does_not_leave_its_process(registry, powf):
    address = ctypes.cast(powf, ctypes.c_void_p).value
    op = custom.register_custom_op("P", kernel_fn=address, signature="float32(float32,float32)")
    data = pickle.dumps(InferenceSession(between("P", {"x": X, "e": X})))
    with pytest.raises(pickle.PicklingError, match="P is machine code"):
        pickle.dumps(op.schema)  # what a partitioned model sends to its processes
    registry.clear()
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="P is machine code, whose address is another"):
        pickle.loads(data)  # noqa: S301


def test_the_short_form_is_in_the_same_registry(registry):
    OperatorRegistry.instance().register_op("Short", lambda inputs, context: inputs[0].numpy() * 2)
    assert registry.list() == ["Short"]
    told = InferenceSession(between("Short", {"x": X}, "")).explain()
    assert [p.reason for p in told.nodes if p.host_step] in ([], ["a Python kernel (inputs, context)"])
    with pytest.warns(UserWarning, match="Short was registered before") as caught:
        OperatorRegistry.instance().register_op("Short", lambda inputs, context: inputs[0].numpy() * 3)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(registry.get("Short").execute([X])[0].numpy(), X * 3)
    OperatorRegistry.instance().unregister_op("Short")
    assert registry.size() == 0
    with pytest.raises(pyflame_rt.InputError, match="cannot be called"):
        OperatorRegistry.instance().register_op("Short", 3)


@pytest.mark.parametrize("level", [0, 3])
def test_plans_on_disk_do_not_outlive_the_meaning_of_an_operator(registry, tmp_path, level):
    path = tmp_path / "m.onnx"
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Grown", ["x"], ["v"], domain="custom"), helper.make_node("MatMul", ["v", "w"], ["y"])]
    weights = [onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")]
    made = helper.make_graph(nodes, "g", [info("x", 1, [2, 3])], [info("y", 1, [2, 3])], weights)
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]), path
    )
    old = time.time() - 60
    os.utime(path, (old, old))
    options = pyflame_rt.SessionOptions()
    options.optimization_level = level
    for factor in (2.0, 2.0, 3.0):
        registry.clear()
        custom.register_custom_op("Grown", function=_times(factor))
        with InferenceSession(path, options) as session:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * factor)
        current_store().flush()


def _times(factor):
    return lambda x: x * factor
