"""Backends, operators and bindings from outside; comparing providers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pyflame_rt
import pyflame_rt.backend as onnx_backend
from pyflame_rt import DType, Graph, InferenceSession, OperatorRegistry, OrtValue


class Halving(pyflame_rt.Backend):
    """Takes only Neg, and gives half of what it should."""

    name = "halving"

    def get_supported_ops(self):
        return ["Neg"]

    def execute(self, graph, input_feed, output_names=()):
        values = {name: np.asarray(tensor) for name, tensor in input_feed.items()}
        for node in graph.topological_sort():
            values[node.outputs[0]] = -values[node.inputs[0]] / 2
        return [values[name] for name in output_names or [o.name for o in graph.outputs]]


@pytest.fixture
def halving():
    pyflame_rt.register_backend("HalvingExecutionProvider", Halving)
    yield "HalvingExecutionProvider"
    pyflame_rt.unregister_backend("HalvingExecutionProvider")


def test_registered_backend_runs_graphs(kit, halving):
    assert halving in pyflame_rt.get_available_providers()
    session = InferenceSession(kit.chain(2), providers=[halving])
    y, v0 = session.run(None, {"x": kit.x}, taps=["v0"])
    np.testing.assert_array_equal(y, kit.x / 4)
    np.testing.assert_array_equal(v0, -kit.x / 2)
    assert {row.runs_on for row in session.explain().rows} == {"halving"}


def test_operator_the_backend_lacks(kit, halving):
    graph = kit.chain()
    graph.add_node("act", "Relu", ["y"], ["z"])
    graph.add_output("z", ["N", 3])
    with pytest.raises(
        pyflame_rt.UnsupportedOperatorError, match=r"'halving' does not run Relu \(first at node 'act'\)"
    ):
        InferenceSession(graph, providers=[halving])
    session = InferenceSession(graph, providers=[halving, "ReferenceExecutionProvider"])
    assert session.get_providers() == ["ReferenceExecutionProvider", halving]
    assert any("passed over" in note for note in session.explain().notes)


def test_backend_failures_are_backend_errors(kit, halving, monkeypatch):
    session = InferenceSession(kit.chain(), providers=[halving])
    monkeypatch.setattr(Halving, "execute", lambda *_: [])
    with pytest.raises(pyflame_rt.BackendError, match="0 results for 1 names"):
        session.run(None, {"x": kit.x})
    monkeypatch.setattr(Halving, "execute", lambda *_: 1 / 0)
    with pytest.raises(pyflame_rt.BackendError, match="division"):
        session.run(None, {"x": kit.x})


def test_built_in_providers_are_not_replaced():
    with pytest.raises(pyflame_rt.InputError, match="built in"):
        pyflame_rt.register_backend("CPUExecutionProvider", Halving)
    for name in ("CPUExecutionProvider", "nobody"):
        with pytest.raises(pyflame_rt.InputError):
            pyflame_rt.unregister_backend(name)


def test_devices():
    assert pyflame_rt.get_device() == "CPU"
    assert pyflame_rt.get_device_count("cpu") == 1
    with pytest.raises(pyflame_rt.InputError, match="abacus"):
        pyflame_rt.get_device_count("abacus")


def test_diff_finds_the_first_divergence(kit, halving):
    assert pyflame_rt.diff(kit.chain(4), "ReferenceExecutionProvider", "CPUExecutionProvider")
    result = pyflame_rt.diff(kit.chain(3), "ReferenceExecutionProvider", halving, {"x": kit.x})
    assert not result
    assert result.first_divergence.node == "n0"
    assert [row.introduced for row in result.rows] == [True, False, False]
    assert "'v0'" in result.verdict()
    assert "first" in str(result)
    assert result.to_dict()["first_divergence"] == "v0"


def test_diff_of_every_provider_with_the_reference(kit, provider):
    assert pyflame_rt.diff(kit.chain(3), "ReferenceExecutionProvider", provider, sizes={"N": 2}).equal


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        (np.zeros(2), np.zeros(3), True),
        (np.zeros(2), np.zeros(2, np.float32), True),
        ([np.zeros(1)], [], True),
        (None, np.zeros(1), True),
        (None, None, False),
    ],
)
def test_values_that_cannot_be_compared(a, b, problem):
    from pyflame_rt.differ import compare

    assert bool(compare(a, b, 0, 0)[4]) is problem


def test_comparison_of_special_values():
    from pyflame_rt.differ import compare

    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    assert compare(special, special.copy(), 0, 0)[2] == 0
    assert compare(special, special[[1, 2, 0, 3]], 0, 0)[2] == 3
    assert compare(np.array(["a"], object), np.array(["b"], object), 0, 0)[2] == 1
    assert compare([np.ones(2)], [np.zeros(2)], 0, 0)[:3] == (1.0, 1.0, 2)


def test_registry():
    registry = OperatorRegistry.instance()
    assert OperatorRegistry.instance() is registry
    assert registry.has("Relu")
    assert not registry.has("Nope")
    with pytest.raises(pyflame_rt.UnsupportedOperatorError):
        registry.get("Nope")
    assert len(registry.list_ops()) >= 50
    assert set(pyflame_rt.list_operators("")) < set(pyflame_rt.list_operators())


def run_op(op, inputs, domain="", attrs=None, **options):
    graph = Graph("g")
    for name, array in inputs.items():
        graph.add_input(name, array.shape, DType.of(array.dtype))
    graph.add_node("n", op, list(inputs), ["y"], attrs, domain=domain)
    graph.add_output("y", None)
    return InferenceSession(graph, **options).run(None, inputs)[0]


def test_python_kernels(provider):
    registry = OperatorRegistry.instance()
    x = np.array([1, 2], np.float32)
    registry.register_op(
        "mine::Scale", lambda inputs, ctx: [inputs[0].numpy() * np.float32(ctx.node.get_attr("by", 2.0))]
    )
    try:
        assert run_op("Scale", {"x": x}, "mine", {"by": 3.0}, providers=[provider]).tolist() == [3, 6]
        assert run_op("Scale", {"x": x}, "mine", providers=[provider]).tolist() == [2, 4]
        assert registry.has("mine::Scale")
        with pytest.warns(UserWarning, match="mine::Scale was registered before"):
            registry.register_op("mine::Scale", lambda inputs, ctx: inputs[0].clone())
        assert run_op("Scale", {"x": x}, "mine", providers=[provider]).tolist() == [1, 2]
        with pytest.warns(UserWarning, match="mine::Scale was registered before"):
            registry.register_op("mine::Scale", lambda inputs, ctx: object())
        with pytest.raises(pyflame_rt.BackendError, match="Scale"):
            run_op("Scale", {"x": x}, "mine", providers=[provider])
    finally:
        registry.unregister_op("mine::Scale")
    assert not registry.has("mine::Scale")


# ---------------------------------------------------------------------- bindings


def _two_outputs():
    graph = pyflame_rt.Graph("two")
    graph.add_input("x", ["N", 3])
    for name, op in (("y", "Relu"), ("z", "Neg")):
        graph.add_node(op, op, ["x"], [name])
        graph.add_output(name, ["N", 3])
    return pyflame_rt.InferenceSession(graph)


@pytest.mark.parametrize("other", [np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros((2, 3))])
def test_an_output_bound_to_an_array_of_another_form_is_refused(other):
    """As many elements in another shape were filled without a word."""
    binding = _two_outputs().io_binding()
    binding.bind_cpu_input("x", np.ones((2, 3), np.float32))
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(other))
    with pytest.raises(
        pyflame_rt.InputError, match=r"output 'y' is float32\[2, 3\], the array it is bound to is float"
    ):
        binding.run()


def test_outputs_bound_to_memory_they_cannot_have():
    binding = _two_outputs().io_binding()
    frozen, both = np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(pyflame_rt.InputError, match="output 'y' is bound to a read-only array"):
        binding.bind_ortvalue_output("y", OrtValue(frozen))
    binding.bind_ortvalue_output("y", OrtValue(both[:2]))
    with pytest.raises(pyflame_rt.InputError, match="outputs 'y' and 'z' are bound to the same memory"):
        binding.bind_ortvalue_output("z", OrtValue(both[1:]))
    with pytest.raises(pyflame_rt.InputError, match="read-only"):
        OrtValue(frozen).update_inplace(both[:2])


def test_bindings(kit):
    session = InferenceSession(kit.chain(1))
    binding = session.io_binding()
    out = OrtValue.ortvalue_from_shape_and_type([1, 3], np.float32)
    binding.bind_cpu_input("x", kit.x)
    binding.bind_ortvalue_output("y", out)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out.numpy(), -kit.x)
    assert binding.get_outputs() == [out]

    raw = np.zeros((1, 3), np.float32)
    source = kit.x.copy()
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_input("x", "cpu", 0, np.float32, [1, 3], source.ctypes.data)
    binding.bind_output("y", "cpu", 0, TensorProto.FLOAT, [1, 3], raw.ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(raw, -kit.x)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], -kit.x)


def test_bindings_that_do_not_fit(kit):
    session = InferenceSession(kit.chain(1))
    binding = session.io_binding()
    refused = (
        lambda: binding.bind_cpu_input("nope", kit.x),
        lambda: binding.bind_output("nope"),
        lambda: binding.bind_output("y", "cuda"),
        lambda: binding.bind_output("y", buffer_ptr=1),
        lambda: session.run_with_iobinding(binding),
    )
    for call in refused:
        with pytest.raises(pyflame_rt.InputError):
            call()
    binding.bind_cpu_input("x", kit.x)
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_shape_and_type([9], np.float32))
    with pytest.raises(pyflame_rt.InputError, match="the array it is bound to is float32"):
        session.run_with_iobinding(binding)


def test_run_with_ort_values(kit):
    session = InferenceSession(kit.chain(1))
    [result] = session.run_with_ort_values(["y"], {"x": OrtValue.ortvalue_from_numpy(kit.x)})
    np.testing.assert_array_equal(result.numpy(), -kit.x)


# ---------------------------------------------------------------------- onnx.backend


def test_onnx_backend_interface(kit):
    model = onnx.load_from_string(kit.unary("Neg"))
    assert onnx_backend.is_compatible(model)
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    for inputs in ([kit.x], kit.x, {"x": kit.x}):
        np.testing.assert_array_equal(onnx_backend.run_model(model, inputs).y, -kit.x)
    with pytest.raises(pyflame_rt.BackendError):
        onnx_backend.prepare(model, "CUDA")
    odd = onnx.load_from_string(kit.unary("Nope"))
    assert not onnx_backend.is_compatible(odd)


def test_onnx_backend_single_node():
    node = helper.make_node("Add", ["a", "b"], ["c"])
    one = np.ones(2, np.float32)
    assert onnx_backend.run_node(node, [one, one]).c.tolist() == [2, 2]
    assert onnx_backend.run_node(helper.make_node("Add", ["a", "a"], ["c"]), {"a": one})[0].tolist() == [2, 2]
